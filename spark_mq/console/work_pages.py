"""Pages about the work that is done with messages: brokers, groups, dead letters, transactions, timers, sinks, the archive."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from jobs.replay_dead_letters import LIMIT, Replay
from spark_mq.cli.lag import GROUP_HEADINGS, QUEUE_HEADINGS, group_row, queue_row
from spark_mq.conditions import SparkMqError
from spark_mq.console.pages import Asked, Console, console_of, link, page
from spark_mq.console.replays import PREVIEW_LINES, audit_rows
from spark_mq.console.views import NotThereError, raise_missing
from spark_mq.lag.figures import GroupLag, Reader
from spark_mq.remoting.administration import ConsumerConnection
from spark_mq.replay import TARGETS
from spark_mq.source.archive_table import ArchiveTable, message_rows
from spark_mq.terminal import CommandError, UsageError
from storage.names import (
    DEAD_LETTER_PREFIX,
    dead_letter_topic,
    is_rocketmqs_group,
    retry_topic,
    validate_group,
)

_LONGEST_FORM = 64 << 10


def overview(request: Request) -> Response:
    """The brokers or stores, with their watermarks."""
    with console_of(request).views.opened() as view:
        brokers = view.brokers()
    return page(request, "overview.html", brokers=brokers)


# Groups


def groups(request: Request) -> Response:
    """Who is behind: consumer groups, and Spark queries by their checkpoints."""
    shows_all = "all" in Asked.of(request)
    report = console_of(request).samples.report()
    shown = [each for each in report.groups if shows_all or not _is_rocketmqs(each.reader)]
    shown.sort(key=lambda each: (-(each.lag or 0), each.reader))
    return page(
        request,
        "groups.html",
        report=report,
        headings=GROUP_HEADINGS,
        groups=[(each, group_row(each)) for each in shown],
        hidden=len(report.groups) - len(shown),
        shows_all=shows_all,
    )


def _is_rocketmqs(reader: Reader) -> bool:
    return reader.kind == "group" and is_rocketmqs_group(reader.name)


def group(request: Request) -> Response:
    """One group: its queues, its clients, its lag over time."""
    console, reader = console_of(request), _reader(Asked.of(request))
    report = console.samples.report()
    found = next((each for each in report.groups if each.reader == reader), None)
    members: ConsumerConnection | None = None
    with console.views.opened() as view:
        if reader.kind == "group":
            members = view.members(reader.name)
            if found is None and members is None and reader.name not in view.place.groups():
                raise_missing(view)
                raise NotThereError(f"there is no group {reader.name}, or no offset of it is stored")
        topics = set(view.place.known_topics())
    own = [name for name in (retry_topic(reader.name), dead_letter_topic(reader.name)) if name in topics]
    lag = found or _nothing(reader)
    return page(
        request,
        "group.html",
        reader=reader,
        errors=report.errors,
        lag=lag,
        headings=QUEUE_HEADINGS,
        queues=[queue_row(each) for each in lag.queues],
        members=members,
        missing=view.troubles,
        own=own,
        topics=topics,
    )


def _nothing(reader: Reader) -> GroupLag:
    """Of a group without offsets."""
    return GroupLag(reader, (), (), 0, None, None, None, None, None, None, None)


def _reader(asked: Asked) -> Reader:
    return Reader(asked.required("name"), "query" if asked.text("kind") == "query" else "group")


def samples(request: Request) -> Response:
    """What a group's plot shows, as JSON."""
    return JSONResponse(console_of(request).samples.series(_reader(Asked.of(request))))


# Dead letters


class DeadLetters(NamedTuple):
    """The dead letters of a group."""

    group: str
    topic: str
    messages: int


def dead_letters(request: Request) -> Response:
    """The groups with dead letters; or those of one group, and the audit."""
    return _dead_letters(request, Asked.of(request), None)


def _dead_letters(request: Request, asked: Asked, preview: list[str] | None) -> Response:
    console = console_of(request)
    with console.views.opened() as view:
        found: dict[str, int] = {}
        for queue in view.place.queues(None):
            if queue.topic.startswith(DEAD_LETTER_PREFIX):
                minimum, maximum = view.place.bounds(queue)
                found[queue.topic] = found.get(queue.topic, 0) + maximum - minimum
    letters = [DeadLetters(topic.removeprefix(DEAD_LETTER_PREFIX), topic, count) for topic, count in found.items()]
    name = asked.text("group")
    if name is None:
        return page(request, "dead_letters.html", letters=sorted(letters), missing=view.troubles)
    of_group = next((each for each in letters if each.group == name), None)
    if of_group is None:
        raise_missing(view)
        raise NotThereError(f"group {name} has no dead letters")
    audit, audit_trouble = _audit(console, name)
    return page(
        request,
        "dead_letters_of_group.html",
        letters=of_group,
        missing=view.troubles,
        asked=asked,
        targets=TARGETS,
        preview=None if preview is None else preview[:PREVIEW_LINES],
        left_out=0 if preview is None else max(0, len(preview) - PREVIEW_LINES),
        audit=audit,
        audit_trouble=audit_trouble,
        number=secrets.token_hex(8),
        run=console.replays.last,
    )


