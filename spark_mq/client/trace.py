"""Traces: what a client tells the trace topic about its sends, ends of transactions, and calls of its listener.

    name 0x01 value 0x01 … 0x02        one line for each; a message of the trace topic holds some, and their ids and keys as its keys

    Pub             time, region, group, topic, id, tags, keys, broker, size, took ms, kind, offset id, is stored and safe
    EndTransaction  time, region, group, topic, id, tags, keys, broker, kind, transaction id, state, answers a check
    SubBefore       time, region, group, request id, id, failed tries, keys                                    one for each message
    SubAfter        request id, id, took ms, succeeded, keys, ReturnType, time, group                          one for each message

`ClientSettings.enable_trace` turns them on. A send that ends with an error leaves none, because no broker has said its region and the
message's place; a broker with `traceOn=false` wants none. Traces are sent when ten have come together, or after five seconds. Where
that fails they are lost: a log line says so.

Java: TraceDataEncoder, AsyncTraceDispatcher, SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl, EndTransactionTraceHookImpl.
Departures: a trace message never gets larger than its limits (Java's producer or broker refuses it then), which may cost a trace of
very many keys some of them; the inner producer shares the client's connections. Not supported: AccessChannel.CLOUD, OpenTracing, traces
of recalls, which are off in Java too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

from spark_mq.client.errors import ClientClosedError, ClientError
from spark_mq.client.event_loop import HandOver, event_loop
from spark_mq.client.hooks import (
    ConsumeMessageContext,
    ConsumeMessageHook,
    EndTransactionContext,
    EndTransactionHook,
    MessageType,
    SendMessageContext,
    SendMessageHook,
)
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.outgoing_messages import MessageMaker, UniqueIds
from spark_mq.client.send_results import DEFAULT_REGION, SendMode, SendStatus
from spark_mq.client.sender import Sender, Sending
from spark_mq.client.settings import ProducerSettings, without_namespace
from storage.epoch_times import current_time_ms
from storage.rules.half_messages import TransactionState

TRACE_MESSAGE_BYTES = 128_000
"""Java: AsyncTraceDispatcher.maxMsgSize."""
TRACE_KEYS_BYTES = 30_000
"""A message's properties have 32,767 bytes."""
TRACES_KEPT = 2_048
"""Traces that wait or are on their way; what comes more is dropped. Java: traceContextQueue."""
FLUSH_INTERVAL_MS = 5_000
SEND_TIMEOUT_MS = 5_000
_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
_FIELD_END, _LINE_END = "\x01", "\x02"
_STATES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
_counter = itertools.count(1)
_LOG = logging.getLogger(__name__)


class Trace(NamedTuple):
    """Lines about one deed; the topic of its first message, and the keys by which the trace is found."""

    topic: str
    keys: tuple[str, ...]
    lines: str


def encode_line(*values: object) -> str:
    """One line. A value that is not there is the word null, as in Java."""
    return _FIELD_END.join(map(_text, values)) + _LINE_END


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


class TraceLine(NamedTuple):
    """One line, as a reader of traces gets it. An absent value is None."""

    kind: str
    """Pub, EndTransaction, SubBefore or SubAfter."""
    values: Mapping[str, str | None]
    """By the names below."""

    @property
    def message_id(self) -> str | None:
        return self.values.get("message id")

    @property
    def time_ms(self) -> int | None:
        text = self.values.get("time") or ""
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


_LINES = {
    "Pub": ("time", "region", "group", "topic", "message id", "tags", "keys", "broker", "body bytes", "took ms",
            "message type", "offset message id", "succeeded"),
    "EndTransaction": ("time", "region", "group", "topic", "message id", "tags", "keys", "broker", "message type",
                       "transaction id", "state", "from a check"),
    "SubBefore": ("time", "region", "group", "request id", "message id", "failed tries", "keys"),
    "SubAfter": ("request id", "message id", "took ms", "succeeded", "keys", "return type", "time", "group"),
}  # fmt: skip
"""The values of a line, in their order. Clients of other releases leave out the last ones, or add some."""


def read_trace(text: str) -> list[TraceLine]:
    """The lines of a trace message's body, those of known kinds. Java: TraceDataEncoder.decoderFromTraceDataString."""
    found = []
    for line in text.split(_LINE_END):
        kind, *values = line.split(_FIELD_END)
        if kind in _LINES:
            named = zip(_LINES[kind], values, strict=False)
            found.append(TraceLine(kind, {name: None if value == "null" else value for name, value in named}))
    return found


