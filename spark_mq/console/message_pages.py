"""Pages of topics and messages: lists by queue, offset, time, key and tag; one message, its trace and its copies.

A queue is shown by offsets, so a page costs the same at the beginning, in the middle and at the end of millions of messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spark_mq.cli.message_lines import Unreadable
from spark_mq.cli.places import FoundMessage, KeySearch
from spark_mq.client.trace import TraceLine, read_trace
from spark_mq.console.pages import Asked, console_of, link, message_link, page
from spark_mq.console.shown import as_hex, as_json, as_text, beginning, body_of
from spark_mq.console.views import OFFSETS_LOOKED_AT, PAGE_BYTES, NotThereError, Page, View, one_of, raise_missing
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import CommandError, UsageError, describe
from storage import Message
from storage.errors import CorruptMessageError
from storage.names import is_retry_or_dead_letter_topic
from storage.rules.delays import REAL_TOPIC

MESSAGES_A_PAGE = 50
_QUEUES_WITH_TIMES = 64
"""Of a topic with more queues the others show no time: each costs a look into the log."""
_FOUND_BY_KEY = 32
"""At each broker, as RocketMQ's tools ask; their bodies may have 4 MiB each."""
_COPIES = 200
_RELATED_BYTES = 4 * PAGE_BYTES
"""Records that are read for the copies of one message."""
_TOPICS_LOOKED_AT = 100
"""For copies of a message: retry and dead letter topics of so many groups."""
_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_END_OF_TIME_MS = 2**63 - 1
_FORMS = ("text", "json", "hex")


class TopicRow(NamedTuple):
    """A topic in the list."""

    topic: str
    queues: int
    messages: int
    ends: int
    rate: float | None


def topics(request: Request) -> Response:
    """All topics, those of users at first."""
    console, shows_all = console_of(request), "all" in Asked.of(request)
    rates = console.samples.rates()
    with console.views.opened() as view:
        found = {name: TopicRow(name, 0, 0, 0, rates.get(name)) for name in sorted(view.place.known_topics())}
        for queue in view.place.queues(None):
            minimum, maximum = view.place.bounds(queue)
            row = found.get(queue.topic) or TopicRow(queue.topic, 0, 0, 0, rates.get(queue.topic))
            found[queue.topic] = row._replace(
                queues=row.queues + 1, messages=row.messages + maximum - minimum, ends=row.ends + maximum
            )
        shown = [row for row in found.values() if shows_all or not view.place.is_system_topic(row.topic)]
    hidden = len(found) - len(shown)
    return page(
        request,
        "topics.html",
        topics=sorted(shown),
        hidden=hidden,
        shows_all=shows_all,
        sampled=bool(rates),
        missing=view.troubles,
    )


class QueueRow(NamedTuple):
    """A queue of a topic."""

    queue: QueueId
    minimum: int
    maximum: int
    newest_ms: int | None


def topic(request: Request) -> Response:
    """The queues of a topic, and some of its messages."""
    console, asked = console_of(request), Asked.of(request)
    name, now_ms = asked.required("name"), console.clock()
    if (msg_id := asked.text("id")) is not None:
        return RedirectResponse(link("/message", id=msg_id), 303)
    with console.views.opened() as view:
        queues = _queues(view, name)
        title, found, position = _messages(view, asked, name, [each.queue for each in queues], now_ms)
    return page(
        request,
        "topic.html",
        topic=name,
        queues=queues,
        asked=asked,
        title=title,
        found=found,
        position=position,
        missing=view.troubles,
    )


def _queues(view: View, name: str) -> list[QueueRow]:
    queues = view.place.queues(name)
    if not queues:
        one_of(name, set(view.place.known_topics()), "topic")
    return [
        QueueRow(queue, *view.place.bounds(queue), view.newest_ms(queue) if row < _QUEUES_WITH_TIMES else None)
        for row, queue in enumerate(queues)
    ]


