"""Commands that print messages: dump, query."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any

import typer

from spark_mq.cli.message_lines import Unreadable
from spark_mq.cli.output import CommandError, UsageError, body_text, print_json, print_table, time_in_words
from spark_mq.cli.places import AsJson, FoundMessage, KeySearch, Place, QueueNumber, Topic, refuse_unknown_topic
from spark_mq.cli.stores import ReadPath, open_place
from spark_mq.command_options import NO_CLUSTER, Conf, Connection
from spark_mq.options import parse_time
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import OnProgress, interrupt_on_signal, progress_bar
from storage import Message
from storage.epoch_times import current_time_ms
from storage.errors import CorruptMessageError
from storage.names import is_retry_or_dead_letter_topic

JavaWords = Annotated[
    bool, typer.Option("--java", help="The fields and names of Apache's own tools, with digests, for comparing.")
]
_POLL_S = 0.5
_END_OF_TIME_MS = 2**63 - 1


def dump(
    path: ReadPath = None,
    topic: Topic = None,
    queue_id: QueueNumber = None,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="First queue offset.")] = 0,
    end: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", min=0, help="Queue offset to stop before.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many lines.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="The bodies too, decompressed.")] = False,
    every_topic: Annotated[
        bool, typer.Option("--all", help="RocketMQ's own topics too, and consumer groups' retries and dead letters.")
    ] = False,
    java: JavaWords = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new messages until Ctrl-C.")] = False,
    conf: Conf = None,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Print messages, queue by queue.

    A line is a JSON object with the columns of the Spark source. Without --topic the messages of all users' topics are printed. With
    --bodies the lines are input for `spark-mq produce --json`: a body that is not UTF-8 text is body_base64. A queue entry that leads
    to no message is a line on stderr, and the exit code is 1.
    """
    with open_place(path, conf, connection, java=java) as place:
        refuse_unknown_topic(place, topic)
        wanted = _Wanted(topic, queue_id, start, end, bodies=bodies, every_topic=every_topic)
        _refuse_nothing_wanted(place, wanted, follow=follow)
        if follow:
            with interrupt_on_signal(), suppress(KeyboardInterrupt):
                _print_lines(_lines(place, wanted, follow=True), limit)
        else:
            bounds = map(place.bounds, wanted.queues(place))
            total = sum(maximum - minimum for minimum, maximum in bounds)
            with progress_bar("reading", "messages") as progress:
                _print_lines(_lines(place, wanted), limit, None if sys.stdout.isatty() else progress, total)


def _print_lines(
    lines: Iterator[dict[str, Any] | Unreadable],
    limit: int | None,
    progress: OnProgress | None = None,
    total: int = 0,
) -> None:
    """Raises typer.Exit(1) if some lines were no message."""
    unreadable = 0
    total = total if limit is None else min(total, limit)
    for number, line in enumerate(islice(lines, limit)):
        if isinstance(line, Unreadable):
            unreadable += 1
            typer.echo(f"no message: {line.describe()}", err=True)
        else:
            print_json(line)
        if progress is not None and number % 1_000 == 0:
            progress(number, total)
    if unreadable:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The user's selection."""

    topic: str | None
    queue_id: int | None
    start: int
    end: int | None
    bodies: bool
    every_topic: bool

    def queues(self, place: Place) -> list[QueueId]:
        """Queues of a named topic that this package cannot read are refused."""
        return [
            queue
            for queue in place.queues(self.topic)
            if self._takes(place, queue.topic) and (self.queue_id is None or self.queue_id == queue.queue_id)
        ]

    def _takes(self, place: Place, topic: str) -> bool:
        if self.topic is not None or self.every_topic:
            return True
        return not (place.is_system_topic(topic) or is_retry_or_dead_letter_topic(topic))


def _lines(place: Place, wanted: _Wanted, *, follow: bool = False) -> Iterator[dict[str, Any] | Unreadable]:
    done: dict[QueueId, int] = {}
    ends: dict[QueueId, int] = {}
    while True:
        for queue in wanted.queues(place):
            maximum = place.bounds(queue)[1]
            if maximum < ends.get(queue, 0):
                typer.echo(
                    f"{queue} ended at {ends[queue]} and ends at {maximum}: its topic was deleted and made again, or its end was cut; "
                    f"its messages come from offset {wanted.start} on",
                    err=True,
                )
                del done[queue]
            ends[queue] = maximum
            first = done.get(queue, wanted.start)
            done[queue] = max(first, maximum)
            end = done[queue] if wanted.end is None else min(wanted.end, done[queue])
            yield from place.lines(queue, first, end, bodies=wanted.bodies)
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(_POLL_S)
        place.refresh()


