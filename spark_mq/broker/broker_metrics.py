"""What a broker counts for its page of metrics. If metricsExporterType switches the page off, none of this exists.

Messages count once a put, a run of puts or a pull, never one by one. Java: BrokerMetricsManager, RemotingMetricsManager, and the
processors that add to their instruments. Departures: messages that a transaction check reads do not count as going out; what the timer
delivers counts in no figure of messages, as in Java.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.broker.put_plan import DECIDED_BY_VALUE, is_true
from spark_mq.prometheus import rocketmq as names
from spark_mq.prometheus.metric import SERIES_MOST, Counters
from spark_mq.remoting import RequestCode
from storage.format.delay import SCHEDULE_TOPIC
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from storage.rules.delays import DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS
from storage.rules.half_messages import PREPARED
from storage.rules.priorities import SHARDING_KEY
from storage.rules.response_codes import ResponseCode

NORMAL, FIFO, DELAYED, TRANSACTION = "normal", "fifo", "delay", "transaction"
_TIMES = ("__STARTDELIVERTIME", DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)
_RUN_TIMES = tuple(name for name in _TIMES if name not in DECIDED_BY_VALUE)
"""Those that a send of a run may have."""
assert PREPARED in DECIDED_BY_VALUE, "a run has no half messages, and so no type for them"
_RUN_TYPES = (NORMAL, FIFO, DELAYED)
_SCHEDULER = "SCHEDULE_CONSUMER"
"""Java: MixAll.SCHEDULE_CONSUMER_GROUP."""
_LETTERS = {True: "true", False: "false"}
_PULLS = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
_FIRST_REGULAR, _FIRST_MAJOR, _LAST_VERSION = 212, 4, 611


def message_type(properties: Mapping[str, str]) -> str:
    """The value of the label message_type, by the properties of a send. Java: BrokerMetricsManager.getMessageType."""
    if is_true(properties.get(PREPARED)):
        return TRANSACTION
    if SHARDING_KEY in properties:
        return FIFO
    return DELAYED if any(name in properties for name in _TIMES) else NORMAL


def is_of_system(topic: str, group: str, *, broker_name: str | None, cluster_name: str | None) -> bool:
    """Whether topic or group is RocketMQ's own. Java: BrokerMetricsManager.isSystem."""
    return is_system_topic(topic, broker_name=broker_name, cluster_name=cluster_name) or is_system_group(group.upper())


def version_text(version: int) -> str:
    """A client's version as labels have it: `v5_3_3`. Java: MQVersion.getVersionDesc. Departure: all clients before 4.0 are `v3`."""
    if version < _FIRST_REGULAR:
        return "v3"
    if version > _LAST_VERSION:
        return "higher_version"
    number = (version - _FIRST_REGULAR) // 2
    text = f"v{_FIRST_MAJOR + number // 100}_{number // 10 % 10}_{number % 10}"
    return text if version % 2 else f"{text}_snapshot"


def code_text(code: int, codes: type[RequestCode] | type[ResponseCode]) -> str:
    """A code's name in small letters; the number of one without a name. Java: RemotingHelper.getRequestCodeDesc."""
    try:
        return codes(code).name.lower()
    except ValueError:
        return str(code)


class TimerState(NamedTuple):
    """The timer after its last turn."""

    waiting: int = 0
    """Messages in the wheel."""
    due_within: tuple[int, ...] = (0,) * len(names.TIMER_BOUNDS_S)
    """For each bound: number of these that are due between the bound before it and this one."""


