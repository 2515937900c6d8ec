"""The command report: one page about a store or a cluster, for a mail or a ticket."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Annotated, Any, NamedTuple

import typer

from jobs.verify_store import verify_store
from spark_mq.cli.lag import SortBy, group_sheet, queue_sheet, sort_lines
from spark_mq.cli.message_lines import Unreadable
from spark_mq.cli.pages import Sheet, render_page
from spark_mq.cli.places import Everything, Place
from spark_mq.cli.stores import ReadPath, StorePlace, open_place
from spark_mq.cli.visible_text import shown_place
from spark_mq.client.errors import NoBrokerError
from spark_mq.command_options import NO_CLUSTER, Conf, Connection
from spark_mq.lag.figures import LagReport, Reader
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import CommandError, progress_bar, time_in_words, time_text, why_missing
from storage import MessageStore
from storage.epoch_times import current_time_ms
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import file_system_of
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_rocketmqs_group
from storage.recovery.quarantine import list_quarantines

DAY_MS = 86_400_000
LETTERS_READ = 1_000
"""Of each queue of dead letters, the newest ones."""
WORST_QUEUES = 20
DAYS_A_TABLE = 8
"""With the column for what is older. A page of paper is so wide: what stands beside it is not printed."""

Days = Annotated[
    int, typer.Option("--days", metavar="N", min=1, max=31, help="How many days have a column of their own.")
]


def report(
    path: ReadPath = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write, not standard output.")
    ] = None,
    days: Days = 7,
    compare: Annotated[
        bool,
        typer.Option(
            "--verify", help="Compare log, queues and index of a store, as verify does, and show what differs."
        ),
    ] = False,
    every_topic: Everything = False,
    conf: Conf = None,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Write a page about a store or a cluster.

    The page is one HTML file without a script, for a mail, a ticket or a printer. It has messages and sizes by topic and day (UTC),
    groups that are behind, dead letters by group, origin and number of tries, and the damage of stores. Brokers do not tell sizes. A
    broker that does not answer is named in the page and on stderr; the figures are those of the others. The exit code is then 1, as it
    is for damage.
    """
    if compare and connection.is_given:
        raise CommandError("--verify compares the files of stores: give PATH, not --name-server")
    now_ms = current_time_ms()
    with open_place(path, conf, connection) as place, progress_bar("report") as progress:
        own = (lambda _: False) if every_topic else place.is_system_topic
        found = [entry for entry in place.known_entries() if not own(entry["topic"])]
        sizes = topic_sizes(place, found, midnights(now_ms, days), progress)
        lag = _lag(place, own)
        letters, unreadable = dead_letters(place, found)
        troubles = list(dict.fromkeys([*map(why_missing, [*place.troubles.values(), *lag.errors]), *unreadable]))
        damage = store_damage(place.stores, conf, compare=compare) if isinstance(place, StorePlace) else []
        brokers = _brokers(connection, troubles)
    page = render_page(
        "report.html",
        title="Report on RocketMQ" if connection.is_given else "Report on a RocketMQ store",
        place=shown_place(connection.name_server or path or ""),
        time=time_text(now_ms),
        troubles=troubles,
        sizes=size_sheet(sizes, now_ms),
        by_day=day_sheets(sizes, midnights(now_ms, days)),
        groups=group_sheet(sort_lines(lag.groups, SortBy.LAG, False)),
        queues=queue_sheet(
            sort_lines([each for one in lag.groups for each in one.queues], SortBy.LAG, True)[:WORST_QUEUES]
        ),
        letters=letter_sheet(letters, now_ms),
        letters_read=LETTERS_READ,
        damage=Sheet(("store", "what", "where"), damage, "none was found"),
        brokers=brokers,
        is_store=not connection.is_given,
        is_compared=compare,
    )
    if output is None:
        sys.stdout.write(page)
    else:
        try:
            LocalFileSystem().replace(output, page.encode())
        except OSError as error:
            raise CommandError(f"the page cannot be written: {error}") from error
        typer.echo(f"wrote {output}", err=True)
    for text in troubles:
        typer.echo(text, err=True)
    if damage:
        typer.echo(f"the page shows damage: {len(damage)}", err=True)
    if troubles or damage:
        raise typer.Exit(1)


def midnights(now_ms: int, days: int) -> list[int]:
    """When the last days begin, in UTC, today's as the last one."""
    today_ms = now_ms - now_ms % DAY_MS
    return [today_ms - DAY_MS * before for before in reversed(range(days))]