def trace_of_send(context: SendMessageContext, began_ms: int, now_ms: int) -> Trace | None:
    """`Pub`; None where the try has no result."""
    result = context.result
    if result is None or not result.is_traced:
        return None
    message = context.message
    line = encode_line(
        "Pub",
        began_ms,
        result.region,
        context.producer_group,
        message.topic,
        result.message_id,
        message.tags,
        _keys(message),
        context.broker_address,
        context.body_size_bytes,
        now_ms - began_ms,
        context.message_type.value,
        result.offset_message_id,
        result.status is SendStatus.SEND_OK,
    )
    return Trace(message.topic, (result.message_id, *message.keys), line)


def trace_of_end(context: EndTransactionContext, topic: str, now_ms: int) -> Trace:
    """`EndTransaction`; `topic` as the program names it."""
    message = context.message
    line = encode_line(
        "EndTransaction",
        now_ms,
        message.properties.get("MSG_REGION") or DEFAULT_REGION,
        context.producer_group,
        topic,
        context.message_id,
        message.tags,
        _keys(message),
        context.broker_address,
        MessageType.TRANSACTION_COMMIT.value,
        context.transaction_id,
        _STATES[context.state],
        context.from_check,
    )
    return Trace(topic, (context.message_id, *message.keys), line)


def traces_of_messages(messages: Iterable[MessageExt]) -> tuple[list[MessageExt], str | None]:
    """The messages that a trace is wanted of, and the region of the last one."""
    wanted = [message for message in messages if message.properties.get("TRACE_ON") != "false"]
    return wanted, wanted[-1].properties.get("MSG_REGION") if wanted else None


def trace_before(messages: Sequence[MessageExt], region: str, group: str, request_id: str, now_ms: int) -> Trace:
    """`SubBefore`, of a call of the listener."""
    lines = [
        encode_line("SubBefore", now_ms, region, group, request_id, each.message_id, each.reconsume_times, _keys(each))
        for each in messages
    ]
    return Trace(messages[0].topic, _all_keys(messages), "".join(lines))


def trace_after(
    messages: Sequence[MessageExt], context: ConsumeMessageContext, request_id: str, took_ms: int, now_ms: int
) -> Trace:
    """`SubAfter`, of the same call."""
    code = 0 if context.return_type is None else context.return_type.value
    took_each_ms, group = took_ms // len(context.messages), context.consumer_group
    lines = [
        encode_line(
            "SubAfter", request_id, each.message_id, took_each_ms, context.success, _keys(each), code, now_ms, group
        )
        for each in messages
    ]
    return Trace(messages[0].topic, _all_keys(messages), "".join(lines))


def _keys(message: Message | MessageExt) -> str | None:
    return " ".join(message.keys) or None


def _all_keys(messages: Iterable[MessageExt]) -> tuple[str, ...]:
    return tuple(key for message in messages for key in (message.message_id, *message.keys))


class TracingHook(SendMessageHook, EndTransactionHook, ConsumeMessageHook):
    """Hands traces to `put`. It waits for nothing."""

    def __init__(self, put: Callable[[Trace], object], trace_topic: str, namespace: str | None, ids: UniqueIds) -> None:
        self._put = put
        self._trace_topic = trace_topic
        self._namespace = namespace
        self._ids = ids

    def send_message_before(self, context: SendMessageContext) -> None:
        context.notes[__name__] = current_time_ms()

    def send_message_after(self, context: SendMessageContext) -> None:
        trace = trace_of_send(context, context.notes[__name__], current_time_ms())
        if trace is not None and not trace.topic.startswith(self._trace_topic):
            self._put(trace)

    def end_transaction(self, context: EndTransactionContext) -> None:
        topic = without_namespace(self._namespace, context.message.topic)
        self._put(trace_of_end(context, topic, current_time_ms()))

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        messages, region = traces_of_messages(context.messages)
        if region is None:  # nobody has said that a trace is wanted
            return
        request_id, now_ms = self._ids.make(), current_time_ms()
        context.notes[__name__] = messages, request_id, now_ms
        self._put(trace_before(messages, region, context.consumer_group, request_id, now_ms))

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        if __name__ in context.notes:
            messages, request_id, began_ms = context.notes[__name__]
            now_ms = current_time_ms()
            self._put(trace_after(messages, context, request_id, now_ms - began_ms, now_ms))


