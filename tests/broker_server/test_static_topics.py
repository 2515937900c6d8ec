"""A static topic at two running brokers: made and moved as mqadmin does it, sent to, pulled and counted by its logical queues."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_mq.broker.requests import AskBroker
from spark_mq.broker_server.name_servers import OtherBrokers
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.static_topics import MappingCleaning
from spark_mq.client.admin import Admin
from spark_mq.client.consumer_calls import QueueCalls
from spark_mq.client.errors import ResponseError
from spark_mq.client.event_loop import run
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pulls import Pull, PullResult, PullStatus, pulled_messages, subscription
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.administration import CreateTopicRequest, TopicRequest
from spark_mq.remoting.consumers import UpdateConsumerOffsetRequest
from storage.format import fastjson
from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.response_codes import ResponseCode
from storage.tables.document import encode_entry
from storage.tables.topics import MAPPINGS_FILE, MappingItem, TopicQueueMapping, TopicQueueMappingTable
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

TOPIC, GROUP = "Static", "G"
ONE, TWO = "one", "two"
BLOCK = 10_000


class Cluster(NamedTuple):
    """Two brokers, and a client that has no member."""

    settings: ClientSettings
    addresses: Mapping[str, str]
    stores: Mapping[str, Path]
    instance: ClientInstance
    brokers: Mapping[str, RunningBroker]

    def ask(self, broker_name: str, command: RemotingCommand) -> RemotingCommand:
        return run(self.instance.invoke(self.addresses[broker_name], command))

    def tell(
        self, mapping: TopicQueueMapping, queue_count: int = 1, *, force: bool = False, is_order: bool = False
    ) -> RemotingCommand:
        """513, as mqadmin sends it."""
        header = CreateTopicRequest(
            topic=TOPIC,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            force=force,
            is_order=is_order,
        )
        links = {
            str(queue_id): [encode_entry(item, None) for item in items]
            for queue_id, items in mapping.hosted_queues.items()
        }
        body = fastjson.to_text({**encode_entry(mapping, None), "hostedQueues": links}).encode()
        code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
        return self.ask(mapping.broker_name, make_request(code, write_header(header), body))

    def told(self, mapping: TopicQueueMapping) -> None:
        answer = self.tell(mapping)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def leaders(self) -> dict[int, str]:
        with Admin(self.settings) as admin:
            return {queue.queue_id: name for queue, name in admin.route(TOPIC).leaders.items()}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Logical queue 0 is led by `one`, queue 1 by `two`."""
    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        ports = [free_ports() for _ in range(2)]
        with (
            running(tmp_path / ONE, ports[0], names.address, f"brokerName={ONE}\n") as one,
            running(tmp_path / TWO, ports[1], names.address, f"brokerName={TWO}\n") as two,
        ):
            addresses = {name: f"127.0.0.1:{port}" for name, port in zip((ONE, TWO), ports, strict=True)}
            instance = ClientInstance.of(settings)
            try:
                made = Cluster(
                    settings, addresses, {ONE: tmp_path / ONE, TWO: tmp_path / TWO}, instance, {ONE: one, TWO: two}
                )
                for queue_id, name in enumerate((ONE, TWO)):
                    made.told(TopicQueueMapping(TOPIC, name, 2, 1, hosted_queues={queue_id: (MappingItem(name),)}))
                wait_until(lambda: made.leaders() == {0: ONE, 1: TWO}, "the route says who leads")
                run(instance.route(TOPIC, refresh=True))
                yield made
            finally:
                instance.release()