class BrokerMetrics:
    """The counters of one broker. Thread-safe."""

    bounds_s = names.TIMER_BOUNDS_S
    """Of `TimerState.due_within`."""

    def __init__(
        self, *, broker_name: str | None = None, cluster_name: str | None = None, series_most: int = SERIES_MOST
    ) -> None:
        self.counters = Counters(series_most)
        self.timer = TimerState()
        self._broker_name = broker_name
        self._cluster_name = cluster_name

    def is_system(self, topic: str, group: str = "") -> str:
        """The value of the label is_system."""
        found = is_of_system(topic, group, broker_name=self._broker_name, cluster_name=self._cluster_name)
        return _LETTERS[found]

    # Messages in and out

    def stored(self, topic: str, kind: str, messages: int, size_bytes: int) -> None:
        """One put of a client. What goes to a group's retries or dead letters counts nowhere, as in Java."""
        if _is_of_retries(topic):
            return
        labels = topic, kind, self.is_system(topic)
        self.counters.add(names.MESSAGES_IN, labels, messages)
        self.counters.add(names.THROUGHPUT_IN, labels, size_bytes)
        self.counters.observe(names.MESSAGE_SIZE, labels, size_bytes // max(1, messages))

    def stored_run(self, topics: pa.DictionaryArray, properties: pa.Array, sizes_bytes: np.ndarray) -> None:
        """A run of sends: the topic, the encoded properties and the record's size of each. They count as by `stored`."""
        is_delayed = np.logical_or.reduce([_have(properties, name) for name in _RUN_TIMES])
        kinds = np.where(_have(properties, SHARDING_KEY), 1, np.where(is_delayed, 2, 0))
        codes = topics.indices.to_numpy().astype(np.int64) * len(_RUN_TYPES) + kinds
        known = topics.dictionary.to_pylist()
        for code in np.unique(codes).tolist():
            topic, kind = known[code // len(_RUN_TYPES)], _RUN_TYPES[code % len(_RUN_TYPES)]
            if not _is_of_retries(topic):
                self._stored_rows(topic, kind, sizes_bytes[codes == code])

    def _stored_rows(self, topic: str, kind: str, sizes_bytes: np.ndarray) -> None:
        labels = topic, kind, self.is_system(topic)
        self.counters.add(names.MESSAGES_IN, labels, len(sizes_bytes))
        self.counters.add(names.THROUGHPUT_IN, labels, int(sizes_bytes.sum()))
        self.counters.observe_all(names.MESSAGE_SIZE, labels, sizes_bytes)

    def delivered(self, topic: str, sizes_bytes: np.ndarray) -> None:
        """Messages of one topic that a delay level has delivered. Java: ScheduleMessageService.PutResultProcess.onSuccess."""
        labels = SCHEDULE_TOPIC, _SCHEDULER, _LETTERS[True]
        self.counters.add(names.MESSAGES_OUT, labels, len(sizes_bytes))
        self.counters.add(names.THROUGHPUT_OUT, labels, int(sizes_bytes.sum()))
        self._stored_rows(topic, DELAYED, sizes_bytes)

    def pulled(self, topic: str, group: str, messages: int, size_bytes: int) -> None:
        """One pull that found messages. Java: DefaultPullMessageResultHandler."""
        if _is_of_retries(topic):
            return
        labels = topic, group, self.is_system(topic, group)
        self.counters.add(names.MESSAGES_OUT, labels, messages)
        self.counters.add(names.THROUGHPUT_OUT, labels, size_bytes)

    def dead_letter(self, group: str, topic: str) -> None:
        """A message of a group becomes a dead letter; `topic` as the request has it."""
        self.counters.add(names.DEAD_LETTERS, (group, topic, self.is_system(topic, group)))

    # Transactions

    def committed(self, topic: str, seconds: int) -> None:
        """A half message was committed so many seconds after its birth."""
        self.counters.add(names.COMMITTED, (topic,))
        self.counters.observe(names.FINISH_LATENCY, (topic,), seconds)

    def rolled_back(self, topic: str) -> None:
        """A half message was rolled back."""
        self.counters.add(names.ROLLED_BACK, (topic,))

    # Requests

    def topics_changed(self, took_ms: int, *, is_done: bool, topic: str) -> None:
        """A request that creates or changes topics was answered."""
        labels = "success" if is_done else "failure", self.is_system(topic)
        self.counters.observe(names.TOPIC_CREATION, labels, took_ms)

    def groups_changed(self, took_ms: int, *, is_done: bool) -> None:
        """A request that creates or changes groups was answered."""
        self.counters.observe(names.GROUP_CREATION, ("success" if is_done else "failure",), took_ms)

    def answered(self, code: int, answer: int, result: str, took_ms: float, times: int, *, was_suspended: bool) -> None:
        """Requests were answered. Java: NettyRemotingAbstract.writeResponse."""
        labels = (
            code_text(code, RequestCode),
            code_text(answer, ResponseCode),
            _LETTERS[was_suspended and code in _PULLS],
            result,
        )
        self.counters.observe(names.RPC_LATENCY, labels, int(took_ms), times)

    # The timer

    def timer_entered(self, topics: pa.Array, waits_ms: np.ndarray) -> None:
        """Timed messages have entered the wheel: the topic of each, and how long it waits from its birth on."""
        codes, known = _codes(topics)
        for code, topic in enumerate(known):
            of_topic = waits_ms[codes == code]
            self.counters.add(names.TIMER_ENQUEUED, (topic,), len(of_topic))
            self.counters.observe_all(names.DELAY_LATENCY, (topic,), np.trunc(of_topic / 1_000))

    def timer_left(self, topics: pa.Array) -> None:
        """Timed messages have left the wheel: the topic of each."""
        codes, known = _codes(topics)
        for topic, count in zip(known, np.bincount(codes, minlength=len(known)).tolist(), strict=True):
            self.counters.add(names.TIMER_DEQUEUED, (topic,), count)


def _is_of_retries(topic: str) -> bool:
    """Java: BrokerMetricsManager.isRetryOrDlqTopic."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _codes(topics: pa.Array) -> tuple[np.ndarray, list[str]]:
    """The topic of each message as a number, and the topics; of a message that names none it is ""."""
    found = pc.fill_null(topics, "").dictionary_encode()
    return found.indices.to_numpy(), found.dictionary.to_pylist()


def _have(properties: pa.Array, name: str) -> np.ndarray:
    """Which encoded properties, each with its separator, have one of that name."""
    first = pc.starts_with(properties, f"{name}\x01".encode())
    later = pc.match_substring(properties, f"\x02{name}\x01".encode())
    return pc.or_(first, later).to_numpy(zero_copy_only=False)
