"""The command lag: who is behind, as a table, JSON, CSV or a page. Its figures are those of `spark_mq/lag/figures.py`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from spark_mq.cli.pages import Sheet, print_page
from spark_mq.cli.places import AsJson, Brokers, Everything, Place, refuse_unknown_topic
from spark_mq.cli.stores import ReadPath, open_place
from spark_mq.cli.visible_text import shown_place
from spark_mq.client.errors import ClientError
from spark_mq.command_options import NO_CLUSTER, Conf, Connection
from spark_mq.lag.figures import GroupLag, LagReport, QueueLag, Reader
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import (
    CommandError,
    UsageError,
    console,
    end_with,
    first_of,
    interrupt_on_signal,
    print_csv,
    print_json,
    print_table,
    refuse_nothing,
    say,
    span_in_words,
    time_text,
    why_missing,
)
from storage.errors import StorageError
from storage.names import is_rocketmqs_group, nearest


class SortBy(StrEnum):
    """By which figure lines are sorted."""

    LAG = "lag"
    AGE = "age"
    NAME = "name"
    IN = "in"
    OUT = "out"
    CATCH_UP = "catch-up"


_SORT_KEYS: dict[SortBy, Callable[[Any], float | None]] = {
    SortBy.LAG: lambda line: line.lag,
    SortBy.AGE: lambda line: line.oldest_unread_ms,
    SortBy.IN: lambda line: line.in_per_second,
    SortBy.OUT: lambda line: line.out_per_second,
    SortBy.CATCH_UP: lambda line: line.catch_up_ms,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is printed, and how."""

    by_queue: Annotated[bool, typer.Option("--queues", help="A line for each queue, not for each group.")] = False
    sort: Annotated[
        SortBy, typer.Option("--sort", metavar="FIGURE", help="lag, age, in, out, catch-up (greatest first), or name.")
    ] = SortBy.LAG
    behind: Annotated[bool, typer.Option("--behind", help="Only lines with unread messages, or an unknown lag.")] = (
        False
    )
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for a spreadsheet.")] = False
    as_html: Annotated[bool, typer.Option("--html", help="Print a page, for a browser or a mail.")] = False


AS_A_TABLE = Shown()


