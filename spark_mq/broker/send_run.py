"""Many sends that look alike, as columns: one decision for all sends of a kind.

    RequestRun ─▶ SendRun ─▶ one send of each kind is planned as any send (`put_plan.py`) ─▶ those like it, as columns ─▶ one put

Sends are of one kind if topic and property names are equal, besides the fields that a whole run has in common. If a plan depends on
more than that, on a property's value or on text that is not plain, there is no run: the sends are handled one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_mq.broker.put_plan import DECIDED_BY_VALUE, PutPlan
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, write_header
from spark_mq.remoting.frames import LONG_NUMBER_VALUE, NUMBER_VALUE, TEXT_VALUE, RequestRun, RunAnswers, RunFields
from spark_mq.remoting.messages import SendMessageAnswer
from storage.format.record import V6_HOST_SIZE
from storage.rules.inner_messages import InnerMessage, InnerMessages

_FIELDS = ("topic", "queue_id", "born_time_ms", "properties")
_NAMES = {
    RequestCode.SEND_MESSAGE: ("topic", "queueId", "bornTimestamp", "properties"),
    RequestCode.SEND_MESSAGE_V2: ("b", "e", "g", "i"),
}
_PATTERNS = (rb"([%|a-zA-Z0-9_-]{1,255})", NUMBER_VALUE, LONG_NUMBER_VALUE, TEXT_VALUE)
RUN_FIELDS: Mapping[int, RunFields] = {
    code: RunFields(dict(zip(names, _PATTERNS, strict=True))) for code, names in _NAMES.items()
}
"""The fields that may differ in a run of sends."""
KINDS_MOST = 8
_VALUE = re.compile(rb"\x01[^\x01\x02]*\x02")
_UNIQUE_KEY = re.compile(rb"(?:^|\x02)UNIQ_KEY\x01([^\x02]*)(?=\x02)")
_NO_WAIT = re.compile(rb"(?:^|\x02)WAIT\x01(?!true\x02)")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f\x7f-\xff]*')


class Kind(NamedTuple):
    """Sends of one topic with equal property names."""

    topic: str
    row: int
    """One of them."""
    greatest_queue_id: int
    """The greatest of all sends to the topic."""


class SendRun(NamedTuple):
    """The columns of a run of sends; each property string ends with its separator."""

    run: RequestRun
    topics: list[bytes]
    queue_ids: np.ndarray
    born_times_ms: np.ndarray
    properties: list[bytes]
    unique_keys: list[bytes]
    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, run: RequestRun) -> SendRun | None:
        """None: its sends must be taken one by one."""
        topics, queue_ids, born_times_ms, texts = (run.texts(name) for name in _NAMES[RequestCode(run.like.code)])
        properties = [text if text.endswith(b"\x02") else text + b"\x02" for text in texts]
        joined = b"".join(properties)
        keys = _UNIQUE_KEY.findall(joined)
        if len(keys) != len(texts) or b"" in keys or _PLAIN.fullmatch(b"".join(keys)) is None or not _is_utf8(joined):
            return None
        if b"\x00" in joined or b"\x01\x02" in joined or _NO_WAIT.search(joined) or not all(run.bodies):
            return None
        replaced, value_count = _VALUE.subn(b"\x02", b"\x00".join(properties))
        if value_count != joined.count(b"\x02"):  # a name without a value, which is none of its message's
            return None
        names = replaced.split(b"\x00")
        kinds = {kind: row for row, kind in enumerate(zip(topics, names, strict=True))}
        if len(kinds) > KINDS_MOST or not all(_are_plain(found) for _, found in kinds):
            return None
        ids = np.array(queue_ids, np.int32)
        most = {topic: int(ids[[one == topic for one in topics]].max()) for topic in {topic for topic, _ in kinds}}
        found = tuple(Kind(topic.decode(), row, most[topic]) for (topic, _), row in kinds.items())
        return cls(run, topics, ids, np.array(born_times_ms, np.int64), properties, keys, found)

    def requests(self) -> list[RemotingCommand]:
        """One of each kind."""
        return self.run.commands([kind.row for kind in self.kinds])

    def messages(self, plans: Sequence[PutPlan], host: bytes) -> InnerMessages | None:
        """All of them, born at that host, as the plans of each kind's send have them; None where a plan changes more than it adds
        properties.
        """
        added = {self._added(kind, plan) for kind, plan in zip(self.kinds, plans, strict=True)}
        (suffix,) = added if len(added) == 1 else (None,)
        # Numbers differ where topics with and without MULTI_TAG meet.
        if suffix is None or len({_numbers(plan.message) for plan in plans}) > 1:
            return None
        count, message = len(self.properties), plans[0].message
        hosts = np.frombuffer(host * count, f"V{len(host)}")
        return InnerMessages(
            topics=pa.array(self.topics, pa.binary()).cast(pa.string()),
            queue_ids=self.queue_ids,
            bodies=_column(self.run.bodies),
            properties=_column([text + suffix for text in self.properties]),
            flags=np.full(count, message.flag, np.int32),
            sys_flags=np.full(count, message.sys_flag, np.int32),
            born_times_ms=self.born_times_ms,
            born_hosts=hosts,
            born_v6=np.full(count, len(host) == V6_HOST_SIZE),
            reconsume_times=np.full(count, message.reconsume_times, np.int32),
            prepared_transaction_offsets=np.full(count, message.prepared_transaction_offset, np.int64),
        )

    def stored(self, code: int, places: pa.RecordBatch, added: Mapping[str, str]) -> RunAnswers:
        """The answers of sends that stand at these places."""
        fields = write_header(SendMessageAnswer(message_id="", queue_id=0, queue_offset=0, transaction_id=""))
        columns = {
            "msgId": places.column("msg_id").cast(pa.binary()).to_pylist(),
            "queueId": places.column("queue_id").cast(pa.string()).cast(pa.binary()).to_pylist(),
            "queueOffset": places.column("queue_offset").cast(pa.string()).cast(pa.binary()).to_pylist(),
            "transactionId": self.unique_keys,
        }
        return RunAnswers(make_response(self.run.like, code, None, fields | dict(added)), columns)

    def refused(self, code: int, remark: str | None, added: Mapping[str, str]) -> RunAnswers:
        """The answers where nothing was stored."""
        return RunAnswers(make_response(self.run.like, code, remark, added), {})

    def _added(self, kind: Kind, plan: PutPlan) -> bytes | None:
        """The properties that the plan adds after those of the kind's send."""
        requested, (planned,) = self.properties[kind.row], plan.messages
        is_kept = (planned.topic, planned.queue_id, len(planned.body)) == (
            kind.topic,
            int(self.queue_ids[kind.row]),
            len(self.run.bodies[kind.row]),
        )
        raw = planned.raw_properties
        return raw[len(requested) :] if is_kept and raw.startswith(requested) else None


def _numbers(message: InnerMessage) -> tuple[int, ...]:
    """The common fields of a run's messages."""
    return message.flag, message.sys_flag, message.reconsume_times, message.prepared_transaction_offset


def _column(texts: Sequence[bytes | memoryview]) -> pa.Array:
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(texts), buffers)


@lru_cache(256)
def _are_plain(names: bytes) -> bool:
    """Whether property names, each with its separator, are different ones, and no plan depends on their values."""
    found = names.split(b"\x02")[:-1]
    is_regular = all(found) and len(set(found)) == len(found) and b"\x01" not in names
    return is_regular and not DECIDED_BY_VALUE & {name.decode("utf-8", "replace") for name in found}


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
