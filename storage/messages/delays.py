"""Where a message with a delay goes first: to the queue of its level, to the timer, or straight to its topic. Pure.

    asked for                                            parked in                              until
    DELAY = level > 0                                    SCHEDULE_TOPIC_XXXX, queue level − 1   store time + the level's delay
    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS    rmq_sys_wheel_timer, queue 0           TIMER_OUT_MS
      (the first of them that a message has)

A level wins over a time, and a level above the last is the last. The parked record keeps its topic and queue as REAL_TOPIC and
REAL_QID. Prepared and rolled back messages go where they are. `route_delayed` does it for one message with properties,
`route_delayed_rows` for columns of levels and times, both by the same few rules.

Java: HookUtils.handleScheduleMessage, checkIfTimerMessage, transformTimerMessage, transformDelayLevelMessage. As in 5.3.3,
timerInterceptDelayLevel has no effect. Departures, all of which refuse what would stop a broker's delivery for good: a message
without body (to a broker that reads it back its body is null, which its put path refuses for ever), a record over the timer's
buffer, and a time that overflows 64 bits (Java's sum wraps round and the message goes out at once).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import PutRefusedError
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.record import HEADER_SIZE
from storage.format.sys_flag import has_queue_entry
from storage.messages.inner_messages import InnerMessage, encode_properties
from storage.put_status import PutStatus
from storage.settings.nouns import TimerConfig

TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Java: TimerMessageStore.TIMER_TOPIC."""
DELAY, REAL_TOPIC, REAL_QUEUE_ID = "DELAY", "REAL_TOPIC", "REAL_QID"
TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS = "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"
TIMER_OUT_MS, TIMER_DELETED_KEY = "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY"
_TIMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)

DEFAULT_MAX_MESSAGE_SIZE = 4 << 20
TIMER_BUFFER_ROOM = 100
"""The timer reads records of at most maxMessageSize and so many bytes. Java: TimerMessageStore.getMessageByCommitOffset."""
_HOSTS_V6_ROOM = 24  # by which both hosts together are longer in IPv6
_INTEGER = re.compile(r"([+-]?)0*(\d{1,19})")
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1

_Number = TypeVar("_Number", int, np.ndarray)


class Refusal(NamedTuple):
    """Why a message, or rows, may not be put."""

    status: PutStatus
    reason: str


TIMER_OFF = Refusal(
    PutStatus.WHEEL_TIMER_NOT_ENABLE,
    "it asks for a deliver time, and the store's broker has no timer: timerWheelEnable is false, or rocketmqVersion is before 5.0",
)
TOO_FAR_AHEAD = Refusal(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, "its deliver time is more than timerMaxDelaySec ahead")
TOO_LARGE = Refusal(
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
    f"its record has more than maxMessageSize + {TIMER_BUFFER_ROOM} bytes, which stops a broker's timer",
)
NO_BODY = Refusal(PutStatus.MESSAGE_ILLEGAL, "it has no body, and a broker cannot deliver it later")
SLOT_FULL = Refusal(PutStatus.WHEEL_TIMER_FLOW_CONTROL, "too many messages have that deliver time")
NOTHING_TO_DELETE = Refusal(
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL, f"it deletes a timer message ({TIMER_DELETED_KEY}), and its time has passed"
)


def route_delayed(
    message: InnerMessage,
    *,
    delays_ms: tuple[int, ...],
    timer: TimerConfig,
    now_ms: int,
    is_congested: Callable[[int], bool] | None = None,
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
) -> InnerMessage:
    """The message as it is to be put: parked, or itself.

    `is_congested` tells whether the timer takes no more for a time (Java: TimerMessageStore.isReject); None = it does.
    Raises PutRefusedError. A half message with a delay is parked too, as Java does, and discarded when it is due: who prepares
    one takes the delay off or refuses it.
    """
    if not has_queue_entry(message.sys_flag):
        return message
    level = delay_level(message)
    if level > 0:
        # A message that the timer rolled keeps its times.
        dropped = () if message.topic == TIMER_TOPIC else _TIMES
        level = min(level, len(delays_ms))
        return _parked(
            message, SCHEDULE_TOPIC, level - 1, {DELAY: str(level)}, dropped
        )  # Java keeps "+3", which few read
    if message.topic == TIMER_TOPIC or TIMER_OUT_MS in message.properties:
        return message
    asked = next((name for name in _TIMES if name in message.properties), None)
    if asked is None:
        return message
    if not timer.timer_wheel_enable:
        raise _refused(message, TIMER_OFF)
    deliver_ms = _deliver_ms(message, asked, now_ms)
    if not _is_ahead(deliver_ms, now_ms):
        if TIMER_DELETED_KEY in message.properties:
            raise _refused(message, NOTHING_TO_DELETE)
        return message
    if _is_too_far(deliver_ms, now_ms, timer):
        raise _refused(message, TOO_FAR_AHEAD)
    out_ms = timer_out_ms(deliver_ms, timer.timer_precision_ms)
    if is_congested is not None and is_congested(out_ms):
        raise _refused(message, SLOT_FULL)
    parked = _parked(message, TIMER_TOPIC, 0, {TIMER_OUT_MS: str(out_ms)})
    properties_size = len(encode_properties(parked.properties))
    if _timer_record_size(len(message.body), properties_size) > max_message_size + TIMER_BUFFER_ROOM:
        raise _refused(message, TOO_LARGE)
    return parked


