"""Our Admin and the client's core against the real name server and broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.errors import (
    ClientError,
    RequestTimeoutError,
    ResponseError,
    TopicRouteNotFoundError,
)
from spark_mq.client.event_loop import run
from spark_mq.client.instance import ClientInstance
from spark_mq.client.members import Member
from spark_mq.client.message import decode_records
from spark_mq.client.pulls import Pull, PullStatus, subscription
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.consumers import ConsumerData, SubscriptionData
from storage.errors import NameIllegalError
from storage.format.typed_json import SubscriptionGroupConfig
from tests.support.java_broker import Oracle, RunningBroker, needed_oracle, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BROKER_NAME = "broker-lab"
COUNT = 60


@pytest.fixture(params=["JSON", "ROCKETMQ"])
def admin(live_broker: RunningBroker, request: pytest.FixtureRequest) -> Iterator[Admin]:
    with Admin(ClientSettings((live_broker.name_server,), encoding=request.param)) as admin:
        yield admin


@pytest.fixture(scope="module")
def sent(live_broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a Java producer sent to topic Sent, and was answered."""
    directory = tmp_path_factory.mktemp("sent-")
    return Oracle(directory).send(directory / "sent.jsonl", live_broker, "Sent", queues=2, count=COUNT)


def queue(queue_id: int, topic: str = "Sent") -> MessageQueue:
    return MessageQueue(topic, BROKER_NAME, queue_id)


def test_the_name_server_tells_brokers_topics_and_routes(
    admin: Admin, live_broker: RunningBroker, sent: list[dict[str, Any]], oracle: Oracle
) -> None:
    info = admin.cluster_info()
    assert {name: tuple(found) for name, found in info.cluster_address_table.items()} == {"LabCluster": (BROKER_NAME,)}
    assert dict(info.broker_address_table[BROKER_NAME].broker_addresses) == {0: live_broker.address}
    assert admin.broker_addresses() == admin.broker_addresses("LabCluster") == [live_broker.address]
    assert {"Sent", "TBW102"} <= set(admin.topics())
    assert "Sent" in admin.topics("LabCluster")
    route = admin.route("Sent")
    assert route.publish_queues == route.subscribe_queues == (queue(0), queue(1))
    assert route.master_addresses == (live_broker.address,)
    assert admin.runtime_info(live_broker.address)["brokerVersionDesc"] == oracle.version_name
    with pytest.raises(ClientError, match=r"cluster='Absent'.*LabCluster"):
        admin.broker_addresses("Absent")


def test_a_topic_that_is_nowhere_is_named_with_the_name_servers_remark(admin: Admin) -> None:
    with pytest.raises(TopicRouteNotFoundError, match="No topic route info in name server for the topic: Nowhere"):
        admin.route("Nowhere")


def test_a_topic_is_made_changed_and_deleted(admin: Admin) -> None:
    topic = f"Made{time.monotonic_ns()}"
    admin.create_topic(NewTopic(topic, 3, 2, attributes={"message.type": "NORMAL"}))
    wait_until(lambda: topic in admin.topics(), "the name server knows the topic")
    made = admin.topic_config(topic)[BROKER_NAME]
    assert (made.read_queue_count, made.write_queue_count, made.perm) == (3, 2, 6)
    assert made.attributes == {"message.type": "NORMAL"}
    admin.create_topic(NewTopic(topic, 4, 4, perm=4), cluster="LabCluster")
    wait_until(lambda: admin.route(topic).publish_queues == (), "the name server knows that it is not to be written")
    assert len(admin.topic_stats(topic)) == 4
    admin.delete_topic(topic)
    with pytest.raises(TopicRouteNotFoundError):
        admin.route(topic)
    admin.delete_topic(topic)


def test_names_that_no_topic_or_group_may_have_are_refused_before_they_are_sent(admin: Admin) -> None:
    with pytest.raises(NameIllegalError):
        admin.create_topic(NewTopic("no topic"))
    with pytest.raises(NameIllegalError):
        admin.create_group(SubscriptionGroupConfig(group="no group"))
    with pytest.raises(ResponseError, match=r"29 \(INVALID_PARAMETER\) to UPDATE_AND_CREATE_TOPIC \(17\) topic TBW102"):
        admin.create_topic(NewTopic("TBW102"))


