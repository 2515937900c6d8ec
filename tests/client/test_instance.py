"""One client of a cluster: routes that outlive a name server, heartbeats, members, and the end, against planned servers."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from spark_mq.client.errors import (
    BrokerNotFoundError,
    ClientClosedError,
    GroupTakenError,
    MalformedResponseError,
    MessageQueueNotFoundError,
    NameServerUnreachableError,
    ResponseError,
    TopicRouteNotFoundError,
)
from spark_mq.client.event_loop import run
from spark_mq.client.instance import ClientInstance, make_client_id
from spark_mq.client.members import Member
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, make_request, make_response, read_body, write_body
from spark_mq.remoting.consumers import ConsumerData, HeartbeatData
from spark_mq.remoting.routes import BrokerData, QueueData, TopicRouteData
from tests.client.conftest import in_a_child
from tests.support.planned_server import Peer, PlannedServer, closed_port, echo, planned_server

LIMIT_MS = 20_000


class Cluster:
    """A planned name server and broker, which know one topic "T" (and TBW102)."""

    def __init__(self, stack: ExitStack) -> None:
        self.topics: dict[str, QueueData] = {}
        self.broker: PlannedServer = stack.enter_context(planned_server(echo))
        self.name_server: PlannedServer = stack.enter_context(planned_server(self.answer))
        self.add("T", 2)

    def add(self, topic: str, count: int, perm: int = 6) -> None:
        self.topics[topic] = QueueData(broker_name="b", read_queue_count=count, write_queue_count=count, perm=perm)

    def answer(self, peer: Peer, command: RemotingCommand) -> None:
        topic = (command.ext_fields or {})["topic"]
        queues = self.topics.get(topic)
        if queues is None:
            peer.send(make_response(command, 17, f"No topic route info in name server for the topic: {topic}"))
            return
        brokers = (BrokerData(broker_name="b", broker_addresses={0: self.broker.address, 1: closed_port()}),)
        route = TopicRouteData(queue_datas=(queues,), broker_datas=brokers)
        peer.send(make_response(command, 0, None, None, write_body(route)))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


@contextmanager
def opened(*name_servers: str, **more: Any) -> Iterator[ClientInstance]:
    instance = ClientInstance.of(ClientSettings(name_servers, **more))
    try:
        yield instance
    finally:
        instance.release()


class Consumer(Member):
    """A consumer group of topic T that remembers what it is told."""

    kind = "consumer"

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.told: list[str] = []

    def topics(self) -> tuple[str, ...]:
        return ("T",)

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(group_name=self.group, consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING")

    def on_consumer_ids_changed(self) -> None:
        self.told.append("changed")


def test_equal_settings_share_one_instance_until_the_last_gives_it_back(cluster: Cluster) -> None:
    settings = ClientSettings((cluster.name_server.address,))
    first, second = ClientInstance.of(settings), ClientInstance.of(settings)
    other = ClientInstance.of(ClientSettings((cluster.name_server.address,), unit_name="u"))
    assert first is second
    assert other is not first
    first.release()
    assert run(second.route("T"), LIMIT_MS).topic == "T"
    second.release()
    with pytest.raises(ClientClosedError, match="it is closed"):
        run(second.route("T"), LIMIT_MS)
    again = ClientInstance.of(settings)
    assert again is not first
    again.release()
    other.release()


def test_who_makes_a_client_while_names_are_slow_to_find_holds_up_nobody(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, found, open_ones = threading.Event(), threading.Event(), []

    def find_slowly(settings: ClientSettings) -> str:
        if settings.unit_name == "slow":
            asked.set()
            assert found.wait(LIMIT_MS / 1000)
        return make_client_id(settings)

    def make() -> None:
        open_ones.append(ClientInstance.of(ClientSettings((cluster.name_server.address,), unit_name="slow")))

    def use() -> None:
        with opened(cluster.name_server.address) as client:
            run(client.route("T"), LIMIT_MS)

    monkeypatch.setattr("spark_mq.client.instance.make_client_id", find_slowly)
    makers = [threading.Thread(target=make) for _ in range(2)]
    user = threading.Thread(target=use)
    for maker in makers:
        maker.start()
    assert asked.wait(10)
    user.start()
    user.join(5)
    is_held_up = user.is_alive()
    found.set()
    for thread in (*makers, user):
        thread.join(10)
    assert not is_held_up
    assert open_ones[0] is open_ones[1]  # whichever was first
    for instance in open_ones:
        instance.release()


def test_a_client_id_names_address_process_and_moment() -> None:
    default = make_client_id(ClientSettings("127.0.0.1:9876"))  # type: ignore[arg-type]
    assert default.startswith(f"127.0.0.1@{os.getpid()}#")
    named = ClientSettings(("127.0.0.1:9876",), instance_name="n", unit_name="u", client_ip="10.0.0.1")
    assert make_client_id(named) == "10.0.0.1@n@u"


def test_a_route_is_kept_and_asked_for_again_when_that_is_wanted(cluster: Cluster) -> None:
    with opened(cluster.name_server.address) as client:
        queues = run(client.publish_queues("T"), LIMIT_MS)
        assert [tuple(queue) for queue in queues] == [("T", "b", 0), ("T", "b", 1)]
        cluster.add("T", 3)
        assert len(run(client.subscribe_queues("T"), LIMIT_MS)) == 2
        assert len(run(client.route("T", refresh=True), LIMIT_MS).subscribe_queues) == 3
        assert run(client.broker_address("b"), LIMIT_MS) == cluster.broker.address
        assert len(cluster.name_server.commands) == 2


def test_a_name_server_that_is_away_is_passed_over(cluster: Cluster) -> None:
    for _ in range(4):  # whichever is asked first
        with opened(closed_port(), cluster.name_server.address, closed_port()) as client:
            assert run(client.route("T"), LIMIT_MS).topic == "T"
            assert client.name_servers.addresses[0] == cluster.name_server.address


def test_no_name_server_at_all_names_each_with_its_reason() -> None:
    addresses = (closed_port(), closed_port())
    with opened(*addresses) as client, pytest.raises(NameServerUnreachableError) as error:
        run(client.route("T"), LIMIT_MS)
    assert {address for address, _ in error.value.tries} == set(addresses)
    assert all("Connection refused" in reason for _, reason in error.value.tries)


def test_silent_name_servers_together_take_no_longer_than_the_time_out() -> None:
    with planned_server(lambda peer, command: None) as one, planned_server(lambda peer, command: None) as other:
        with opened(one.address, other.address, request_timeout_ms=200) as client:
            begun = time.monotonic()
            with pytest.raises(NameServerUnreachableError, match="no answer to GET_ROUTEINFO_BY_TOPIC"):
                run(client.route("T"), LIMIT_MS)
            assert time.monotonic() - begun >= 0.19
        assert len(one.commands) == len(other.commands) == 1


def test_a_name_server_that_keeps_silent_is_asked_over_a_new_connection_the_next_time() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(planned_server(lambda peer, command: None)) for _ in range(3)]
        with opened(*(server.address for server in servers), request_timeout_ms=600) as client:
            with pytest.raises(NameServerUnreachableError):
                run(client.route("T"), LIMIT_MS)
            assert all(server.commands for server in servers)
            assert client.remoting.addresses == ()


def test_a_topic_without_a_route_is_named_with_the_servers_remark(cluster: Cluster) -> None:
    with opened(cluster.name_server.address) as client:
        with pytest.raises(
            TopicRouteNotFoundError, match=r"topic Absent has no route at name server .*No topic route info"
        ):
            run(client.route("Absent"), LIMIT_MS)
        with pytest.raises(TopicRouteNotFoundError):
            run(client.publish_queues("Absent", default_queue_count=4), LIMIT_MS)  # TBW102 is not there either
        cluster.add("TBW102", 8, 7)
        assert len(run(client.publish_queues("Absent", default_queue_count=4), LIMIT_MS)) == 4


def test_a_topic_that_cannot_be_written_or_read_is_said(cluster: Cluster) -> None:
    cluster.add("ReadOnly", 1, 4)
    cluster.add("WriteOnly", 1, 2)
    with opened(cluster.name_server.address) as client:
        with pytest.raises(MessageQueueNotFoundError, match="ReadOnly: no queue of it can be written"):
            run(client.publish_queues("ReadOnly"), LIMIT_MS)
        with pytest.raises(MessageQueueNotFoundError, match="WriteOnly: no queue of it can be read"):
            run(client.subscribe_queues("WriteOnly"), LIMIT_MS)


def test_the_last_known_route_serves_while_name_servers_are_away(cluster: Cluster, caplog: Any) -> None:
    with opened(cluster.name_server.address, request_timeout_ms=300) as client:
        run(client.route("T"), LIMIT_MS)
        cluster.name_server.close()
        assert run(client.route("T", refresh=True), LIMIT_MS).topic == "T"
        assert "the one before" in caplog.text
        with pytest.raises(NameServerUnreachableError):
            run(client.route("Other"), LIMIT_MS)


def test_a_topic_that_was_deleted_is_not_found_when_it_is_asked_for(cluster: Cluster) -> None:
    with opened(cluster.name_server.address) as client:
        run(client.route("T"), LIMIT_MS)
        del cluster.topics["T"]
        assert run(client.route("T"), LIMIT_MS).topic == "T"
        with pytest.raises(TopicRouteNotFoundError):
            run(client.route("T", refresh=True), LIMIT_MS)


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (
            lambda peer, command: peer.send(make_response(command, 0, None, None, b'{"queueDatas":7}')),
            MalformedResponseError,
        ),
        (lambda peer, command: peer.send(make_response(command, 1, "name server not ready")), ResponseError),
    ],
)
def test_a_name_server_that_lies_or_refuses_is_named(plan: Callable[[Peer, RemotingCommand], None], error: Any) -> None:
    with planned_server(plan) as server, opened(server.address) as client, pytest.raises(error, match=server.address):
        run(client.route("T"), LIMIT_MS)


def test_a_broker_that_no_route_names_is_not_found(cluster: Cluster) -> None:
    with opened(cluster.name_server.address) as client:
        run(client.route("T"), LIMIT_MS)
        assert run(client.broker_address("b", 7, only_this=False), LIMIT_MS) == cluster.broker.address
        for name, broker_id in (("absent", 0), ("b", 7)):
            with pytest.raises(BrokerNotFoundError, match=f"{name} with id {broker_id}"):
                run(client.broker_address(name, broker_id), LIMIT_MS)


def test_a_member_is_told_to_brokers_at_once_and_taken_back_at_the_end(cluster: Cluster) -> None:
    with opened(cluster.name_server.address) as client:
        producer = Member("pg")
        producer.topics = lambda: ("T",)  # type: ignore[method-assign]
        run(client.add_member(producer), LIMIT_MS)
        (beat,) = cluster.broker.until(34)
        told = read_body(HeartbeatData, beat.body)
        assert told.client_id == client.client_id
        assert [each.group_name for each in told.producers] == ["pg", "CLIENT_INNER_PRODUCER"]
        assert told.consumers == ()
        with pytest.raises(GroupTakenError):
            run(client.add_member(Member("pg")), LIMIT_MS)
        run(client.add_member(Consumer("pg")), LIMIT_MS)  # of another kind
        told = read_body(HeartbeatData, cluster.broker.until(34, 2)[-1].body)
        assert [each.group_name for each in told.consumers] == ["pg"]
    left = [dict(command.ext_fields or {}) for command in cluster.broker.until(35, 2)]
    assert left == [
        {"clientID": client.client_id, "producerGroup": "pg"},
        {"clientID": client.client_id, "consumerGroup": "pg"},
    ]


def test_heartbeats_go_on_and_come_at_once_over_a_new_connection(cluster: Cluster) -> None:
    with opened(cluster.name_server.address) as client:
        run(client.add_member(Consumer("g")), LIMIT_MS)
        assert len(cluster.broker.until(34)) == 1
        cluster.broker.peers[0].hang_up()
        while cluster.broker.address in client.remoting.addresses:
            time.sleep(0.005)
        run(client.invoke(cluster.broker.address, make_request(30, {})), LIMIT_MS)
        assert len(cluster.broker.until(34, 2)) == 2  # not by the clock, which says 30 s


def test_what_a_broker_asks_reaches_the_member_of_its_group(cluster: Cluster) -> None:
    consumer = Consumer("g")
    with opened(cluster.name_server.address) as client:
        run(client.add_member(consumer), LIMIT_MS)
        peer = cluster.broker.peers[0]
        for opaque, group in enumerate(("other", "g")):
            peer.send(make_request(40, {"consumerGroup": group}, is_oneway=True)._replace(opaque=opaque))
            peer.send(make_request(307, {"consumerGroup": group, "clientId": "c"})._replace(opaque=10 + opaque))
        answers = {each.opaque: each for each in cluster.broker.until(0) + cluster.broker.until(1)}
        assert answers[10].remark == "The Consumer Group <other> not exist in this consumer"
        assert answers[11].code == 0
        assert consumer.told == ["changed"]


def test_a_bad_request_of_a_broker_is_answered_and_harms_nobody(cluster: Cluster) -> None:
    logging.getLogger("spark_mq.client.remoting_client").disabled = True
    with opened(cluster.name_server.address) as client:
        run(client.add_member(Consumer("g")), LIMIT_MS)
        peer = cluster.broker.peers[0]
        peer.send(make_request(307, {})._replace(opaque=1))
        peer.send(make_request(39, {}, b"no record", is_oneway=True)._replace(opaque=2))
        (answer,) = cluster.broker.until(1)
        assert "consumerGroup is missing" in (answer.remark or "")
        run(client.invoke(cluster.broker.address, make_request(30, {})), LIMIT_MS)
    logging.getLogger("spark_mq.client.remoting_client").disabled = False


def test_a_member_that_fails_takes_no_route_from_the_others(cluster: Cluster, caplog: Any) -> None:
    class Failing(Consumer):
        def on_route(self, route: Any) -> None:
            raise ValueError("no room")

    with opened(cluster.name_server.address) as client:
        run(client.add_member(Failing("g")), LIMIT_MS)
        cluster.add("T", 5)
        assert len(run(client.route("T", refresh=True), LIMIT_MS).subscribe_queues) == 5
        assert "consumer g did not take the route of topic T" in caplog.text


def test_routes_are_polled_for_members_and_told_to_them(cluster: Cluster) -> None:
    told = threading.Event()

    class Waiting(Consumer):
        def on_route(self, route: Any) -> None:
            if len(route.subscribe_queues) == 5:
                told.set()

    with opened(
        cluster.name_server.address, poll_name_server_interval_ms=20, heartbeat_broker_interval_ms=20
    ) as client:
        run(client.add_member(Waiting("g")), LIMIT_MS)
        cluster.add("T", 5)
        assert told.wait(10)
        cluster.name_server.plan = lambda peer, command: peer.send_bytes(b"no frame at all")
        cluster.broker.until(34, 3)  # by the clock, whatever became of the name server
        assert run(client.route("T"), LIMIT_MS).topic == "T"


def test_the_newest_route_says_where_a_broker_is_also_when_another_is_not_asked_for_again(cluster: Cluster) -> None:
    cluster.add("Other", 1)
    with opened(cluster.name_server.address, poll_name_server_interval_ms=20) as client, planned_server(echo) as moved:
        run(client.add_member(Consumer("g")), LIMIT_MS)
        run(client.route("Other"), LIMIT_MS)  # of no member: it is not polled
        before, cluster.broker = cluster.broker, moved
        asked = len(cluster.name_server.commands)
        cluster.name_server.until(105, asked + 4)  # each after what followed from the one before
        assert run(client.broker_address("b"), LIMIT_MS) == moved.address != before.address


def test_a_name_server_that_knows_nothing_yet_takes_no_broker_from_the_members(cluster: Cluster) -> None:
    with opened(cluster.name_server.address, poll_name_server_interval_ms=20) as client:
        run(client.add_member(Consumer("g")), LIMIT_MS)
        cluster.topics.clear()
        with pytest.raises(TopicRouteNotFoundError):  # who asks is told
            run(client.route("T", refresh=True), LIMIT_MS)
        cluster.name_server.until(105, len(cluster.name_server.commands) + 4)
        assert client.known_route("T") is not None
        assert client.broker_addresses("b")[0] == cluster.broker.address
        assert len(run(client.publish_queues("T"), LIMIT_MS)) == 2


def test_closing_while_a_route_is_asked_for_ends_the_question() -> None:
    async def close_amid(client: ClientInstance) -> Any:
        asking = asyncio.ensure_future(client.route("T"))
        await asyncio.sleep(0.02)
        await client.release_async()
        return await asyncio.gather(asking, return_exceptions=True)

    with planned_server(lambda peer, command: None) as silent:
        client = ClientInstance.of(ClientSettings((silent.address,), request_timeout_ms=60_000))
        (outcome,) = run(close_amid(client), LIMIT_MS)
    assert isinstance(outcome, ClientClosedError)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_makes_an_instance_of_its_own(cluster: Cluster) -> None:
    settings = ClientSettings((cluster.name_server.address,))
    parent = ClientInstance.of(settings)
    run(parent.route("T"), LIMIT_MS)

    def check() -> None:
        with pytest.raises(ClientClosedError):
            run(parent.route("T"), LIMIT_MS)
        own = ClientInstance.of(settings)
        assert own is not parent
        assert own.client_id != parent.client_id
        assert run(own.route("T"), LIMIT_MS).topic == "T"
        own.release()

    in_a_child(check)
    assert run(parent.route("T", refresh=True), LIMIT_MS).topic == "T"
    parent.release()