class DelayedRows(NamedTuple):
    """Where n messages go, and what their records must say besides."""

    topics: pa.Array
    """string."""
    queue_ids: np.ndarray
    """int32."""
    properties: Mapping[str, pa.Array]
    """By name a large_string column to be set, null where a row has none: the asked level or time, and what parking adds."""
    refused: tuple[tuple[np.ndarray, Refusal], ...]
    """Row numbers, ascending, with why they may not be put; they stand unchanged in the columns."""


def route_delayed_rows(
    topics: pa.Array,
    queue_ids: np.ndarray,
    *,
    levels: pa.Array | None = None,
    deliver_times_ms: pa.Array | None = None,
    body_sizes: np.ndarray | None = None,
    property_sizes: np.ndarray | None = None,
    delays_ms: tuple[int, ...],
    timer: TimerConfig,
    now_ms: int,
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
) -> DelayedRows:
    """The same for n messages that are in no transaction and state a level or a deliver time in columns.

    Null, or a level below 1, asks for nothing. A deliver time becomes TIMER_DELIVER_MS, also where it has passed.
    `body_sizes` are those of the bodies as stored, `property_sizes` without what is returned here; without them the rules on
    sizes are the caller's.
    """
    count = len(queue_ids)
    level = np.zeros(count, np.int64) if levels is None else _filled(levels)
    is_delayed = level > 0
    is_timed, deliver_ms = np.zeros(count, bool), np.zeros(count, np.int64)
    if deliver_times_ms is not None:
        is_timed = deliver_times_ms.is_valid().to_numpy(zero_copy_only=False) & ~is_delayed
        deliver_ms = np.maximum(_filled(deliver_times_ms), 0)  # all of them passed: a difference must not overflow
    is_ahead = is_timed & _is_ahead(deliver_ms, now_ms)
    out_ms = timer_out_ms(deliver_ms, timer.timer_precision_ms)
    refusals = [(is_timed & (not timer.timer_wheel_enable), TIMER_OFF)]
    refusals.append((is_ahead & _is_too_far(deliver_ms, now_ms, timer), TOO_FAR_AHEAD))
    if body_sizes is not None:
        refusals.append(((is_delayed | is_ahead) & (body_sizes == 0), NO_BODY))
        if property_sizes is not None:
            added = _added_sizes(topics, queue_ids, deliver_ms)
            sizes = _timer_record_size(body_sizes, property_sizes + added)
            refusals.append((is_ahead & (sizes > max_message_size + TIMER_BUFFER_ROOM), TOO_LARGE))
    is_refused = np.zeros(count, bool)
    refused = []
    for rows, refusal in refusals:
        rows = rows & ~is_refused
        is_refused |= rows
        if rows.any():
            refused.append((np.flatnonzero(rows), refusal))
    is_delayed, is_timed, is_ahead = is_delayed & ~is_refused, is_timed & ~is_refused, is_ahead & ~is_refused
    level = np.minimum(level, len(delays_ms))
    is_parked = is_delayed | is_ahead
    parked_in = pc.if_else(pa.array(is_delayed), SCHEDULE_TOPIC, TIMER_TOPIC)
    return DelayedRows(
        pc.if_else(pa.array(is_parked), parked_in, topics.cast(pa.string())),
        np.where(is_delayed, level - 1, np.where(is_ahead, 0, queue_ids)).astype(np.int32),
        {
            DELAY: _texts(level, is_delayed),
            TIMER_DELIVER_MS: _texts(deliver_ms, is_timed),
            TIMER_OUT_MS: _texts(out_ms, is_ahead),
            REAL_TOPIC: pc.if_else(pa.array(is_parked), topics.cast(pa.large_string()), None),
            REAL_QUEUE_ID: _texts(queue_ids, is_parked),
        },
        tuple(refused),
    )


