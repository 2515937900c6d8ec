"""How large a row may be at running brokers: as they say themselves, and as the option says where they do not."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import InvalidRowError, OptionError
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, write_body
from spark_mq.remoting.frames import MOST_BODY_BYTES
from spark_mq.remoting.routes import BrokerData, QueueData, TopicRouteData
from spark_mq.sink import live_routes
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.direct_writer import send_over
from spark_mq.sink.live_routes import BodyLimit, KnownLimits, LiveRoutes, limit_of
from spark_mq.sink.options import LiveSinkOptions
from tests.support.fake_broker import BROKER, FakeBroker, RoutesTo, TakingBroker

MIB = 1 << 20
OPTIONS = {"nameServer": "unused:1", "topic": "T", "guarantee": "atLeastOnce"}


class NameServer(FakeBroker):
    """A topic with a queue at each of these brokers."""

    def __init__(self, brokers: dict[str, str]) -> None:
        super().__init__([])
        self._brokers = brokers

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        queues = tuple(
            QueueData(broker_name=name, read_queue_count=1, write_queue_count=1, perm=6) for name in self._brokers
        )
        brokers = tuple(
            BrokerData(cluster="C", broker_name=name, broker_addresses={0: address})
            for name, address in self._brokers.items()
        )
        route = TopicRouteData(queue_datas=queues, broker_datas=brokers)
        return make_response(request, 0, None, None, write_body(route))


class SayingBroker(FakeBroker):
    """Says this of its configuration, or refuses."""

    def __init__(self, text: bytes | None) -> None:
        super().__init__([])
        self.text = text

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        assert request.code == RequestCode.GET_BROKER_CONFIG
        if self.text is None:
            return make_response(request, 16, "no permission: Cluster get")
        return make_response(request, 0, None, None, self.text)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_routes, "_known", {})


@pytest.fixture
def brokers() -> Iterator[dict[str, SayingBroker]]:
    text = b"flushDiskType=ASYNC_FLUSH\nmaxMessageSize=12582912\nmappedFileSizeCommitLog=33554432\n"
    large, small = SayingBroker(text), SayingBroker(None)
    with large, small:
        yield {"large": large, "small": small}


def limits(brokers: dict[str, SayingBroker], option: int | None = None) -> BodyLimit:
    with NameServer({name: broker.address for name, broker in brokers.items()}) as server:
        settings = ClientSettings((server.address,))
        with LiveRoutes(settings, create_topic=True, retry_timeout_ms=600, max_message_size=option) as routes:
            assert routes.body_limit("T") == routes.body_limit("T")
            return routes.body_limit("T")


def test_each_broker_of_the_topic_is_asked_once_and_the_lowest_limit_counts(brokers: dict[str, SayingBroker]) -> None:
    large = {"large": brokers["large"]}
    assert limits(large) == BodyLimit(12 * MIB, "raise it in the configuration of broker large", 32 * MIB - 1_024)
    found = limits(brokers)
    assert found.size_bytes == 4 * MIB
    assert "broker small does not say its own" in found.cure
    assert "give the option maxMessageSize" in found.cure
    assert [len(broker.requests) for broker in brokers.values()] == [2, 1], "once for each client"


def test_that_a_broker_was_away_is_not_remembered(brokers: dict[str, SayingBroker]) -> None:
    large = brokers["large"]
    large.answers = [lambda *_: None]
    with NameServer({"large": large.address}) as server:
        sizes = []
        for _ in range(3):  # three tasks of one process
            with LiveRoutes(ClientSettings((server.address,)), create_topic=True, retry_timeout_ms=600) as routes:
                sizes.append(routes.body_limit("T").size_bytes)
    assert sizes == [4 * MIB, 12 * MIB, 12 * MIB]
    assert len(large.requests) == 2, "what it says is"


def test_the_option_lowers_what_brokers_say_and_stands_for_those_that_do_not() -> None:
    silent, large = {"a": KnownLimits(None, "no permission")}, {"a": KnownLimits(12 * MIB)}
    assert limit_of(silent, 10 * MIB) == limit_of(large, 10 * MIB) == BodyLimit(10 * MIB, "option maxMessageSize")
    assert limit_of(large, 16_000_000).size_bytes == 12 * MIB, "no option raises what a broker takes"
    assert limit_of({"a": KnownLimits(1 << 30)}, None).size_bytes == MOST_BODY_BYTES
    assert limit_of(silent, None).size_bytes == 4 * MIB


def test_a_row_that_its_broker_takes_goes_alone_and_batches_stay_below_the_limit() -> None:
    bodies = [b"small", b"x" * (5 * MIB), *(bytes([at]) * 30_000 for at in range(8))]
    with TakingBroker() as broker:
        routes = RoutesTo(broker, queue_count=1)
        routes.limit = limit_of({BROKER: KnownLimits(6 * MIB)}, None)
        send(routes, bodies)
        assert [len(taken.body) for taken in broker.stored["T", 0]] == [len(body) for body in bodies]
        routes.limit = limit_of({BROKER: KnownLimits(100_000)}, None)
        broker.requests.clear()
        send(routes, bodies[2:])
        assert len(broker.requests) == 3, "three rows a batch of at most 100,000 bytes, batchBytes says 512k"
        assert all(len(request.body) <= 100_000 for request in broker.requests)


def test_a_row_over_the_limit_is_invalid_and_told_whose_limit_it_is() -> None:
    with TakingBroker() as broker:
        with pytest.raises(
            InvalidRowError, match=r"maxMessageSize is 4194304 .*raise it in the configuration of broker"
        ):
            send(RoutesTo(broker), [b"x" * (5 * MIB)])
        assert not broker.requests


def test_a_row_or_a_batch_that_fits_into_no_file_of_the_brokers_log_is_not_sent() -> None:
    """Java's broker acknowledges it, and stores nothing: CommitLog.asyncPutMessage."""
    small = limit_of({BROKER: KnownLimits(4 * MIB, log_file_size=1 * MIB)}, None)
    with TakingBroker() as broker:
        routes = RoutesTo(broker, queue_count=1)
        routes.limit = small
        with pytest.raises(InvalidRowError, match="do not fit into a log file of 1047552"):
            send(routes, [b"x" * (1 * MIB)])
        assert not broker.requests
        send(routes, [bytes(50_000)] * 4)
        assert len(broker.requests) == 2, "of 131,072 bytes at most"


def test_an_option_over_what_a_frame_carries_is_refused() -> None:
    with pytest.raises(OptionError, match="maxMessageSize: a frame of 16m carries bodies of up to 16515072 bytes"):
        LiveSinkOptions.parse({**OPTIONS, "maxMessageSize": "16m"}, "batch")


def send(routes: RoutesTo, bodies: list[bytes]) -> None:
    options = LiveSinkOptions.parse(OPTIONS, "batch")
    send_over(routes, options, InputColumns(("body",)), 0, bytes(8), iter([pa.record_batch({"body": bodies})]))
