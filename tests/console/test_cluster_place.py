"""The one rule for brokers that do not answer a page: named, asked no more, waited for up to a bound; the others are asked on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest

from spark_mq.client.errors import BrokerUnreachableError, ResponseError, TornAnswerError
from spark_mq.client.event_loop import run
from spark_mq.client.pulls import PullResult, PullStatus
from spark_mq.client.settings import ClientSettings
from spark_mq.console.cluster_place import ClusterPlace, SlowBrokerError, _Waited
from spark_mq.console.cluster_view import ClusterView
from spark_mq.remoting import MessageQueue
from spark_mq.source.offsets import QueueId
from spark_mq.source.pulled_records import PulledRecordError
from storage.errors import CorruptRecordError
from storage.format.record import encode_record
from tests.support.message_builder import make_message

SETTINGS = ClientSettings(("127.0.0.1:1",))
REFUSAL = ResponseError(1, "no", "127.0.0.1:2", "a question")
BROKEN = BrokerUnreachableError("127.0.0.1:2", "refused")


@pytest.fixture
def open_place() -> Iterator[Callable[[float | None], ClusterPlace]]:
    made: list[ClusterPlace] = []

    def open_one(wait_s: float | None) -> ClusterPlace:
        made.append(ClusterPlace(SETTINGS, wait_s))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


class Broker:
    """Counts its calls; raises what it is told to, sleeps, or answers with its name."""

    def __init__(self, name: str, error: Exception | None = None, sleeps_s: float = 0) -> None:
        self.name = name
        self.calls = 0
        self._error = error
        self._sleeps_s = sleeps_s

    async def __call__(self) -> str:
        self.calls += 1
        await asyncio.sleep(self._sleeps_s)
        if self._error is not None:
            raise self._error
        return self.name


def asked(place: ClusterPlace, broker: Broker) -> str | None:
    return run(place.asked(broker.name, broker))


def test_a_broker_that_does_not_answer_is_named_and_not_asked_again(
    open_place: Callable[[float | None], ClusterPlace],
) -> None:
    place, broken, other = open_place(10), Broker("broken", BROKEN), Broker("other")
    assert [asked(place, each) for each in (broken, other, broken, other)] == [None, "other", None, "other"]
    assert (broken.calls, other.calls) == (1, 2)
    assert place.troubles == {"broken": BROKEN}


def test_a_broker_that_refuses_is_named_and_asked_again(open_place: Callable[[float | None], ClusterPlace]) -> None:
    place, refusing = open_place(10), Broker("refusing", REFUSAL)
    assert [asked(place, refusing), asked(place, refusing)] == [None, None]
    assert refusing.calls == 2
    assert place.troubles == {"refusing": REFUSAL}


@pytest.mark.parametrize(
    "error", [PulledRecordError("an answer ends 3 bytes behind"), CorruptRecordError("record", 0, "whole", "3 bytes")]
)
def test_a_broker_whose_records_are_cut_is_named_and_asked_again(
    error: Exception, open_place: Callable[[float | None], ClusterPlace]
) -> None:
    """Apache's broker gives such records for a moment, while it deletes the first file of its log."""
    place, torn, other = open_place(10), Broker("torn", error), Broker("other")
    assert [asked(place, each) for each in (torn, other, torn)] == [None, "other", None]
    assert torn.calls == 2
    assert isinstance(place.troubles["torn"], TornAnswerError)
    assert re.search("^broker torn: .* cannot be read: .*3 bytes.* Try again", str(place.troubles["torn"]))


def test_open_transactions_of_a_broker_whose_records_are_cut_are_missing_with_its_name(
    open_place: Callable[[float | None], ClusterPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_place(10)
    view = ClusterView(place)

    class Answers:
        async def route(self, topic: str) -> None: ...

        async def group_offset(self, group: str, queue: MessageQueue) -> int:
            return 0

        async def min_offset(self, queue: MessageQueue) -> int:
            return 0

        async def max_offset(self, queue: MessageQueue) -> int:
            return 1

        async def close(self) -> None: ...

    async def pulled(queue: QueueId, offset: int, limit: int, tags: str = "*") -> PullResult:
        records = encode_record(make_message(queue.topic, 0, 0)) if queue.broker_name == "other" else b"cut"
        return PullResult(PullStatus.FOUND, 1, 0, 1, records=records)

    monkeypatch.setattr(place, "admin", Answers())
    monkeypatch.setattr(place, "pulled", pulled)
    monkeypatch.setattr(view, "_addresses", lambda: [("c", name, 0, f"{name}:1") for name in ("other", "torn")])
    assert [each.broker_name for each in view.transactions()] == ["other"]
    assert "torn: the answer to PULL_MESSAGE (11) cannot be read" in str(place.troubles["torn"])


def test_a_broker_is_waited_for_so_long_in_all_and_the_others_have_their_own_time(
    open_place: Callable[[float | None], ClusterPlace],
) -> None:
    place, slow, other = open_place(5), Broker("slow", sleeps_s=600), Broker("other")
    place._waited["slow"] = _Waited(before_s=4.99)
    assert [asked(place, slow), asked(place, slow), asked(place, other)] == [None, None, "other"]
    assert slow.calls == 1
    assert isinstance(place.troubles["slow"], SlowBrokerError)
    assert "it has not answered all that the page asks within 5 s" in str(place.troubles["slow"])


def test_requests_at_the_same_time_are_one_wait(open_place: Callable[[float | None], ClusterPlace]) -> None:
    place, waited = open_place(None), _Waited()
    place._waited["a"] = waited
    broker = Broker("a", sleeps_s=0.01)

    async def three() -> list[str | None]:
        return await asyncio.gather(*(place.asked("a", broker) for _ in range(3)))

    assert run(three()) == ["a"] * 3
    assert waited.calls == 0
    assert waited.seconds == waited.before_s > 0
