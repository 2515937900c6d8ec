"""Decoders of what name servers and brokers answer to a query's driver, to its tasks, and to the commit of a live sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import SparkMqError
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, make_response
from spark_mq.sink.live_brokers import BrokerQuestions, LiveBrokers
from spark_mq.source import live_cluster, pull_reader
from spark_mq.source.cluster_questions import Answered, ClusterQuestions
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.pulls import PullTerms
from storage.errors import StorageError
from storage.format.record import encode_record
from tests.support.message_builder import make_message
from tests.torture.answer_decoders import FIELD_WORDS, SEPARATOR, answer, answer_parts, honest_answers
from tests.torture.decoders import JSON_BOMBS, Decoder
from tests.torture.mutations import PROPERTY_WORDS
from tests.torture.samples import Samples

_SETTINGS = ClientSettings(("n:1",))
_QUEUE = QueueId("TopicA", "b", 0)
_Answers = Mapping[int, tuple[int, dict[str, str], bytes]]


def _answered(answers: _Answers, command: RemotingCommand) -> RemotingCommand:
    code, fields, body = answers.get(command.code, (0, {}, b""))
    return make_response(command, code, fields.get("remark", "").replace("+", " "), fields, body)


# The driver


class _Questions(ClusterQuestions):
    """Every request is answered by the input."""

    def __init__(self, answers: _Answers) -> None:
        super().__init__(_SETTINGS)
        self._given = answers

    def _ask_all(
        self,
        commands: Mapping[str, Sequence[RemotingCommand]],
        timeout_ms: int,
        failures: dict[str, ClientError] | None = None,
    ) -> dict[str, list[Answered]]:
        return {
            address: [Answered(address, one, _answered(self._given, one)) for one in asked]
            for address, asked in commands.items()
        }


def _read_cluster(content: bytes, directory: Path) -> bool:
    """What a driver asks before and while it plans."""
    _, answers = answer_parts(content)
    given = {"nameServer": "n:1", "subscribePattern": "Topic.*", "pullTimeout": "1ms", "startingOffsets": "earliest"}
    options = SourceOptions.parse(given, "streaming")
    with patch.object(live_cluster, "ClusterQuestions", lambda settings: _Questions(answers)):
        cluster = live_cluster.LiveCluster(options)
    cluster.refresh()
    queues = cluster.queues()
    assert list(queues) == sorted(set(queues))
    for queue in queues[:2]:
        first, end = cluster.bounds(queue)
        assert first <= end
        place = cluster.record_before(queue, end)
        assert place is None or len(place) == 2
        cluster.group_offset("G", queue)
        found = cluster.offset_by_time(queue, 5)
        assert found is None or first <= found <= end
    cluster.refuse_batch_topics(["TopicA"])
    assert cluster.queue_count("TopicA") >= 0
    return bool(queues)


def _clusters(samples: Samples) -> list[bytes]:
    honest = dict(honest_answers("TopicA"))
    fields = honest[RequestCode.PULL_MESSAGE][0].replace("nextBeginOffset=3", "nextBeginOffset=9")
    last = encode_record(make_message(queue_offset=8))
    gap = fields.replace("FOUND", "NO_MATCHED_MESSAGE")
    asked = [answer(code, *honest[code]) for code in (105, 106, 206, 202, 351, 300, 14, 29)]
    return [SEPARATOR.join((b"", *asked, each)) for each in (answer(11, fields, last), answer(11, gap, b"", 20))]


# A task


class _Connection:
    """A connection to a broker that answers each pull as the input says, each after the other by the next answer."""

    answers: _Answers = {}  # noqa: RUF012

    def __init__(self, address: str, settings: ClientSettings) -> None:
        self.address = address
        self._waiting: list[tuple[RemotingCommand, Any]] = []

    def send(self, requests: Iterable[tuple[RemotingCommand, Any]], timeout_ms: int | None = None) -> None:
        self._waiting += requests

    def receive(self, timeout_ms: int | None = None) -> list[tuple[Any, RemotingCommand]]:
        given = [(waiter, _answered(self.answers, command)) for command, waiter in self._waiting]
        self._waiting = []
        return given

    def close(self) -> None:
        self._waiting = []


def _read_range(content: bytes, directory: Path) -> bool:
    """A range of one queue, as a task reads it: rows within the range and in order, or a named error."""
    _, answers = answer_parts(content)
    reader = pull_reader.PullReader(_QUEUE, {0: "b:1"}, PullTerms(_SETTINGS, "G", timeout_ms=1), verify_crc=True)
    found: list[int] = []
    with patch.object(pull_reader, "BlockingConnection", type("Own", (_Connection,), {"answers": answers})):
        for part in reader.slices(0, 3):
            found += part.queue_offsets.tolist()
    assert found == sorted(set(found))
    assert all(0 <= offset < 3 for offset in found)
    return bool(found)


def _ranges(samples: Samples) -> list[bytes]:
    fields, body = honest_answers("TopicA")[RequestCode.PULL_MESSAGE]
    filtered = fields.replace("FOUND", "NO_MATCHED_MESSAGE")
    return [SEPARATOR.join((b"", answer(11, fields, body))), SEPARATOR.join((b"", answer(11, filtered, b"", 20)))]


# The commit of a live sink


class _Asked(BrokerQuestions):
    """Over connections that answer as the input says."""

    def __init__(self, answers: _Answers) -> None:
        self.settings = _SETTINGS
        self._timeout_ms = self._retry_timeout_ms = 1
        self._topic_of = {}
        self._kind = type("Own", (_Connection,), {"answers": answers})

    @contextmanager
    def connected(self, broker_name: str) -> Iterator[Any]:
        yield self._kind("b:1", _SETTINGS)


class _Brokers(LiveBrokers):
    """The questions of a commit."""

    def __init__(self, answers: _Answers) -> None:
        self._questions = _Asked(answers)
        self._topic = "SPARK_MQ_SINK"
        self._fenced = {}
        self._options = cast(Any, SimpleNamespace(send_timeout=0, fence_timeout=0))


def _read_commit(content: bytes, directory: Path) -> bool:
    _, answers = answer_parts(content)
    brokers, queue = _Brokers(answers), MessageQueue(*_QUEUE)
    brokers.prepare([queue], [queue])
    assert all(isinstance(end, int) for end in brokers.ends([queue]).values())
    assert isinstance(brokers._questions.start(queue), int)
    assert brokers._is_past("b", ["SPARK_MQ_x"]) in (True, False)
    return True


def _commits(samples: Samples) -> list[bytes]:
    honest = honest_answers("TopicA")
    codes = (351, 17, 30, 31, 310, 11)
    asked = [answer(code, *honest[code]) for code in codes]
    gone = answer(204, "remark=the+group+not+exist", b"", 1)
    return [SEPARATOR.join((b"", *asked, answer(204, *honest[204]))), SEPARATOR.join((b"", *asked, gone))]


_NAMED = (ClientError, StorageError, SparkMqError)
_WORDS = (*FIELD_WORDS, *PROPERTY_WORDS)

DECODERS: Sequence[Decoder] = (
    Decoder(
        "answers to a driver",
        _clusters,
        _read_cluster,
        _NAMED,
        words=_WORDS,
        inputs=800,
        bombs=lambda: [SEPARATOR.join((b"", answer(105, "", bomb))) for bomb in JSON_BOMBS],
    ),
    Decoder("answers to a task", _ranges, _read_range, _NAMED, words=_WORDS, inputs=800),
    Decoder("answers to a commit", _commits, _read_commit, _NAMED, words=_WORDS, inputs=500),
)