def lag(
    path: ReadPath = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="One consumer group; without it all.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only the queues of this topic.")
    ] = None,
    checkpoints: Annotated[
        list[str] | None,
        typer.Option("--checkpoint", metavar="DIR", help="The checkpoint of a Spark query, which is a line, too."),
    ] = None,
    shown: Shown = AS_A_TABLE,
    fail_above: Annotated[
        int | None,
        typer.Option(
            "--fail-above",
            metavar="N",
            min=0,
            help="Exit code 1 where a group has more unread messages, or an unknown number of them.",
        ),
    ] = None,
    brokers: Brokers = None,
    every_group: Everything = False,
    watch: Annotated[
        float | None,
        typer.Option("--watch", metavar="SECONDS", min=0.1, help="Look again every so many seconds, until Ctrl-C."),
    ] = None,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Show which consumer groups are behind.

    A row has a group's unread messages over all its queues, the queue with most of them, the age of the oldest unread message, messages
    a second in and out, and the time until nothing is unread. An unknown value is a dash (null), never 0. Rates are those of the last
    minute, as the brokers count them; with --watch, and of stores, those between the looks.

    A queue in which a group has stored nothing is unknown, and is counted as such. A name server forgets a broker that is gone, and its
    queues with it: --broker names those that must be there. RocketMQ's own groups and topics, and the groups of
    Spark sinks, are left out.
    """
    if sum((as_json, shown.as_csv, shown.as_html)) > 1:
        raise UsageError("give one of --json, --csv and --html")
    if watch is not None and (shown.as_html or fail_above is not None):
        raise UsageError("--watch goes on until Ctrl-C: it takes no --html and no --fail-above")
    where = connection.name_server or path or ""
    with open_place(path, conf, connection) as place:
        refuse_unknown_topic(place, topic)
        with closing(place.lag_looks(checkpoints or (), brokers=brokers or (), with_bytes=shown.by_queue)) as looks:
            hidden: set[str] = set()

            def keep(reader: Reader, queue: QueueId) -> bool:
                is_shown = (
                    group is not None or every_group or reader.kind == "query" or not _is_own(place, reader, queue)
                )
                if not is_shown:
                    hidden.add(reader.name)
                return is_shown and topic in (None, queue.topic)

            def look() -> LagReport:
                hidden.clear()
                found = looks.look(None if group is None else [group], keep)
                _refuse_unknown_group(place, group, topic, found)
                return found

            if watch is not None:
                with interrupt_on_signal(), suppress(KeyboardInterrupt):
                    _print_again(look(), shown, where, as_json=as_json)
                    while True:
                        time.sleep(watch)
                        try:
                            report = look()
                        except (ClientError, StorageError) as error:  # until a later look
                            _say_missing([error])
                        else:
                            _print_again(report, shown, where, as_json=as_json)
                return
            report = look()
    refuse_nothing(report.groups, report.errors)
    _print(report, shown, where, as_json=as_json)
    if left_out := hidden - {each.reader.name for each in report.groups}:
        text = f"groups of RocketMQ itself and of Spark sinks are left out: {len(left_out)}. --all shows them"
        if not (as_json or shown.as_csv or shown.as_html):
            say(text)
    _end(report, fail_above)


def _is_own(place: Place, reader: Reader, queue: QueueId) -> bool:
    """Whether it is RocketMQ's, or a Spark sink's."""
    return is_rocketmqs_group(reader.name) or place.is_system_topic(queue.topic)


def _refuse_unknown_group(place: Place, group: str | None, topic: str | None, report: LagReport) -> None:
    if group is None or any(each.reader == Reader(group) for each in report.groups) or report.errors:
        return
    like = nearest(group, set(place.groups()) - {group})
    of_topic = "" if topic is None else f" in topic {topic}"
    raise CommandError(f"no offset of group {group} is stored{of_topic}", f"did you mean {like}?" if like else None)


def _end(report: LagReport, fail_above: int | None) -> None:
    """Say what went wrong, is too far behind, or is unknown and so may be too far. Raises typer.Exit(1) in these cases."""
    end_with(report.errors, [] if fail_above is None else list(_beyond(report, fail_above)))


def _say_missing(errors: Iterable[Exception]) -> None:
    for error in errors:
        typer.echo(why_missing(error), err=True)


def _beyond(report: LagReport, most: int) -> Iterator[str]:
    """What is not known to have at most so many unread messages. Nothing at all to check is not known to be right, either."""
    if not report.groups:
        yield "no group has stored an offset: no lag was checked"
    for each in report.groups:
        who = f"{each.reader.kind} {each.reader.name}"
        if each.lag is not None and each.lag > most:
            yield f"{who} has {each.lag:,} unread messages, more than {most:,}"
        if each.unknown_queues:
            of_queue = next(lag for lag in each.queues if lag.lag is None)
            others = f" and {each.unknown_queues - 1} more" if each.unknown_queues > 1 else ""
            yield f"the lag of {who} is unknown in {of_queue.queue}{others}: {_why_unknown(of_queue)}"


def _why_unknown(lag: QueueLag) -> str:
    if lag.broker_offset is None:
        return "the queue's end is not known"
    if lag.group_offset is None:
        return "no offset is stored"
    return f"the stored offset {lag.group_offset:,} is behind the queue's end {lag.broker_offset:,}"


# Lines


def _print_again(report: LagReport, shown: Shown, where: str, *, as_json: bool) -> None:
    if not (as_json or shown.as_csv):
        console().clear()  # does nothing but on a terminal
        say(str(time_text(report.time_ms)))
    _print(report, shown, where, as_json=as_json)
    _say_missing(report.errors)
    sys.stdout.flush()


def _print(report: LagReport, shown: Shown, where: str, *, as_json: bool) -> None:
    groups = sort_lines(report.groups, shown.sort, shown.behind)
    queues = sort_lines([queue for each in report.groups for queue in each.queues], shown.sort, shown.behind)
    if as_json or shown.as_csv:
        entries = [queue_entry(each) for each in queues] if shown.by_queue else [group_entry(each) for each in groups]
        if as_json:
            print_json(entries)
        else:
            print_csv(_QUEUE_COLUMNS if shown.by_queue else _GROUP_COLUMNS, [_flat(each) for each in entries])
        return
    if shown.as_html:
        sheet = queue_sheet(queues) if shown.by_queue else group_sheet(groups)
        troubles = list(map(why_missing, report.errors))
        print_page(
            "lag.html",
            title="Who is behind",
            place=shown_place(where),
            time=time_text(report.time_ms),
            troubles=troubles,
            sheet=sheet,
        )
    elif shown.by_queue:
        print_table(QUEUE_HEADINGS, [queue_row(each) for each in queues])
    else:
        rows = [group_row(each) for each in groups]
        print_table(GROUP_HEADINGS, [*rows, total_row(groups)] if len(rows) > 1 else rows)


def sort_lines(lines: Sequence[Any], sort: SortBy, behind: bool) -> list[Any]:
    """Greatest first, unknown last, then by name; `behind` leaves those out in which nothing is unread."""
    named = sorted(lines, key=lambda line: (line.reader, getattr(line, "queue", ())))
    if behind:
        named = [line for line in named if line.lag != 0]
    if (key := _SORT_KEYS.get(sort)) is None:
        return named
    return sorted(named, key=lambda line: -math.inf if (value := key(line)) is None else value, reverse=True)


GROUP_HEADINGS = "group", "topics", "queues", "unread", "worst queue", "oldest unread", "in/s", "out/s", "catches up in"
QUEUE_HEADINGS = (
    *("group", "topic", "broker", "queue", "group offset", "end", "unread", "bytes", "oldest unread"),
    *("in/s", "out/s", "catches up in"),
)


class GroupRow(NamedTuple):
    """A group as people read it, by GROUP_HEADINGS."""

    group: str
    topics: str | None
    queues: str
    unread: int | None
    worst_queue: str | None
    oldest_unread: str | None
    in_per_second: str | None
    out_per_second: str | None
    catches_up_in: str | None


class QueueRow(NamedTuple):
    """A queue as people read it, by QUEUE_HEADINGS."""

    group: str
    topic: str
    broker: str
    queue: int
    group_offset: int | None
    end: int | None
    unread: int | None
    bytes: int | None
    oldest_unread: str | None
    in_per_second: str | None
    out_per_second: str | None
    catches_up_in: str | None


def group_row(line: GroupLag) -> GroupRow:
    """What a table says of a group."""
    worst = None if line.worst is None else f"{line.worst.queue}: {line.worst.lag:,}"
    queues = f"{len(line.queues)}" + (f" ({line.unknown_queues} unknown)" if line.unknown_queues else "")
    return GroupRow(_named(line.reader), first_of(line.topics), queues, line.lag, worst, *_times(line))


def queue_row(line: QueueLag) -> QueueRow:
    """What a table says of a queue."""
    return QueueRow(
        _named(line.reader), *line.queue, line.group_offset, line.broker_offset, line.lag, line.bytes, *_times(line)
    )


def total_row(lines: Sequence[GroupLag]) -> GroupRow:
    """Over all groups: sums, and the greatest age and time."""

    def known(values: Sequence[float | None]) -> list[float]:
        return [value for value in values if value is not None]

    lags, ages = known([each.lag for each in lines]), known([each.oldest_unread_ms for each in lines])
    rates = [known([each.in_per_second for each in lines]), known([each.out_per_second for each in lines])]
    longest = max(known([each.catch_up_ms for each in lines]), default=None)
    put, got = (f"{sum(each):,.1f}" if each else None for each in rates)
    queues = f"{sum(len(each.queues) for each in lines)}"
    unread, age = int(sum(lags)) if lags else None, _span(max(ages, default=None))
    return GroupRow(f"all {len(lines)}", None, queues, unread, None, age, put, got, _span(longest))


def group_sheet(lines: Sequence[GroupLag]) -> Sheet:
    """Groups as a table of a page."""
    total = total_row(lines) if len(lines) > 1 else None
    return Sheet(GROUP_HEADINGS, [group_row(line) for line in lines], "no group has stored an offset", total)


def queue_sheet(lines: Sequence[QueueLag]) -> Sheet:
    """Queues as a table of a page."""
    return Sheet(QUEUE_HEADINGS, [queue_row(line) for line in lines], "no group has stored an offset")


def _named(reader: Reader) -> str:
    return reader.name if reader.kind == "group" else f"{reader.name} (Spark query)"


def _times(line: GroupLag | QueueLag) -> tuple[str | None, str | None, str | None, str | None]:
    put, got = (None if rate is None else f"{rate:,.1f}" for rate in (line.in_per_second, line.out_per_second))
    return _span(line.oldest_unread_ms), put, got, _span(line.catch_up_ms)


def _span(span_ms: float | None) -> str | None:
    """Nothing where nothing is unread."""
    return "" if span_ms == 0 else span_in_words(span_ms)


# Objects

_GROUP_COLUMNS = (
    *(
        "group",
        "kind",
        "topics",
        "queues",
        "unknown_queues",
        "lag",
        "worst_topic",
        "worst_broker_name",
        "worst_queue_id",
    ),
    *("worst_lag", "oldest_unread_ms", "in_per_second", "out_per_second", "catch_up_ms"),
)
_QUEUE_COLUMNS = (
    *("group", "kind", "topic", "broker_name", "queue_id", "group_offset", "broker_offset", "lag", "bytes"),
    *("oldest_unread_ms", "in_per_second", "out_per_second", "catch_up_ms"),
)


def group_entry(line: GroupLag) -> dict[str, Any]:
    """A group as an object. `catch_up_ms` is null, too, where the group reads no faster than messages come."""
    worst = None
    if line.worst is not None:
        topic, broker_name, queue_id = line.worst.queue
        worst = {"topic": topic, "broker_name": broker_name, "queue_id": queue_id, "lag": line.worst.lag}
    return {
        "group": line.reader.name,
        "kind": line.reader.kind,
        "topics": list(line.topics),
        "queues": len(line.queues),
        "unknown_queues": line.unknown_queues,
        "lag": line.lag,
        "worst": worst,
        **_times_entry(line),
    }


def queue_entry(line: QueueLag) -> dict[str, Any]:
    """A queue as an object."""
    return {
        "group": line.reader.name,
        "kind": line.reader.kind,
        "topic": line.queue.topic,
        "broker_name": line.queue.broker_name,
        "queue_id": line.queue.queue_id,
        "group_offset": line.group_offset,
        "broker_offset": line.broker_offset,
        "lag": line.lag,
        "bytes": line.bytes,
        **_times_entry(line),
    }


def _times_entry(line: GroupLag | QueueLag) -> dict[str, Any]:
    never = line.catch_up_ms is None or math.isinf(line.catch_up_ms)
    return {
        "oldest_unread_ms": line.oldest_unread_ms,
        "in_per_second": _rounded(line.in_per_second),
        "out_per_second": _rounded(line.out_per_second),
        "catch_up_ms": None if never else round(line.catch_up_ms or 0),
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _flat(entry: Mapping[str, Any]) -> list[Any]:
    """The entry's cells, in the order of its columns."""
    cells: list[Any] = []
    for name, value in entry.items():
        if name == "worst":
            cells += [None] * 4 if value is None else list(value.values())
        else:
            cells.append(" ".join(value) if isinstance(value, list) else value)
    return cells