def move_first(cluster: Cluster, sent: int) -> None:
    """Logical queue 0 goes to `two`, as by remappingStaticTopic after so many messages."""
    chain = (MappingItem(ONE), MappingItem(TWO, 1, generation=1, logic_offset=-1))
    at_two = {1: (MappingItem(TWO),), 0: chain}
    incoming = TopicQueueMapping(TOPIC, TWO, 2, 2, hosted_queues=at_two)
    answer = cluster.tell(incoming, 2)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    cluster.told(TopicQueueMapping(TOPIC, ONE, 2, 2, hosted_queues={0: chain}))
    with Admin(cluster.settings) as admin:
        assert admin.topic_stats(TOPIC)[MessageQueue(TOPIC, ONE, 0)].max_offset == sent
    decided = (chain[0], replace(chain[1], logic_offset=BLOCK))
    answer = cluster.tell(replace(incoming, hosted_queues={**at_two, 0: decided}), 2)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    wait_until(lambda: cluster.leaders() == {0: TWO, 1: TWO}, "the route says who leads now")
    run(cluster.instance.route(TOPIC, refresh=True))


def logical(queue_id: int) -> MessageQueue:
    return MessageQueue(TOPIC, "__syslo__global__", queue_id)


def pull(cluster: Cluster, queue_id: int, offset: int, committed: int | None = None) -> PullResult:
    wanted = subscription(TOPIC, "*", 1)
    asked = Pull(
        logical(queue_id), offset, wanted, 32, sends_subscription=True, committed_offset=committed, suspend_ms=0
    )
    return run(QueueCalls(cluster.instance).pull(asked, "TOOLS_CONSUMER"))


def pulled(cluster: Cluster, queue_id: int, offset: int = 0) -> list[tuple[int, bytes]]:
    """Logical offsets and bodies from an offset on, as a consumer follows the broker's answers."""
    found: list[tuple[int, bytes]] = []
    while True:
        result = pull(cluster, queue_id, offset)
        messages = pulled_messages(result, logical(queue_id), subscription(TOPIC, "*", 1), lambda record: record.topic)
        found += [(message.queue_offset, message.body) for message in messages]
        if result.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL):
            return found
        offset = result.next_offset


def send(cluster: Cluster, *bodies: bytes, queue_id: int = 0) -> list[int]:
    with Producer(cluster.settings, "P") as producer:
        return [producer.send(Message(TOPIC, body), queue=logical(queue_id)).queue_offset for body in bodies]


def test_a_moved_queue_is_read_and_counted_over_both_brokers(cluster: Cluster) -> None:
    assert send(cluster, b"a", b"b", b"c") == [0, 1, 2]
    before_ms = int(time.time() * 1_000)
    time.sleep(0.002)
    move_first(cluster, 3)
    assert send(cluster, b"d", b"e") == [BLOCK, BLOCK + 1]
    everything = [(0, b"a"), (1, b"b"), (2, b"c"), (BLOCK, b"d"), (BLOCK + 1, b"e")]
    assert pulled(cluster, 0) == everything
    assert pulled(cluster, 0, 2) == everything[2:]
    calls = QueueCalls(cluster.instance)
    assert (run(calls.min_offset(logical(0))), run(calls.max_offset(logical(0)))) == (0, BLOCK + 2)
    assert run(calls.search_offset(logical(0), 0)) == 0
    assert run(calls.search_offset(logical(0), before_ms + 1)) == BLOCK
    assert run(calls.search_offset(logical(0), before_ms + 3_600_000)) == BLOCK + 2
    stored_ms = run(calls.earliest_time_ms(logical(0)))
    assert 0 < stored_ms <= before_ms


def test_a_groups_offset_lies_where_its_messages_do(cluster: Cluster) -> None:
    send(cluster, b"a", b"b", b"c")
    calls = QueueCalls(cluster.instance)
    with Admin(cluster.settings) as admin:
        admin.create_group(SubscriptionGroupConfig(GROUP))
    move_first(cluster, 3)
    assert run(calls.group_offset(GROUP, logical(0))) is None
    run(calls.store_group_offset(GROUP, logical(0), 2))
    assert run(calls.group_offset(GROUP, logical(0))) == 2
    assert physical_offset(cluster, ONE, 0) == 2
    assert physical_offset(cluster, TWO, 1) == -1
    run(calls.store_group_offset(GROUP, logical(0), BLOCK + 1))
    assert run(calls.group_offset(GROUP, logical(0))) == BLOCK + 1
    assert physical_offset(cluster, TWO, 1) == 1