def _audit(console: Console, name: str) -> tuple[list[Mapping[str, object]] | None, str | None]:
    """The audit's rows of the group, None where no audit is kept; and why they cannot be read."""
    if console.replays.audit is None:
        return None, None
    try:
        return audit_rows(console.replays.audit, name), None
    except SparkMqError as error:  # a preview and a replay are possible all the same
        return [], str(error)


def _replay(asked: Asked) -> Replay:
    """The job's options that a form has. Raises UsageError, OptionError."""
    to = asked.text("to") or "topic"
    target = next((each for each in TARGETS if each == to), None)
    if target is None:
        raise UsageError(f"to must be one of {', '.join(TARGETS)}, found {to}")
    rate, limit = asked.number("rate"), asked.number("limit")
    if rate == 0 or limit == 0:
        raise UsageError("rate and limit are at least 1")
    wanted = Replay(
        group=validate_group(asked.required("group")),
        to=target,
        since=asked.text("since"),
        until=asked.text("until"),
        rate=rate,
        limit=min(limit or LIMIT, LIMIT),
        again="again" in asked,
    )
    wanted.between_ms()  # a wrong time is said now, not by the run
    return wanted


async def preview(request: Request) -> Response:
    """The page of the group with what a replay would do. It changes nothing, but costs a look at all letters: only own forms get it."""
    asked = await _own_form(request)
    options = _replay(asked)
    lines = await run_in_threadpool(console_of(request).replays.preview, options)
    return await run_in_threadpool(_dead_letters, request, asked, lines)


async def _own_form(request: Request) -> Asked:
    """The fields of a form that was on a page of this process. Raises ForbiddenError for another."""
    asked = await form_of(request)
    if not console_of(request).access.is_form(asked.text("form") or ""):
        raise ForbiddenError("the form is not of this console", "load the page again; the console was started anew")
    return asked


async def replay(request: Request) -> Response:
    """Begin a replay; the browser goes on to the page of the group, which follows the run."""
    console = console_of(request)
    asked = await _own_form(request)
    if not console.allows_changes:
        raise ForbiddenError("this console changes nothing", "start it with --allow-changes")
    options = _replay(asked)
    await run_in_threadpool(console.replays.start, options, asked.text("number"))
    return RedirectResponse(link("/dead-letters", group=options.group), 303)


class ForbiddenError(CommandError):
    """A change that is refused."""


async def form_of(request: Request) -> Asked:
    """The fields of a form. Raises UsageError for one that is too long."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > _LONGEST_FORM:
            raise UsageError(f"the form has more than {_LONGEST_FORM:,} bytes")
    try:
        pairs = parse_qsl(content.decode("ascii", errors="replace"), keep_blank_values=True, max_num_fields=64)
    except ValueError as error:
        raise UsageError(f"the form cannot be read: {error}") from error
    return Asked(dict(pairs))


def replay_run(request: Request) -> Response:
    """A part of a page: the run that goes on, or the last one."""
    return page(request, "run.html", run=console_of(request).replays.last)


# Transactions, timers, sinks, archive


def transactions(request: Request) -> Response:
    """Half messages without an outcome."""
    with console_of(request).views.opened() as view:
        found = view.transactions()
    return page(request, "transactions.html", transactions=found, missing=view.troubles)


def timers(request: Request) -> Response:
    """What waits for its time: delay levels, and the timer."""
    with console_of(request).views.opened() as view:
        found = view.timers()
    return page(request, "timers.html", timers=found, missing=view.troubles)


def sinks(request: Request) -> Response:
    """What Spark sinks have written."""
    with console_of(request).views.opened() as view:
        found = view.sinks()
    return page(request, "sinks.html", sinks=found)


class ArchivedTopic(NamedTuple):
    """What the archive has of a topic."""

    topic: str
    queues: int
    messages: int
    files: int
    gaps: int


def archive(request: Request) -> Response:
    """The Delta table of archived topics."""
    place = console_of(request).archive
    if place is None:
        return page(request, "archive.html", place=None, topics=[], version=None)
    table = ArchiveTable.open(place)
    by_topic: dict[str, list[int]] = {}
    for queue in table.queues():
        lives = table.lives(queue)
        sums = by_topic.setdefault(queue.topic, [0, 0, 0, 0])
        counts = 1, message_rows(lives), sum(len(life.parts) for life in lives), sum(len(life.gaps) for life in lives)
        by_topic[queue.topic] = [before + more for before, more in zip(sums, counts, strict=True)]
    found = [ArchivedTopic(topic, *counts) for topic, counts in sorted(by_topic.items())]
    return page(request, "archive.html", place=place, topics=found, version=table.version)