def _refuse_nothing_wanted(place: Place, wanted: _Wanted, *, follow: bool) -> None:
    """Raises CommandError, with what there is, for a queue that no topic has and for offsets that no queue can have.

    A queue without messages is there if the topic's settings count it. With --follow and no topic any queue may come later.
    """
    if wanted.queue_id is not None:
        there = {queue.queue_id for queue in replace(wanted, queue_id=None).queues(place)}
        there |= set() if wanted.topic is None else set(range(place.queue_count(wanted.topic)))
        if wanted.queue_id not in there and (wanted.topic is not None or not follow):
            whose = "any topic" if wanted.topic is None else f"topic {wanted.topic}"
            hint = f"the queues are {min(there)} to {max(there)}" if there else "no queue is there"
            raise CommandError(f"there is no queue {wanted.queue_id} of {whose}", hint)
    if wanted.end is not None and wanted.end <= wanted.start:
        bounds = [place.bounds(queue) for queue in wanted.queues(place)]
        least = min((minimum for minimum, _ in bounds), default=0)
        most = max((maximum for _, maximum in bounds), default=0)
        raise UsageError(
            f"no offset is from {wanted.start} on and before {wanted.end}: --to must be greater than --from",
            f"the queues hold offsets {least} to {most - 1}" if most > least else "the queues hold no message",
        )


def query(
    path: ReadPath = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The messages' topic.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="One of a message's keys.")] = None,
    unique_key: Annotated[
        str | None, typer.Option("--unique-key", metavar="KEY", help="The id that a client gave the message.")
    ] = None,
    msg_id: Annotated[
        str | None, typer.Option("--msg-id", metavar="ID", help="The id that the broker gave it: its place.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Not stored before: ms, ISO-8601 or -10m.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Not stored after: ms, ISO-8601 or -10m.")
    ] = None,
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1, help="The newest so many, of each store.")] = 32,
    bodies: Annotated[bool, typer.Option("--bodies", help="With --json: the bodies too.")] = False,
    conf: Conf = None,
    as_json: AsJson = False,
    java: JavaWords = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Find messages by key or by id.

    --key and --unique-key search the index; --msg-id names the place in the log. --json prints the lines of dump.
    """
    if sum(value is not None for value in (key, unique_key, msg_id)) != 1:
        raise UsageError("give exactly one of --key, --unique-key and --msg-id")
    if msg_id is None and topic is None:
        raise UsageError("give --topic: the index holds topic and key together")
    now_ms = current_time_ms()
    begin_ms = parse_time(begin, "--from").at(now_ms) if begin is not None else 0
    end_ms = parse_time(end, "--to").at(now_ms) if end is not None else _END_OF_TIME_MS
    found: Sequence[FoundMessage]
    with open_place(path, conf, connection, java=java) as place:
        if msg_id is not None:
            found = _by_message_id(place, msg_id, topic)
        else:
            search = KeySearch(topic or "", key or unique_key or "", key is None, begin_ms, end_ms, maximum)
            found = place.by_key(search)
        if not found:
            refuse_unknown_topic(place, topic)
        if as_json or java:
            print_json([place.describe(one, bodies=bodies) for one in found])
        else:
            _print_messages(found, now_ms)


def _by_message_id(place: Place, msg_id: str, topic: str | None) -> Sequence[FoundMessage]:
    try:
        return place.by_message_id(msg_id, topic)
    except ValueError as error:
        raise UsageError(str(error), "an id that a client gave goes with --unique-key") from error


def _body_text(message: Message) -> str:
    try:
        return body_text(message.plain_body)
    except CorruptMessageError as error:
        return f"corrupt: {error.reason}"


def _print_messages(found: Sequence[FoundMessage], now_ms: int) -> None:
    rows = [
        (
            message.topic,
            broker_name,
            message.queue_id,
            message.queue_offset,
            time_in_words(message.store_time_ms, now_ms),
            message.tags,
            " ".join(message.keys),
            message.unique_key,
            message.msg_id,
            _body_text(message),
        )
        for broker_name, message in found
    ]
    columns = "topic", "broker", "queue", "offset", "stored", "tags", "keys", "unique key", "message id", "body"
    print_table(columns, rows, title=f"{len(rows)} message(s)")