def test_queues_say_where_they_begin_and_end_and_what_lies_at_a_time(admin: Admin, sent: list[dict[str, Any]]) -> None:
    ends = {queue(0): COUNT // 2, queue(1): COUNT // 2}
    assert admin.max_offsets("Sent") == ends
    assert admin.min_offsets("Sent") == dict.fromkeys(ends, 0)
    stats = admin.topic_stats("Sent")
    assert {each: (found.min_offset, found.max_offset) for each, found in stats.items()} == {
        each: (0, end) for each, end in ends.items()
    }
    first = admin.view_message(sent[0]["offsetMsgId"])
    assert admin.earliest_time_ms(queue(0)) == first.store_time_ms
    assert admin.search_offset(queue(0), 0) == 0
    assert admin.search_offset(queue(0), first.store_time_ms) == 0
    assert admin.search_offset(queue(0), stats[queue(0)].last_update_time_ms + 1) == COUNT // 2
    upper = admin.search_offset(queue(0), stats[queue(0)].last_update_time_ms, upper=True)
    assert upper == COUNT // 2 - 1
    assert admin.max_offset(queue(7)) == 0  # brokers refuse no unknown queue


def test_messages_are_found_by_place_key_and_unique_key(admin: Admin, sent: list[dict[str, Any]]) -> None:
    line = next(each for each in sent if each.get("keys"))
    by_id = admin.view_message(line["offsetMsgId"], "Sent")
    assert (by_id.message_id, by_id.topic, by_id.tags) == (line["msgId"], "Sent", line["tags"])
    assert (by_id.queue, by_id.queue_offset) == (queue(line["queueId"]), line["queueOffset"])
    wait_until(lambda: bool(admin.query_by_unique_key("Sent", line["msgId"]).messages), "the index has it")
    (by_unique_key,) = admin.query_by_unique_key("Sent", line["msgId"]).messages
    assert by_unique_key.offset_message_id == line["offsetMsgId"]
    by_key = admin.query_by_key("Sent", line["keys"])
    assert {each.message_id for each in by_key.messages} == {
        each["msgId"] for each in sent if each.get("keys") == line["keys"]
    }
    assert by_key.index_time_ms > 0
    assert admin.query_by_key("Sent", "no such key").messages == ()
    with pytest.raises(ResponseError, match="can not find message by the offset"):
        admin.view_message(line["offsetMsgId"][:-16] + "00000FFFFFFFFFFF")
    with pytest.raises(ValueError, match="no offset message id"):
        admin.view_message("7F")


def test_a_raw_pull_gives_the_records_and_where_to_go_on(admin: Admin, sent: list[dict[str, Any]]) -> None:
    def pulled(offset: int, expression: str = "*") -> Any:
        wanted = subscription("Sent", expression, 0)
        return admin.pull(Pull(queue(0), offset, wanted, suspend_ms=0, sends_subscription=True), "PullGroup")

    found = pulled(0)
    assert (found.status, found.min_offset, found.max_offset) == (PullStatus.FOUND, 0, COUNT // 2)
    assert [record.queue_offset for record in decode_records(found.records)] == list(range(found.next_offset))
    tagged = [record.tags for record in decode_records(pulled(0, "TagA || TagC").records)]
    assert set(tagged) == {"TagA", "TagC"}
    assert pulled(COUNT // 2).status is PullStatus.NO_NEW_MESSAGE
    moved = pulled(COUNT)
    assert (moved.status, moved.next_offset) == (PullStatus.OFFSET_ILLEGAL, COUNT // 2)
    nowhere = Pull(queue(9), 0, subscription("Sent", "*", 0), suspend_ms=0, sends_subscription=True)
    with pytest.raises(ResponseError, match=r"queueId\[9\] is illegal"):
        admin.pull(nowhere, "PullGroup")


def test_a_pull_that_the_broker_holds_is_waited_for_and_no_longer(admin: Admin, sent: list[dict[str, Any]]) -> None:
    wanted = subscription("Sent", "*", 0)
    held = Pull(queue(0), COUNT // 2, wanted, suspend_ms=300, sends_subscription=True)
    assert admin.pull(held, "PullGroup", timeout_ms=20_000).status is PullStatus.NO_NEW_MESSAGE
    with pytest.raises(RequestTimeoutError, match="PULL_MESSAGE"):
        admin.pull(Pull(queue(0), COUNT // 2, wanted, suspend_ms=1, sends_subscription=True), "PullGroup", timeout_ms=1)


def test_a_groups_offsets_are_stored_read_reset_and_forgotten(admin: Admin, sent: list[dict[str, Any]]) -> None:
    group = f"Offsets{time.monotonic_ns()}"
    with pytest.raises(ResponseError, match=r"26 \(SUBSCRIPTION_GROUP_NOT_EXIST\).*group Offsets"):
        admin.store_group_offset(group, queue(0), 1)
    admin.create_group(SubscriptionGroupConfig(group=group, retry_max_times=3))
    assert admin.groups()[group].retry_max_times == 3
    assert admin.group_offset(group, queue(0)) == 0  # a young queue in memory
    assert admin.store_group_offset(group, queue(0), 7)
    assert admin.group_offset(group, queue(0)) == 7
    assert admin.topics_of_group(group) == ("Sent",)
    stats = admin.consume_stats(group, "Sent")
    assert stats[queue(0)].consumer_offset == 7
    assert stats[queue(0)].broker_offset == COUNT // 2
    assert admin.reset_offsets(group, "Sent", -1) == {queue(0): COUNT // 2, queue(1): COUNT // 2}
    assert not admin.store_group_offset(group, queue(0), 9)  # the reset waits for the group's next pull
    assert admin.group_offset(group, queue(0)) == COUNT // 2
    assert admin.reset_queue_offset(group, queue(1), 5) == {queue(1): 5}
    with pytest.raises(ResponseError):
        admin.reset_queue_offset(group, queue(1), COUNT)
    admin.delete_group(group)
    assert group not in admin.groups()


class Consumer(Member):
    """A consumer group that subscribes to all of Sent and remembers notices."""

    kind = "consumer"

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.notices = 0

    def topics(self) -> tuple[str, ...]:
        return ("Sent",)

    def consumer_data(self) -> ConsumerData:
        everything = SubscriptionData(topic="Sent", sub_string="*", sub_version=1)
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscriptions=(everything,),
        )

    def on_consumer_ids_changed(self) -> None:
        self.notices += 1


def test_brokers_know_a_member_by_its_heartbeat_ask_it_and_forget_it(
    admin: Admin, live_broker: RunningBroker, sent: list[dict[str, Any]]
) -> None:
    group = f"Beating{time.monotonic_ns()}"
    client = ClientInstance.of(ClientSettings((live_broker.name_server,), unit_name=group))
    consumer, producer = Consumer(group), Member(group)
    try:
        with pytest.raises(ResponseError, match="206 "):
            admin.consumer_connection(group)
        assert admin.consumer_ids(group, "Sent") == ()
        run(client.add_member(consumer))
        run(client.add_member(producer))
        connection = admin.consumer_connection(group)
        assert [each.client_id for each in connection.connections] == [client.client_id]
        assert [each.language for each in connection.connections] == ["PYTHON"]
        assert connection.subscription_table["Sent"].sub_string == "*"
        assert admin.consumer_ids(group, "Sent") == (client.client_id,)
        producers = admin.producer_connection(group, "Sent").connections
        assert [each.client_id for each in producers] == [client.client_id]
        wait_until(lambda: consumer.notices > 0, "the broker tells that the group has changed")
        assert admin.running_info(group, client.client_id).queue_table == {}
        run(client.remove_member(consumer))
        assert admin.consumer_ids(group, "Sent") == ()
    finally:
        client.release()
    with pytest.raises(ResponseError, match="not exist"):
        admin.producer_connection(group, "Sent")


@pytest.mark.long
def test_a_broker_that_is_killed_fails_at_once_and_is_found_again_when_it_is_back(tmp_path: Path) -> None:
    oracle = needed_oracle(tmp_path)
    with ExitStack() as stack:
        name_server = stack.enter_context(oracle.namesrv())
        broker = stack.enter_context(oracle.broker(tmp_path / "store", name_server))
        admin = stack.enter_context(Admin(ClientSettings((name_server,), request_timeout_ms=5_000)))
        admin.create_topic(NewTopic("T", 1, 1))
        wait_until(lambda: "T" in admin.topics(), "the topic is registered")
        assert admin.max_offsets("T") == {queue(0, "T"): 0}
        broker.kill()
        with pytest.raises(ClientError) as error:
            admin.max_offset(queue(0, "T"))
        assert error.value.retriable
        port = int(broker.address.rpartition(":")[2])
        stack.enter_context(oracle.broker(tmp_path / "store", name_server, port=port))
        wait_until(lambda: bool(admin.cluster_info().broker_address_table), "the broker is registered again")
        assert admin.max_offset(queue(0, "T")) == 0
