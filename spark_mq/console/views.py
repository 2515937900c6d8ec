"""What pages ask for, of stores and of a cluster alike: a Protocol, and the values that it gives.

Topics, queues, keys and groups come from the place that commands read (`spark_mq/cli/places.py`). A view adds what only pages show. It
is for one request: it is opened, asked, and closed before the page is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from spark_mq.cli.message_lines import Unreadable
from spark_mq.cli.places import FoundMessage, Place
from spark_mq.lag.figures import LagReport
from spark_mq.remoting.administration import ConsumerConnection
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import CommandError, UsageError
from storage import Message
from storage.batch.sink_progress import SinkStatus
from storage.names import nearest
from storage.tables.sink_notes import BatchNotes

PAGE_BYTES = 16 << 20
"""Records of one page: messages may have 4 MiB each."""
OFFSETS_LOOKED_AT = 100_000
"""By one search for tags; the page says where to go on."""
OPEN_TRANSACTIONS = 500
HALVES_LOOKED_AT = 20_000
TIMED_MESSAGES = 100
VIEWS_AT_A_TIME = 4
"""So many requests look at once: what they hold is bounded, and threads stay free for the login and the files of pages."""
LONGEST_WAIT_S = 10.0
"""For a view, and for the first look at who is behind."""
PAGE_WAIT_S = 10.0
"""For one broker, over all that a page asks it. What it has not given by then is missing on the page, which says so."""


class BrokerState(NamedTuple):
    """A broker, or a store, and its watermarks: texts and numbers by their names."""

    cluster: str | None
    broker_name: str
    broker_id: int | None
    role: str
    address: str
    """Where it listens, or the store's path."""
    version: str | None
    figures: Mapping[str, str | int | float | None]
    trouble: str | None = None
    """Why it did not answer, or what is wrong with it."""


class Page(NamedTuple):
    """The messages of one queue at the offsets [start, end), those that are there."""

    messages: list[Message | Unreadable]
    start: int
    end: int


class OpenTransaction(NamedTuple):
    """A half message without an outcome."""

    topic: str
    """The topic that it was sent to."""
    unique_key: str | None
    queue_offset: int
    """In the half topic."""
    born_time_ms: int
    checks: int
    """How often its producer was asked."""


class Transactions(NamedTuple):
    """The open transactions of one broker."""

    broker_name: str
    waiting: list[OpenTransaction]
    open_count: int
    """Of the halves that were looked at."""
    not_looked_at: int
    """Halves, and ends of halves, behind these: with some, an ended transaction may be among the open ones."""


class DelayLevel(NamedTuple):
    """A delay level and what waits in it."""

    level: int
    waiting: int
    overdue: int | None
    """Of these, how many should have been delivered; None where that is not known."""
    next_ms: int | None
    """When the next one is due; of a cluster, when the first one was stored."""


class TimedMessage(NamedTuple):
    """A message that waits in the timer."""

    due_ms: int
    topic: str | None
    unique_key: str | None
    msg_id: str


class Timers(NamedTuple):
    """What waits at one broker for its time."""

    broker_name: str
    levels: list[DelayLevel]
    timer: Mapping[str, str | int | None]
    """Figures of the timer, by their names."""
    timed: list[TimedMessage]
    """The next ones."""


class Sinks(NamedTuple):
    """What sinks have written to one store."""

    broker_name: str
    status: SinkStatus
    batches: BatchNotes


class View(Protocol):
    """A cluster or stores, as they are now. Calls raise the errors of `place`, and CommandError for what is not there."""

    @property
    def place(self) -> Place: ...

    @property
    def troubles(self) -> Mapping[str, Exception]:
        """Why what a broker has is missing in what was asked until now, by broker name. A page shows them."""
        ...

    @property
    def incomplete(self) -> Collection[str]:
        """The topics whose queues at these brokers are missing."""
        ...

    def brokers(self) -> list[BrokerState]: ...

    def newest_ms(self, queue: QueueId) -> int | None:
        """When the queue's newest message was stored; None if it has none."""
        ...

    def page(self, queue: QueueId, start: int, count: int) -> Page:
        """The messages at up to `count` offsets from `start` on; fewer of large ones: PAGE_BYTES, and the message that exceeds them."""
        ...

    def tagged(self, queue: QueueId, start: int, count: int, tags: str, offsets: int = OFFSETS_LOOKED_AT) -> Page:
        """Up to `count` messages from an offset on with one of the tags (`A || B`, `*`), fewer of large ones.

        It ends after so many offsets.
        """
        ...

    def by_message_id(self, msg_id: str) -> Sequence[FoundMessage]:
        """The message of a broker's id. Raises ValueError where it is no such id."""
        ...

    def here(self, topic: str) -> str:
        """A topic's name in a property of a message, as the pages have it: without the namespace."""
        ...

    def log_place(self, found: FoundMessage) -> str | None:
        """File of the log, and position in it, of a message; None where the files cannot be seen."""
        ...

    def members(self, group: str) -> ConsumerConnection | None:
        """The group's clients; None where none is online, or of stores."""
        ...

    def transactions(self) -> list[Transactions]: ...

    def timers(self) -> list[Timers]: ...

    def sinks(self) -> list[Sinks] | None:
        """None where sinks leave no traces that can be read: of a cluster, and of stores that are not local."""
        ...


class Views(Protocol):
    """Opens views. For several threads."""

    @property
    def name(self) -> str:
        """What the pages are about: a path, or the name servers."""
        ...

    @property
    def is_cluster(self) -> bool: ...

    def opened(self, wait_s: float | None = PAGE_WAIT_S) -> AbstractContextManager[View]:
        """A view of now. Each broker is waited for so long in all; None: as long as its requests wait. Stores answer at once."""
        ...

    def lags(self) -> LagReport:
        """Who is behind, with rates since the calls of the last minute."""
        ...

    def close(self) -> None: ...


def one_of(wanted: str, known: Mapping[str, Any] | Sequence[str] | set[str], what: str) -> str:
    """The name, if it is known. Raises NotThereError."""
    if wanted not in known:
        like = nearest(wanted, known)
        raise NotThereError(f"there is no {what} {wanted}", None if like is None else f"did you mean {like}?")
    return wanted


def raise_missing(view: View, broker_name: str | None = None) -> None:
    """Of what was not found: raises MissingError if it may be at a broker whose answer is missing; without a name, at any broker."""
    for name, error in view.troubles.items():
        if broker_name in (None, name):
            raise MissingError(name, error) from error


class BusyError(CommandError):
    """What the page needs is not to be had now."""

    def __init__(self, what: str = f"{VIEWS_AT_A_TIME} other pages are being made") -> None:
        super().__init__(what, "load the page again in a while")


class MissingError(CommandError):
    """What the page is about is at a broker that does not answer, or may be there."""

    def __init__(self, broker_name: str, error: Exception) -> None:
        super().__init__(f"what broker {broker_name} has cannot be shown: {error}")


class NotThereError(UsageError):
    """What a page is to show is not there."""
