"""The sources of commands: the stores at a path, or a running cluster. One Protocol, so that the same code prints both."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

import typer

from spark_mq.cli.message_lines import (
    Unreadable,
)
from spark_mq.lag.figures import LagLooks
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import CommandError
from storage import Message
from storage.names import names_several, nearest
from storage.tables.topics import TopicConfig

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Everything = Annotated[
    bool, typer.Option("--all", help="RocketMQ's own topics and groups too, and those of Spark sinks.")
]
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="One topic; without it all.")]
RequiredTopic = Annotated[str, typer.Option("--topic", metavar="TOPIC", show_default=False, help="The topic.")]
QueueNumber = Annotated[int | None, typer.Option("--queue-id", metavar="ID", min=0, help="One queue of each topic.")]


Brokers = Annotated[
    list[str] | None,
    typer.Option(
        "--broker",
        metavar="NAME",
        help="A broker that must be there; may be repeated. Name servers forget one that is gone.",
    ),
]


class FoundMessage(NamedTuple):
    """A message that a search found, and the broker that has it."""

    broker_name: str
    message: Message


class FoundOffset(NamedTuple):
    """The place of a time in a queue; `store_time_ms` is that of the message there, None if there is none."""

    queue: QueueId
    queue_offset: int
    store_time_ms: int | None


class KeySearch(NamedTuple):
    """Messages of a topic with a key, or with a unique key, stored between two times; the newest `limit` of each broker."""

    topic: str
    key: str
    is_unique: bool
    begin_ms: int
    end_ms: int
    limit: int


class Place(Protocol):
    """Topics, queues, messages and consumer groups of one or more brokers. Times are ms since 1970."""

    @property
    def troubles(self) -> Mapping[str, Exception]:
        """Why what a broker has is missing in the results of `known_entries` and `by_key` until now, by broker name."""
        ...

    def refresh(self) -> None:
        """Look at what the brokers did meanwhile."""
        ...

    def close(self) -> None: ...

    def known_topics(self) -> Collection[str]:
        """The names of all topics, also of those without a message."""
        ...

    def is_system_topic(self, topic: str) -> bool: ...

    def topic_entries(self) -> list[dict[str, Any]]:
        """An object for each topic and broker: settings, and queues with their offsets."""
        ...

    def known_entries(self, topic: str | None = None) -> list[dict[str, Any]]:
        """As `topic_entries`, of all topics or of one, at the brokers that answer; `troubles` says why the others do not."""
        ...

    def queues(self, topic: str | None) -> Sequence[QueueId]:
        """The queues of a topic, or of all, sorted. A named topic whose queues cannot be read is refused."""
        ...

    def queue_count(self, topic: str) -> int:
        """Number of queues of the topic by its settings."""
        ...

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        """The first offset, and the one that the next message will get."""
        ...

    def newest_ms(self, queue: QueueId) -> int | None:
        """When the queue's newest message was stored; None if it has none."""
        ...

    def size_between(self, queue: QueueId, start: int, end: int) -> int | None:
        """Bytes of the records at the offsets [start, end) that are there; None where that is not known: brokers do not tell."""
        ...

    def lines(self, queue: QueueId, start: int, end: int, *, bodies: bool) -> Iterator[dict[str, Any] | Unreadable]:
        """The messages at the offsets [start, end) that are there, as objects to print."""
        ...

    def describe(self, found: FoundMessage, *, bodies: bool) -> dict[str, Any]:
        """One message as an object to print."""
        ...

    def by_key(self, search: KeySearch) -> Sequence[FoundMessage]:
        """What the brokers find that answer; `troubles` says why the others do not."""
        ...

    def by_message_id(self, msg_id: str, topic: str | None) -> Sequence[FoundMessage]:
        """The message of a broker's id. Raises ValueError where it is no such id."""
        ...

    def offsets_by_time(
        self, topic: str, time_ms: int, *, upper: bool, with_times: bool = True
    ) -> Sequence[FoundOffset]:
        """For each queue, the first offset not stored before the time; with `upper`, the last not stored after it.

        Without `with_times` the place may leave out the times of what it finds, which take a request each.
        """
        ...

    def groups(self) -> Collection[str]:
        """The names of all consumer groups."""
        ...

    def lag_looks(
        self, checkpoints: Sequence[str] = (), *, brokers: Collection[str] = (), with_bytes: bool = False
    ) -> LagLooks:
        """Looks at who is behind. `brokers` must be there, by name. The caller closes them before the place."""
        ...


def refuse_unknown_topic(place: Place, topic: str | None) -> None:
    """Raises CommandError for a topic that is not there."""
    if topic is None:
        return
    known = place.known_topics()
    if topic not in known:
        if names_several(topic):
            raise CommandError(f"there is no topic {topic}", "--topic takes one name")
        like = nearest(topic, [name for name in known if not place.is_system_topic(name)])
        raise CommandError(f"there is no topic {topic}", f"did you mean {like}?" if like else None)


def refuse_other_shape(wanted: TopicConfig, present: TopicConfig, where: str) -> None:
    """Raises CommandError for a topic that is there in another shape."""
    if shape_of(present) != shape_of(wanted):
        text = f"topic {wanted.topic} is there already{where}, with {shape_in_words(present)}"
        raise CommandError(text, "nothing was changed; spark-mq alter-topic changes topics")


def shape_in_words(config: TopicConfig) -> str:
    read_queues, write_queues, perm = shape_of(config)
    return f"{read_queues} read queues, {write_queues} write queues and perm {perm}"


def shape_of(config: TopicConfig) -> tuple[int, int, int]:
    """Read queues, write queues and perm."""
    return config.read_queue_count, config.write_queue_count, config.perm


def topic_entry(
    topic: str,
    broker_name: str,
    settings: tuple[int, int, int] | None,
    bounds: Mapping[int, tuple[int, int]],
) -> dict[str, Any]:
    """A topic at a broker, as `topics` prints it. `settings` are read queues, write queues and perm, `bounds` each queue's ends."""
    read_queues, write_queues, perm = (None, None, None) if settings is None else settings
    queues = [
        {"queue_id": queue_id, "min_offset": minimum, "max_offset": maximum, "count": maximum - minimum}
        for queue_id, (minimum, maximum) in bounds.items()
    ]
    return {
        "topic": topic,
        "broker_name": broker_name,
        "read_queue_nums": read_queues,
        "write_queue_nums": write_queues,
        "perm": perm,
        "queues": queues,
    }