class Tracer:
    """Sends the traces of one producer or consumer, by an inner producer. Owned by the loop's thread, but for `put`."""

    def __init__(self, instance: ClientInstance, group: str, kind: Literal["PRODUCE", "CONSUME"]) -> None:
        """`group` as the program names it."""
        settings = instance.settings
        self._topic = settings.trace_topic
        self._batch_size = settings.trace_batch_size
        self._loop = event_loop()
        named = f"{_GROUP_PREFIX}-{group}-{kind}-{next(_counter)}"
        producing = ProducerSettings(send_timeout_ms=SEND_TIMEOUT_MS, max_message_bytes=TRACE_MESSAGE_BYTES)
        ids = UniqueIds(instance.client_id.partition("@")[0])
        self._maker = MessageMaker(producing, ids.make, named)
        self._sender = Sender(instance, producing, named)
        self.hook = TracingHook(self.put, self._topic, settings.namespace, ids)
        self._hand_over: HandOver[Trace] = HandOver(self._loop, self._take)
        self._waiting: list[Trace] = []
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Future[object]] = set()
        self._kept = 0
        self._is_dropping = False

    def put(self, trace: Trace) -> None:
        """Take a trace, from any thread."""
        self._hand_over.put(trace)

    def _take(self, trace: Trace) -> None:
        if self._kept >= TRACES_KEPT:
            if not self._is_dropping:
                _LOG.warning("%d traces wait for topic %s: further ones are dropped", self._kept, self._topic)
            self._is_dropping = True
            return
        self._is_dropping = False
        self._kept += 1
        self._waiting.append(trace)
        if len(self._waiting) >= self._batch_size:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(FLUSH_INTERVAL_MS / 1000, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for traces in batches_of(waiting, TRACE_MESSAGE_BYTES):
            self._send(traces)

    def _send(self, traces: Sequence[Trace]) -> None:
        body = "".join(trace.lines for trace in traces).encode()
        keys = dict.fromkeys(key for trace in traces for key in trace.keys)
        outcome: asyncio.Future[object] = self._loop.create_future()
        self._under_way.add(outcome)
        outcome.add_done_callback(partial(self._sent, len(traces)))
        try:
            made = self._maker.message(Message(self._topic, body, keys=list(keys)))
        except ClientError as error:
            outcome.set_exception(error)
            return
        deadline = self._loop.time() + SEND_TIMEOUT_MS / 1000
        self._sender.begin(Sending(made, SendMode.ASYNC, outcome, deadline, SEND_TIMEOUT_MS))

    def _sent(self, count: int, outcome: asyncio.Future[object]) -> None:
        self._under_way.discard(outcome)
        self._kept -= count
        if not outcome.cancelled() and (error := outcome.exception()) is not None:
            _LOG.warning("%d trace(s) for topic %s are lost: %s", count, self._topic, error)

    async def close(self, timeout_ms: int = SEND_TIMEOUT_MS) -> None:
        """Send what waits, and wait for it."""
        await asyncio.sleep(0)  # what other threads have just handed over
        self._flush()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=timeout_ms / 1000)
        self._sender.close(ClientClosedError("the tracer", "its producer or consumer is closed"))


def batches_of(traces: Iterable[Trace], limit_bytes: int) -> list[list[Trace]]:
    """Traces that one message takes: of one topic, lines and keys together no larger than their limits where each alone is not. Of a
    trace with too many keys the first ones stay.
    """
    by_topic: dict[str, list[list[Trace]]] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for given in traces:
        trace, keys_size = _with_fitting_keys(given)
        size = len(trace.lines.encode())
        batches = by_topic.setdefault(trace.topic, [])
        before, keys_before = sizes.get(trace.topic, (0, 0))
        if not batches or before + size > limit_bytes or keys_before + keys_size > TRACE_KEYS_BYTES:
            batches.append([])
            before = keys_before = 0
        batches[-1].append(trace)
        sizes[trace.topic] = before + size, keys_before + keys_size
    return [batch for batches in by_topic.values() for batch in batches]


def _with_fitting_keys(trace: Trace) -> tuple[Trace, int]:
    """The trace, and the bytes of its keys with a blank behind each."""
    size = 0
    for number, key in enumerate(trace.keys):
        key_size = len(key.encode()) + 1
        if size + key_size > TRACE_KEYS_BYTES:
            return trace._replace(keys=trace.keys[:number]), size
        size += key_size
    return trace, size