# The rules, of a number or of a column of numbers


def timer_out_ms(deliver_ms: _Number, precision_ms: int) -> _Number:
    """When the timer lets it go: the last multiple of the precision before the deliver time, which itself does not count."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def _is_ahead(deliver_ms: _Number, now_ms: int) -> _Number:
    return deliver_ms > now_ms


def _is_too_far(deliver_ms: _Number, now_ms: int, timer: TimerConfig) -> _Number:
    return deliver_ms - now_ms > timer.timer_max_delay_sec * 1_000


def _timer_record_size(body_size: _Number, property_size: _Number) -> _Number:
    """Bytes of the record in the timer's topic, at most: with IPv6 hosts."""
    return body_size + property_size + (HEADER_SIZE + _HOSTS_V6_ROOM + 1 + len(TIMER_TOPIC) + 2)


# One message


def _parked(
    message: InnerMessage, topic: str, queue_id: int, added: Mapping[str, str], dropped: tuple[str, ...] = ()
) -> InnerMessage:
    if not message.body:
        raise _refused(message, NO_BODY)
    kept = {name: value for name, value in message.properties.items() if name not in dropped}
    real = {REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    return replace(message, topic=topic, queue_id=queue_id, properties={**kept, **added, **real})


def delay_level(message: InnerMessage) -> int:
    """The level that the message asks for, 0 where it names none; below 1 it asks for nothing.

    Java: Message.getDelayTimeLevel, whose NumberFormatException ends the request in SYSTEM_ERROR. Raises PutRefusedError.
    """
    text = message.properties.get(DELAY)
    if text is None:
        return 0
    level = _parsed(text, _INT_MAX)
    if level is None:
        raise _refused(message, Refusal(PutStatus.UNKNOWN_ERROR, f"{DELAY} {text!r:.40} is no whole number"))
    return level


def _deliver_ms(message: InnerMessage, name: str, now_ms: int) -> int:
    text = message.properties[name]
    value = _parsed(text, _LONG_MAX)
    if value is None:
        raise _refused(message, Refusal(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, f"{name} {text!r:.40} is no whole number"))
    return {TIMER_DELAY_SEC: now_ms + 1_000 * value, TIMER_DELAY_MS: now_ms + value, TIMER_DELIVER_MS: value}[name]


def _parsed(text: str, maximum: int) -> int | None:
    """As Integer.parseInt and Long.parseLong read it; None where they throw."""
    found = _INTEGER.fullmatch(text)
    value = int(found[1] + found[2]) if found else None
    return value if value is not None and -maximum - 1 <= value <= maximum else None


def _refused(message: InnerMessage, refusal: Refusal) -> PutRefusedError:
    return PutRefusedError(refusal.status, f"message for {message.topic} queue {message.queue_id}: {refusal.reason}")


# Columns


def _filled(numbers: pa.Array) -> np.ndarray:
    return np.asarray(numbers.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _texts(numbers: np.ndarray, rows: np.ndarray) -> pa.Array:
    """The numbers in decimal, null where `rows` is not."""
    return pa.array(numbers.astype(np.int64), mask=~rows).cast(pa.large_string())


def _added_sizes(topics: pa.Array, queue_ids: np.ndarray, deliver_ms: np.ndarray) -> np.ndarray:
    """Bytes of the properties that the timer's rows get; both times have as many digits, or the second one less."""
    names = (TIMER_DELIVER_MS, TIMER_OUT_MS, REAL_TOPIC, REAL_QUEUE_ID)
    separators = sum(len(name) + 2 for name in names)
    digits = pc.binary_length(pa.array(deliver_ms).cast(pa.string())).to_numpy()
    queue_digits = pc.binary_length(pa.array(queue_ids).cast(pa.string())).to_numpy()
    return np.asarray(pc.binary_length(topics).to_numpy() + 2 * digits + queue_digits + separators, np.int64)