class Position(NamedTuple):
    """Where in a queue the shown messages are, and where one can go."""

    queue: QueueId
    start: int
    end: int
    minimum: int
    maximum: int
    tags: str | None

    @property
    def older(self) -> int | None:
        """None at the beginning, and in a search, which goes forward."""
        return None if self.start <= self.minimum else max(self.minimum, self.start - MESSAGES_A_PAGE)

    @property
    def newer(self) -> int | None:
        return None if self.end >= self.maximum else self.end

    @property
    def newest(self) -> int:
        return max(self.minimum, self.maximum - MESSAGES_A_PAGE)


class Row(NamedTuple):
    """What a list shows of a message, so that no body is kept; or the offset of one that cannot be read, and the reason."""

    broker_name: str
    queue_id: int
    queue_offset: int
    trouble: str | None = None
    link: str = ""
    store_time_ms: int = 0
    tags: str | None = None
    keys: str | None = None
    size_bytes: int = 0
    beginning: str = ""


def _rows(broker_name: str, found: Iterable[Message | Unreadable]) -> list[Row]:
    return [_row(broker_name, each) for each in found]


def _row(broker_name: str, found: Message | Unreadable) -> Row:
    if isinstance(found, Unreadable):
        return Row(broker_name, found.queue_id, found.queue_offset, found.reason)
    return Row(
        broker_name,
        found.queue_id,
        found.queue_offset,
        None,
        message_link(broker_name, found),
        found.store_time_ms,
        found.tags,
        found.properties.get("KEYS"),
        found.size_bytes,
        beginning(found),
    )


def _messages(
    view: View, asked: Asked, name: str, queues: list[QueueId], now_ms: int
) -> tuple[str, list[Row], Position | None]:
    """What is shown: its title, the messages, and the position if they are of one queue."""
    for field, is_unique in (("key", False), ("unique", True)):
        if (key := asked.text(field)) is not None:
            begin_ms = asked.time_ms("time", now_ms) or 0
            search = KeySearch(name, key, is_unique, begin_ms, _END_OF_TIME_MS, _FOUND_BY_KEY)
            rows = [_row(*each) for each in view.place.by_key(search)]
            rows.sort(key=lambda row: row.store_time_ms, reverse=True)
            what = f"{'unique key' if is_unique else 'key'} {key}"
            bound = f", the newest {_FOUND_BY_KEY} of each broker" if len(rows) >= _FOUND_BY_KEY else ""
            return f"Messages with {what}{bound}", rows, None
    wanted = _wanted_queue(view, asked, name, queues)
    time_ms, tags = asked.time_ms("time", now_ms), asked.text("tag")
    if wanted is not None:
        shown, position = _of_queue(view, wanted, asked, time_ms, tags)
        what = "" if tags is None else f" with tag {tags}"
        return f"Queue {wanted.queue_id} of {wanted.broker_name}{what}", _rows(wanted.broker_name, shown), position
    return _of_topic(view, name, queues, time_ms, tags)


def _wanted_queue(view: View, asked: Asked, name: str, queues: list[QueueId]) -> QueueId | None:
    number, broker = asked.number("queue"), asked.text("broker")
    if number is None and len(queues) == 1:
        return queues[0]
    if number is None:
        if "offset" in asked:
            raise UsageError("an offset is one of a queue: name the queue, too")
        return None
    brokers = sorted({each.broker_name for each in queues if each.queue_id == number})
    if broker is None and len(brokers) > 1:
        raise UsageError(f"queue {number} is at {len(brokers)} brokers: name one of {', '.join(brokers)}")
    found = QueueId(name, broker or "".join(brokers), number)
    if found not in queues:
        raise_missing(view, broker)
        known = sorted({each.queue_id for each in queues})
        raise NotThereError(f"there is no queue {number} of topic {name}", f"there are {known}" if known else None)
    return found


def _of_queue(
    view: View, queue: QueueId, asked: Asked, time_ms: int | None, tags: str | None
) -> tuple[list[Message | Unreadable], Position]:
    minimum, maximum = view.place.bounds(queue)
    start = asked.number("offset")
    if start is not None and time_ms is not None:
        raise UsageError("an offset and a time both say where to begin: give one of them")
    if time_ms is not None:
        start = _offsets_at(view, queue.topic, time_ms).get(queue)
        if start is None:
            raise_missing(view, queue.broker_name)
    if start is None:
        start = minimum if tags is not None else maximum - MESSAGES_A_PAGE
    found = _part(view, queue, start, MESSAGES_A_PAGE, tags, OFFSETS_LOOKED_AT)
    return found.messages, Position(queue, found.start, found.end, minimum, maximum, tags)