def _brokers(connection: Connection, troubles: list[str]) -> Sheet:
    """The brokers of a cluster; a broker that does not answer is a trouble, too."""
    if not connection.is_given:
        return Sheet((), ())
    from spark_mq.cli.cluster import BROKER_HEADINGS, broker_lines, broker_row  # a store needs no client

    lines, errors = broker_lines(connection.settings())
    troubles += [text for text in map(why_missing, errors) if text not in troubles]
    return Sheet(BROKER_HEADINGS, [broker_row(line) for line in lines], "no broker")


# Topics


class DaySize(NamedTuple):
    """What a topic got in one day; the bytes of a broker's messages are not known."""

    messages: int
    bytes: int | None


class TopicSize(NamedTuple):
    """A topic over its brokers: all that its queues hold, before the first of the days and in each of them."""

    topic: str
    queues: int
    messages: int
    bytes: int | None
    newest_ms: int | None
    days: tuple[DaySize, ...]
    """The first one is everything before the days."""


def topic_sizes(
    place: Place,
    entries: Sequence[Mapping[str, Any]],
    starts_ms: Sequence[int],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[TopicSize]:
    """The greatest first. `starts_ms` are the days' beginnings."""
    queues: dict[str, list[QueueId]] = {}
    for entry in entries:
        of_topic = queues.setdefault(entry["topic"], [])
        of_topic += [QueueId(entry["topic"], entry["broker_name"], queue["queue_id"]) for queue in entry["queues"]]
    found = []
    for number, (topic, of_topic) in enumerate(sorted(queues.items())):
        progress(number, len(queues))
        found.append(_size_of(place, topic, of_topic, starts_ms))
    return sorted(found, key=lambda size: (-(size.bytes or 0), -size.messages, size.topic))


def _size_of(place: Place, topic: str, queues: Sequence[QueueId], starts_ms: Sequence[int]) -> TopicSize:
    bounds = {queue: place.bounds(queue) for queue in queues}
    held = {queue: each for queue, each in bounds.items() if each[0] < each[1]}
    newest_ms = max((time_ms for queue in held if (time_ms := place.newest_ms(queue)) is not None), default=None)
    cuts: list[dict[QueueId, int]] = []
    for start_ms in starts_ms:
        if newest_ms is None or newest_ms < start_ms:  # nothing came since
            cuts.append({queue: maximum for queue, (_, maximum) in held.items()})
            continue
        found = place.offsets_by_time(topic, start_ms, upper=False, with_times=False)
        cuts.append({each.queue: each.queue_offset for each in found})
    days = [DaySize(0, 0)] * (len(starts_ms) + 1)
    for queue, (minimum, maximum) in held.items():
        inner = [min(max(cut.get(queue, minimum), minimum), maximum) for cut in cuts]
        inner = list(accumulate(inner, max))  # a clock may have been set back
        edges = [minimum, *inner, maximum]
        for number, (start, end) in enumerate(pairwise(edges)):
            days[number] = _added(days[number], DaySize(end - start, place.size_between(queue, start, end)))
    sizes = [each.bytes for each in days]
    return TopicSize(
        topic,
        len(queues),
        sum(each.messages for each in days),
        None if None in sizes else sum(size or 0 for size in sizes),
        newest_ms,
        tuple(days),
    )


def _added(one: DaySize, other: DaySize) -> DaySize:
    size = None if one.bytes is None or other.bytes is None else one.bytes + other.bytes
    return DaySize(one.messages + other.messages, size)


def size_sheet(sizes: Sequence[TopicSize], now_ms: int) -> Sheet:
    """A line a topic, and the sums."""
    rows = [
        (each.topic, each.queues, each.messages, bytes_in_words(each.bytes), time_in_words(each.newest_ms, now_ms))
        for each in sizes
    ]
    known = [each.bytes for each in sizes if each.bytes is not None]
    total = f"all {len(sizes)}", sum(each.queues for each in sizes), sum(each.messages for each in sizes)
    last = bytes_in_words(sum(known)) if known else None
    return Sheet(("topic", "queues", "messages", "size", "newest"), rows, "no topic", (*total, last, None))


def day_sheets(sizes: Sequence[TopicSize], starts_ms: Sequence[int]) -> list[Sheet]:
    """Messages, and their sizes, of each topic by day: a table for each DAYS_A_TABLE days with messages."""
    headings = ["before", *(f"{datetime.fromtimestamp(ms / 1_000, UTC):%m-%d}" for ms in starts_ms)]
    sheets = []
    for first in range(0, len(headings), DAYS_A_TABLE):
        part = slice(first, first + DAYS_A_TABLE)
        some = [each for each in sizes if any(day.messages for day in each.days[part])]
        if some:
            rows = [(each.topic, *map(_day_text, each.days[part])) for each in some]
            sheets.append(Sheet(["topic", *headings[part]], rows))
    return sheets or [Sheet((), (), "no message")]


def _day_text(day: DaySize) -> str:
    """A size is not torn from its unit where a narrow page folds the text."""
    if not day.messages:
        return ""
    size = f"{bytes_in_words(day.bytes)}".replace(" ", "\N{NO-BREAK SPACE}")
    return f"{day.messages:,}" if day.bytes is None else f"{day.messages:,} · {size}"


def bytes_in_words(size: int | None) -> str | None:
    """The size in the largest unit that it reaches, with one decimal."""
    if size is None:
        return None
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1_024 or unit == "TiB":
            break
        value /= 1_024
    return f"{size} B" if unit == "B" else f"{value:,.1f} {unit}"


# Readers


def _lag(place: Place, own: Callable[[str], bool]) -> LagReport:
    """Who is behind."""

    def keep(reader: Reader, queue: QueueId) -> bool:
        return not (is_rocketmqs_group(reader.name) or own(queue.topic))

    with closing(place.lag_looks()) as looks:
        try:
            return looks.look(keep=keep)
        except NoBrokerError as error:  # a report says so, too
            return LagReport(current_time_ms(), (), (error,))


# Dead letters


class LetterKind(NamedTuple):
    """Dead letters that are alike. `tries` is how often the group had failed on them when it gave up; 0: it refused them at once."""

    group: str
    origin_topic: str
    tries: int


class Letters(NamedTuple):
    """Dead letters of one kind. Times are those when they became such."""

    messages: int
    oldest_ms: int
    newest_ms: int


def dead_letters(place: Place, entries: Sequence[Mapping[str, Any]]) -> tuple[dict[LetterKind, Letters], list[str]]:
    """The newest dead letters of each group, by kind; and those that cannot be read, a line a queue."""
    found: dict[LetterKind, Letters] = {}
    unreadable: dict[QueueId, list[Unreadable]] = {}
    topics = sorted({entry["topic"] for entry in entries if entry["topic"].startswith(DEAD_LETTER_PREFIX)})
    for queue in (queue for topic in topics for queue in place.queues(topic)):
        minimum, maximum = place.bounds(queue)
        for line in place.lines(queue, max(minimum, maximum - LETTERS_READ), maximum, bodies=False):
            if isinstance(line, Unreadable):
                unreadable.setdefault(queue, []).append(line)
                continue
            kind = _kind(queue.topic.removeprefix(DEAD_LETTER_PREFIX), line)
            time_ms = line["store_timestamp"]
            known = found.get(kind, Letters(0, time_ms, time_ms))
            found[kind] = Letters(known.messages + 1, min(known.oldest_ms, time_ms), max(known.newest_ms, time_ms))
    texts = [
        f"{len(each)} dead letters cannot be read, the first: {each[0].describe()}" for each in unreadable.values()
    ]
    return found, texts


def _kind(group: str, line: Mapping[str, Any]) -> LetterKind:
    properties = line["properties"]
    origin = properties.get("RETRY_TOPIC") or properties.get("DLQ_ORIGIN_TOPIC") or RETRY_PREFIX + group
    return LetterKind(group, origin, line["reconsume_times"])


def letter_sheet(letters: Mapping[LetterKind, Letters], now_ms: int) -> Sheet:
    """A line a kind, the most first."""
    rows = [
        (
            *(kind.group, kind.origin_topic, "refused at once" if not kind.tries else f"failed {kind.tries} times"),
            *(each.messages, time_in_words(each.oldest_ms, now_ms), time_in_words(each.newest_ms, now_ms)),
        )
        for kind, each in sorted(letters.items(), key=lambda item: (-item[1].messages, item[0]))
    ]
    total = Counter(kind.group for kind in letters)
    sums = (f"all {len(total)}", None, None, sum(each.messages for each in letters.values()), None, None)
    return Sheet(("group", "from topic", "reason", "messages", "oldest", "newest"), rows, "no dead letter", sums)


# Damage


def store_damage(stores: Mapping[str, MessageStore], conf: str | None, *, compare: bool) -> list[tuple[str, str, str]]:
    """What the opening has found, what recoveries have cut, and what differs: store, what, where."""
    found = []
    for store in stores.values():
        plan, root = store.plan, store.root
        if plan.damage is not None:
            found.append((root, "damaged log", plan.damage.describe()))
        found += [(root, "missing files of the log", gap.error().describe()) for gap in plan.gaps]
        for each in list_quarantines(file_system_of(root), root):
            what = f"{each.intact_records} intact records were cut: {each.reason}"
            found.append((root, f"cut by a recovery at {time_text(each.made_ms)}", f"{what} ({each.directory})"))
        if compare:
            differing = verify_store(root, conf=conf).findings
            found += [
                (root, f"{each.kind.replace('_', ' ')} ({each.count:,})", f"{each.where}: {each.example}")
                for each in differing
            ]
    return found
