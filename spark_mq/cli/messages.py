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

from spark_mq.cli.message_lines import Format, Printer, Unreadable, printer_of
from spark_mq.cli.places import AsJson, FoundMessage, KeySearch, Place, QueueNumber, Topic, refuse_unknown_topic
from spark_mq.cli.stores import ReadPath, open_place
from spark_mq.command_options import NO_CLUSTER, Conf, Connection
from spark_mq.options import parse_time
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import (
    CommandError,
    OnProgress,
    UsageError,
    body_text,
    end_with,
    interrupt_on_signal,
    print_json,
    print_table,
    progress_bar,
    refuse_nothing,
    time_in_words,
)
from storage import Message
from storage.epoch_times import current_time_ms
from storage.errors import CorruptMessageError
from storage.names import is_retry_or_dead_letter_topic

JavaWords = Annotated[
    bool, typer.Option("--java", help="The fields and names of Apache's own tools, with digests, for comparing.")
]
_POLL_S = 0.5
_END_OF_TIME_MS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Which messages of each queue."""

    start: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", min=0, help="First queue offset; without it 0.")
    ] = None
    end: Annotated[int | None, typer.Option("--to", metavar="OFFSET", min=0, help="Queue offset to stop before.")] = (
        None
    )
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="The last N of each queue.")] = None
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="TIME", help="Not stored before: ms, ISO-8601 or -10m.")
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many lines.")] = None

    def check(self) -> None:
        """Raises UsageError for several beginnings."""
        if sum(value is not None for value in (self.start, self.last, self.from_time)) > 1:
            raise UsageError("give one of --from, --last and --from-time")


ALL_MESSAGES = Range()


def dump(
    path: ReadPath = None,
    topic: Topic = None,
    queue_id: QueueNumber = None,
    wanted_range: Range = ALL_MESSAGES,
    bodies: Annotated[bool, typer.Option("--bodies", help="The bodies too, decompressed.")] = False,
    form: Format = None,
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
    wanted_range.check()
    if form is not None and java:
        raise UsageError("give --format or --java")
    printer = printer_of(form)
    with open_place(path, conf, connection, java=java) as place:
        refuse_unknown_topic(place, topic)
        wanted = _Wanted(topic, queue_id, wanted_range, bodies=bodies or form is not None, every_topic=every_topic)
        wanted.look_up_time(place)
        _refuse_nothing_wanted(place, wanted, follow=follow)
        limit = wanted_range.limit
        if follow:
            with interrupt_on_signal(), suppress(KeyboardInterrupt):
                _print_lines(_lines(place, wanted, follow=True), printer, limit)
        else:
            total = sum(wanted.count(place, queue) for queue in wanted.queues(place))
            with progress_bar("reading", "messages") as progress:
                _print_lines(_lines(place, wanted), printer, limit, None if sys.stdout.isatty() else progress, total)


def _print_lines(
    lines: Iterator[dict[str, Any] | Unreadable],
    printer: Printer,
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
            printer.print(line)
        if progress is not None and number % 1_000 == 0:
            progress(number, total)
    if unreadable or printer.hidden:
        raise typer.Exit(1)


@dataclass(slots=True)
class _Wanted:
    """The user's selection."""

    topic: str | None
    queue_id: int | None
    range: Range
    bodies: bool
    every_topic: bool
    by_time: dict[QueueId, int] | None = None
    """Where each queue begins that was there when the time was looked up."""

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

    def look_up_time(self, place: Place) -> None:
        """Find the offsets of --from-time, once: what comes later is later."""
        if self.range.from_time is None:
            return
        time_ms = parse_time(self.range.from_time, "--from-time").at(current_time_ms())
        topics = dict.fromkeys(queue.topic for queue in self.queues(place))
        found = [each for topic in topics for each in place.offsets_by_time(topic, time_ms, upper=False)]
        self.by_time = {each.queue: each.queue_offset for each in found}

    def first(self, queue: QueueId, bounds: tuple[int, int]) -> int:
        """The first wanted offset of a queue that is looked at for the first time."""
        if self.range.last is not None:
            return max(bounds[0], bounds[1] - self.range.last)
        if self.by_time is not None:
            return self.by_time.get(queue, 0)
        return self.range.start or 0

    def count(self, place: Place, queue: QueueId) -> int:
        """Number of wanted offsets that the queue has now."""
        minimum, maximum = place.bounds(queue)
        end = maximum if self.range.end is None else min(maximum, self.range.end)
        return max(0, end - max(minimum, self.first(queue, (minimum, maximum))))


def _lines(place: Place, wanted: _Wanted, *, follow: bool = False) -> Iterator[dict[str, Any] | Unreadable]:
    done: dict[QueueId, int] = {}
    ends: dict[QueueId, int] = {}
    while True:
        for queue in wanted.queues(place):
            bounds = place.bounds(queue)
            maximum = bounds[1]
            if maximum < ends.get(queue, 0):
                again = wanted.range.start or 0
                typer.echo(
                    f"{queue} ended at {ends[queue]} and ends at {maximum}: its topic was deleted and made again, or its end was cut; "
                    f"its messages come from offset {again} on",
                    err=True,
                )
                done[queue] = again
            ends[queue] = maximum
            first = done[queue] if queue in done else wanted.first(queue, bounds)
            done[queue] = max(first, maximum)
            end = done[queue] if wanted.range.end is None else min(wanted.range.end, done[queue])
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
    start, end = wanted.range.start or 0, wanted.range.end
    if end is not None and end <= start:
        bounds = [place.bounds(queue) for queue in wanted.queues(place)]
        least = min((minimum for minimum, _ in bounds), default=0)
        most = max((maximum for _, maximum in bounds), default=0)
        raise UsageError(
            f"no offset is from {start} on and before {end}: --to must be greater than --from",
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
    conf: Conf = None,
    as_json: AsJson = False,
    java: JavaWords = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Find messages by key or by id.

    --key and --unique-key search the index; --msg-id names the place in the log. --json prints the lines of dump --bodies, which are
    input for `spark-mq produce --json`. Where a broker does not answer, the messages are those of the others, its error is on stderr,
    and the exit code is 1.
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
        errors = list(place.troubles.values())
        refuse_nothing(found, errors)
        if not found:
            refuse_unknown_topic(place, topic)
        if as_json or java:
            for one in found:
                print_json(place.describe(one, bodies=True))
        else:
            _print_messages(found, now_ms)
    end_with(errors)


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