def physical_offset(cluster: Cluster, broker_name: str, queue_id: int) -> int:
    with Admin(cluster.settings) as admin:
        found = admin.consume_stats(GROUP, TOPIC)
    return found[MessageQueue(TOPIC, broker_name, queue_id)].consumer_offset


def test_an_offset_that_a_pull_commits_is_stored_as_a_physical_one(cluster: Cluster) -> None:
    """Java stores the logical offset: a consumer that starts then is sent to the queue's end."""
    send(cluster, b"a")
    move_first(cluster, 1)
    send(cluster, b"b", b"c")
    pull(cluster, 0, BLOCK + 1, committed=BLOCK + 1)
    assert run(QueueCalls(cluster.instance).group_offset("TOOLS_CONSUMER", logical(0))) == BLOCK + 1


def test_who_leads_no_more_refuses_and_producers_go_on_at_the_new_leader(cluster: Cluster) -> None:
    with Producer(cluster.settings, "P") as producer:
        producer.send(Message(TOPIC, b"a"), queue=logical(0))
        move_first(cluster, 1)
        run(cluster.instance.route(TOPIC, refresh=True))
        found = {producer.send(Message(TOPIC, b"%d" % number)).queue.queue_id for number in range(4)}
        assert found == {0, 1}
    refused = UpdateConsumerOffsetRequest(consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=1)
    answer = cluster.ask(ONE, make_request(RequestCode.UPDATE_CONSUMER_OFFSET, write_header(refused)))
    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE


def test_an_offset_is_not_reset_in_a_physical_queue_that_has_the_logical_ones_number(cluster: Cluster) -> None:
    with Admin(cluster.settings) as admin:
        admin.create_group(SubscriptionGroupConfig(group=GROUP))
        with pytest.raises(ValueError, match="logical queue 1 of static topic 'Static' cannot be reset"):
            admin.reset_queue_offset(GROUP, logical(1), 0)
        with pytest.raises(ResponseError, match="Offsets in static topic Static cannot be reset"):
            admin.reset_queue_offset(GROUP, MessageQueue(TOPIC, ONE, 0), 0)
        with pytest.raises(ResponseError, match="seek and commit with a consumer of group G"):
            admin.reset_offsets(GROUP, TOPIC, -1)


def test_a_mapping_leaves_the_topics_attributes_and_order(cluster: Cluster) -> None:
    """mqadmin sends the order it was told, and no attributes."""
    wanted = CreateTopicRequest(
        topic=TOPIC,
        read_queue_count=1,
        write_queue_count=1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        is_order=True,
        attributes="+message.type=FIFO",
    )
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert cluster.ask(ONE, make_request(code, write_header(wanted))).code == ResponseCode.SUCCESS
    mapping = TopicQueueMapping(TOPIC, ONE, 2, 2, hosted_queues={0: (MappingItem(ONE),)})
    for is_order in (True, False):
        answer = cluster.tell(mapping, is_order=is_order)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        with Admin(cluster.settings) as admin:
            entry = admin.topic_config(TOPIC)[ONE]
        assert (entry.order, entry.attributes) == (is_order, {"message.type": "FIFO"})