def _part(view: View, queue: QueueId, start: int, count: int, tags: str | None, offsets: int) -> Page:
    if tags is None:
        return view.page(queue, max(0, start), count)
    return view.tagged(queue, max(0, start), count, tags, offsets)


def _offsets_at(view: View, name: str, time_ms: int) -> dict[QueueId, int]:
    return {each.queue: each.queue_offset for each in view.place.offsets_by_time(name, time_ms, upper=False)}


def _of_topic(
    view: View, name: str, queues: list[QueueId], time_ms: int | None, tags: str | None
) -> tuple[str, list[Row], None]:
    """A few messages of each queue: the newest ones, or those from a time on, or those with tags among a share of the offsets."""
    each_queue = max(1, MESSAGES_A_PAGE // max(1, len(queues)))
    offsets = OFFSETS_LOOKED_AT // max(1, min(len(queues), MESSAGES_A_PAGE))
    starts = None if time_ms is None else _offsets_at(view, name, time_ms)
    found: list[Row] = []
    for queue in queues[:MESSAGES_A_PAGE]:
        minimum, maximum = view.place.bounds(queue)
        newest = minimum if tags is not None else max(minimum, maximum - each_queue)
        start = newest if starts is None else starts.get(queue)
        if start is not None:  # else its broker has not said it
            found += _rows(queue.broker_name, _part(view, queue, start, each_queue, tags, offsets).messages)
    found.sort(key=lambda row: row.store_time_ms, reverse=time_ms is None and tags is None)
    which = "The newest messages" if time_ms is None else "The first messages from that time on"
    if tags is not None:
        which = f"The first messages with tag {tags} among {offsets:,} offsets"
    of_queues = "each queue" if len(queues) <= MESSAGES_A_PAGE else f"the first {MESSAGES_A_PAGE} queues"
    return (f"{which} of {of_queues}" if len(queues) > 1 else which), found, None


# One message


def message(request: Request) -> Response:
    """One message: body, properties, and where it lies."""
    console, asked = console_of(request), Asked.of(request)
    shows_all = "all" in asked
    with console.views.opened() as view:
        found = _wanted(view, asked)
        place, origin = view.log_place(found), _origin(view, found.message)
    body = body_of(found.message)
    form = one_of(asked.text("as") or ("text" if body.is_text else "hex"), _FORMS, "form of a body:")
    plain = found.message.body if body.plain is None else body.plain
    parts = {"text": as_text, "json": as_json, "hex": as_hex}
    part = parts[form](plain, everything=shows_all)
    return page(
        request,
        "message.html",
        found=found,
        message=found.message,
        place=place,
        body=body,
        plain_bytes=len(plain),
        form_of_body=form,
        forms=_FORMS,
        part=part,
        shows_all=shows_all,
        here=_address(found, asked),
        origin=origin,
    )


def _address(found: FoundMessage, asked: Asked) -> dict[str, str | int]:
    """The values that lead to the message."""
    if (msg_id := asked.text("id")) is not None:
        return {"id": msg_id}
    message = found.message
    return {
        "topic": message.topic,
        "broker": found.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
    }


def _origin(view: View, message: Message) -> str | None:
    """The topic that a message was sent to, of one that waits, is retried or is dead."""
    properties = message.properties
    found = properties.get("RETRY_TOPIC") or properties.get(REAL_TOPIC)
    return None if found is None else view.here(found)


def _wanted(view: View, asked: Asked) -> FoundMessage:
    """The message that the address names. Raises NotThereError, CommandError for one that cannot be read."""
    if (msg_id := asked.text("id")) is not None:
        try:
            found = view.by_message_id(msg_id)
        except ValueError as error:
            raise UsageError(
                str(error), "an id that a client gave is a unique key: look for it in its topic"
            ) from error
        if not found:
            raise NotThereError(f"no message has the id {msg_id}")
        return found[0]
    name, number, offset = asked.required("topic"), asked.number("queue"), asked.number("offset")
    queue = QueueId(name, asked.required("broker"), number or 0)
    if number is None or offset is None:
        raise UsageError("the address names no queue, or no offset")
    if queue not in view.place.queues(name):
        raise_missing(view, queue.broker_name)
        one_of(name, set(view.place.known_topics()), "topic")
        raise NotThereError(f"there is no queue {number} of topic {name} at broker {queue.broker_name}")
    minimum, maximum = view.place.bounds(queue)
    found_there = view.page(queue, offset, 1).messages if minimum <= offset < maximum else []
    match found_there:
        case [Unreadable() as trouble]:
            raise CommandError(f"no message: {trouble.describe()}")
        case [Message() as one] if one.queue_offset == offset:
            return FoundMessage(queue.broker_name, one)
    raise_missing(view, queue.broker_name)
    raise NotThereError(
        f"there is no message at offset {offset} of queue {number}", f"it has offsets {minimum} to {maximum - 1}"
    )


def body(request: Request) -> Response:
    """The body as a file: decompressed, or as it is stored."""
    asked = Asked.of(request)
    with console_of(request).views.opened() as view:
        found = _wanted(view, asked)
    message = found.message
    try:
        content = message.body if "stored" in asked else message.plain_body
    except CorruptMessageError as error:
        raise CommandError(error.describe(), "the stored bytes can be downloaded") from error
    name = (
        f"message-{message.queue_id}-{message.queue_offset}.bin"  # numbers alone: no name of a topic becomes a file's
    )
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


class Copy(NamedTuple):
    """Another message with the same unique key."""

    row: Row
    topic: str
    retries: int


def related(request: Request) -> Response:
    """A part of the page of a message, which is asked for once that is there: traces, and copies in other topics."""
    asked = Asked.of(request)
    copies: list[Copy] = []
    traces: list[TraceLine] = []
    troubles: list[str] = []
    room, looked_at = _RELATED_BYTES, 0
    with console_of(request).views.opened() as view:
        found = _wanted(view, asked)
        key = found.message.unique_key
        known = set(view.place.known_topics())
        wanted = [found.message.topic, *filter(None, [_origin(view, found.message)])]
        wanted += sorted(name for name in known if is_retry_or_dead_letter_topic(name))
        topics = [name for name in dict.fromkeys(wanted) if name in known]
        if key is not None:
            for name in topics[:_TOPICS_LOOKED_AT]:
                if room <= 0 or len(copies) >= _COPIES:
                    break
                looked_at += 1
                for each in _by_key(view, name, key, troubles, is_unique=True):
                    room -= each.message.size_bytes
                    if each.message.msg_id != found.message.msg_id:
                        copies.append(Copy(_row(*each), name, each.message.reconsume_times))
            for each in _by_key(view, _TRACE_TOPIC, key, troubles, is_unique=False) if _TRACE_TOPIC in known else ():
                traces += _trace_lines(each.message, key)
    copies.sort(key=lambda each: each.row.store_time_ms)
    return page(
        request,
        "related.html",
        unique_key=key,
        copies=copies,
        traces=sorted(traces, key=lambda line: line.time_ms or 0),
        has_trace_topic=_TRACE_TOPIC in known,
        troubles=list(dict.fromkeys(troubles)),
        left_out=len(topics) - looked_at if key is not None else 0,
        missing=view.troubles,
    )


def _by_key(view: View, name: str, key: str, troubles: list[str], *, is_unique: bool) -> list[FoundMessage]:
    """What the index has; an index that cannot be read is a trouble of this part of the page, not of the page."""
    try:
        return list(view.place.by_key(KeySearch(name, key, is_unique, 0, _END_OF_TIME_MS, _FOUND_BY_KEY)))
    except Exception as error:
        described = describe(error)
        if described is None:
            raise
        troubles.append(described.text)
        return []


def _trace_lines(message: Message, key: str) -> list[TraceLine]:
    try:
        text = message.plain_body.decode(errors="replace")
    except CorruptMessageError:
        return []
    return [line for line in read_trace(text) if line.message_id == key]