def test_whatever_hinders_a_forwarded_request_is_its_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a pull that waits for it is never answered."""
    others = OtherBrokers(ClientSettings(("127.0.0.1:1",)), 1_000)

    async def fails(broker_name: str) -> str:
        raise ValueError(f"no address of {broker_name}")

    monkeypatch.setattr(others, "_address", fails)
    try:
        answer = others.answer(AskBroker(TWO, make_request(RequestCode.GET_MAX_OFFSET), lambda found: found))
    finally:
        others.close()
    assert (answer.code, "no address of two" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert "no address of two" in caplog.text


def test_a_mapping_that_goes_back_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    send(cluster, b"a")
    move_first(cluster, 1)
    file = cluster.stores[TWO] / "config" / MAPPINGS_FILE
    before = file.read_text("utf-8")
    older = TopicQueueMapping(TOPIC, TWO, 2, 1, hosted_queues={0: (MappingItem(TWO),)})
    for mapping, remark in (
        (older, "Can't accept data with small epoch 1 < 2"),
        (replace(older, epoch=3), "link 0 was"),
        (replace(older, epoch=3, broker_name=TWO, topic="Other"), "that of topic 'Other'"),
    ):
        answer = cluster.tell(mapping)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert remark in (answer.remark or "")
    assert file.read_text("utf-8") == before
    assert pulled(cluster, 0) == [(0, b"a")]


def test_the_topic_is_told_with_its_mapping_and_deleted_with_it(cluster: Cluster) -> None:
    for wanted, has in ((True, True), (None, False), (False, False)):
        command = make_request(RequestCode.GET_TOPIC_CONFIG, write_header(TopicRequest(topic=TOPIC, is_logical=wanted)))
        found = json.loads(bytes(cluster.ask(ONE, command).body))
        assert (found["topicName"], "mappingDetail" in found) == (TOPIC, has)
        if has:
            assert found["mappingDetail"]["hostedQueues"]["0"][0]["bname"] == ONE
    deleted = cluster.ask(
        ONE, make_request(RequestCode.DELETE_TOPIC_IN_BROKER, write_header(TopicRequest(topic=TOPIC)))
    )
    assert deleted.code == ResponseCode.SUCCESS
    table = TopicQueueMappingTable.load((cluster.stores[ONE] / "config" / MAPPINGS_FILE).read_text("utf-8"))
    assert not table.mappings


def test_a_part_at_a_broker_that_is_away_is_named(cluster: Cluster) -> None:
    chain = (MappingItem("gone"), MappingItem(ONE, 0, generation=1, logic_offset=BLOCK))
    answer = cluster.tell(TopicQueueMapping(TOPIC, ONE, 2, 2, hosted_queues={0: chain}), force=True)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    with pytest.raises(ResponseError, match="no name server knows a master of broker gone"):
        pull(cluster, 0, 0)
    assert pull(cluster, 0, BLOCK).status is PullStatus.NO_NEW_MESSAGE


def cleaned(cluster: Cluster, name: str) -> TopicQueueMapping:
    running_broker = cluster.brokers[name]
    parts = running_broker.broker.parts
    cleaning = MappingCleaning(parts, running_broker._others)
    cleaning.clean(TOPIC, parts.store.mappings.mappings[TOPIC])
    return parts.store.mappings.mappings[TOPIC]


def test_a_link_that_holds_nothing_any_more_is_cleaned_away_and_no_other(cluster: Cluster) -> None:
    """TopicQueueMappingCleanService.cleanItemExpired."""
    move_first(cluster, 0)
    assert len(cleaned(cluster, ONE).hosted_queues[0]) == 2
    assert [item.broker_name for item in cleaned(cluster, TWO).hosted_queues[0]] == [TWO]
    assert run(QueueCalls(cluster.instance).min_offset(logical(0))) == BLOCK
    assert send(cluster, b"a") == [BLOCK]
    assert pull(cluster, 0, 0).next_offset == BLOCK
    assert pulled(cluster, 0, BLOCK) == [(BLOCK, b"a")]


def test_a_link_with_messages_is_kept(cluster: Cluster) -> None:
    send(cluster, b"a")
    move_first(cluster, 1)
    assert len(cleaned(cluster, TWO).hosted_queues[0]) == 2
    assert pulled(cluster, 0) == [(0, b"a")]
