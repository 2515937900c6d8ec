"""What brokers, clients and tools from 5.4.0 on ask: pages of topics and groups, look-ups by tag, and codes that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.broker import entries
from spark_mq.broker.broker import Broker
from spark_mq.broker.requests import ClientConnection
from spark_mq.broker_server.masters import all_pages
from spark_mq.client.calls import make_call
from spark_mq.remoting import Header, RemotingCommand, RequestCode, make_request, make_response, read_body, write_body
from spark_mq.remoting.administration import GroupPageRequest, SubscriptionGroupTable, TopicPageRequest
from spark_mq.remoting.messages import PullMessageRequest, QueryMessageRequest, SendMessageRequest
from spark_mq.remoting.routes import TopicConfigTable
from storage import open_store
from storage.format.typed_json import SubscriptionGroupConfig, TopicConfig
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.tables.document import GROUPS_FILE, TOPICS_FILE

ANN = ClientConnection(bytes([127, 0, 0, 1, 0, 0, 0, 9]), "127.0.0.1:9")
TOPICS, GROUPS = RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
Ask = Callable[[Header | None], RemotingCommand]


@contextmanager
def serving(root: Path, release: str | None = None) -> Iterator[tuple[PutService, Broker]]:
    store = open_store(root, config=StoreConfig.tiny(), read_only=False, create=True, rocketmq_version=release)
    with PutService(store) as service, Broker(service) as broker:
        yield service, broker


def answer(broker: Broker, command: RemotingCommand) -> RemotingCommand:
    found = broker.answer(ANN, command, 1_000)
    assert isinstance(found, RemotingCommand)
    return found


def asking(broker: Broker, code: RequestCode) -> Ask:
    return lambda header: answer(broker, make_call(code, header))


def name_many(service: PutService, count: int) -> None:
    for number in range(count):
        service.save_topic(TopicConfig(f"T{number:02}", 1, 1))
        service.save_group(SubscriptionGroupConfig(group=f"G{number:02}"))
    service.forbid("G03", "T03", 1)


def java_pages(ask: Ask, version: str | None = None) -> set[str]:
    """The topics that a broker of 5.5.0 copies from its master. Java: BrokerOuterAPI.getAllTopicConfig."""
    found: set[str] = set()
    while True:
        page = ask(TopicPageRequest(topic_seq=len(found), data_version=version or "", max_topic_num=2_000))
        body = read_body(TopicConfigTable, page.body)
        found |= body.topic_config_table.keys()
        assert body.data_version is not None
        version = write_body(body.data_version).decode()
        if len(found) >= int((page.ext_fields or {})["totalTopicNum"]) - 1:
            return found


@pytest.mark.parametrize("most", range(1, 8))
def test_pages_of_topics_and_groups_are_together_what_is_answered_without_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(entries, "PAGE_MOST", most)
    with serving(tmp_path / "store") as (service, broker):
        name_many(service, 9)
        topics = read_body(TopicConfigTable, asking(broker, TOPICS)(None).body)
        paged = read_body(TopicConfigTable, all_pages(TOPICS_FILE, asking(broker, TOPICS)).encode())
        assert paged.topic_config_table == topics.topic_config_table
        assert java_pages(asking(broker, TOPICS)) == topics.topic_config_table.keys()
        groups = read_body(SubscriptionGroupTable, asking(broker, GROUPS)(None).body)
        copied = read_body(SubscriptionGroupTable, all_pages(GROUPS_FILE, asking(broker, GROUPS)).encode())
        assert (copied.subscription_group_table, copied.forbidden_table, copied.data_version) == (
            groups.subscription_group_table,
            groups.forbidden_table,
            groups.data_version,
        )
        assert "G03" in groups.forbidden_table


@pytest.mark.parametrize("most", [2, 3, 6, 7])
def test_the_last_entry_is_copied_from_a_master_that_leaves_it_for_a_page_of_its_own(most: int) -> None:
    groups = {f"G{number}": SubscriptionGroupConfig(group=f"G{number}") for number in range(7)}

    def ask(header: Header) -> RemotingCommand:
        assert isinstance(header, GroupPageRequest)
        assert header.group_seq is not None
        names = sorted(groups)[header.group_seq : header.group_seq + most]
        body = SubscriptionGroupTable(subscription_group_table={name: groups[name] for name in names})
        return make_response(make_request(GROUPS), 0, None, {"totalGroupNum": "7"}, write_body(body))

    copied = read_body(SubscriptionGroupTable, all_pages(GROUPS_FILE, ask).encode())
    assert copied.subscription_group_table == groups


def test_a_table_that_changes_between_two_pages_is_copied_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "PAGE_MOST", 4)
    with serving(tmp_path / "store") as (service, broker):
        name_many(service, 9)
        firsts = []

        def ask(header: Header) -> RemotingCommand:
            assert isinstance(header, GroupPageRequest)
            firsts.append(header.group_seq)
            if len(firsts) == 2:
                service.save_group(SubscriptionGroupConfig(group="A"))
            return asking(broker, GROUPS)(header)

        copied = read_body(SubscriptionGroupTable, all_pages(GROUPS_FILE, ask).encode())
        assert {"A", *(f"G{number:02}" for number in range(9))} <= copied.subscription_group_table.keys()
        assert firsts[:3] == [0, 4, 0]


@pytest.mark.parametrize("code", [code for code in RequestCode if code > 5_000 and code not in range(200_050, 200_060)])
def test_requests_of_5_4_and_5_5_that_are_not_served_are_answered_as_5_3_3_answers(
    tmp_path: Path, code: RequestCode
) -> None:
    with serving(tmp_path / "store") as (_, broker):
        refused = answer(broker, make_request(code))
        assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert refused.remark == f" request type {code:d} not supported"


def test_a_pull_of_a_lite_topic_gets_no_message_of_the_topic_itself(tmp_path: Path) -> None:
    header = PullMessageRequest(
        consumer_group="G",
        topic="T00",
        lite_topic="child",
        queue_id=0,
        queue_offset=0,
        max_messages=32,
        sys_flag=4,
        subscription="*",
    )
    with serving(tmp_path / "store") as (service, broker):
        name_many(service, 1)
        with service.exclusive() as store:
            store.put("T00", b"its own", queue_id=0)
        refused = answer(broker, make_call(RequestCode.PULL_MESSAGE, header))
        assert (refused.code, refused.body) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, b"")
        assert "'child' of topic 'T00'" in (refused.remark or "")


@pytest.mark.parametrize(("release", "is_refused"), [(None, True), ("5.5.0", True), ("5.4.0", False)])
def test_a_message_for_a_lite_topic_is_refused_and_makes_no_topic(
    release: str | None, is_refused: bool, tmp_path: Path
) -> None:
    """It would be in no queue of that topic. A broker of 5.4 does not know the property."""
    properties = "UNIQ_KEY\x01K\x02__LITE_TOPIC\x01child\x02"
    header = SendMessageRequest(
        producer_group="P",
        topic="New",
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=0,
        sys_flag=0,
        born_time_ms=1,
        flag=0,
        properties=properties,
    )
    with serving(tmp_path / "store", release) as (service, broker):
        found = answer(broker, make_call(RequestCode.SEND_MESSAGE, header, b"m"))
        assert (found.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED) == is_refused
        assert ("'child' of topic 'New'" in (found.remark or "")) == is_refused
        assert ("New" in service.settings.topics.topics) != is_refused


def test_a_look_up_by_tag_finds_the_tag_and_one_by_key_the_key(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (service, broker):
        name_many(service, 1)
        with service.exclusive() as store:
            store.put("T00", b"key", keys=["blue"], queue_id=0)
            store.put("T00", b"tag", keys=["T#blue"], tags="blue", queue_id=0)

        def bodies(index_type: str | None, **fields: str) -> list[bytes]:
            query = QueryMessageRequest(
                topic="T00", key="blue", max_messages=32, begin_time_ms=0, end_time_ms=1 << 62, index_type=index_type
            )
            request = make_call(RequestCode.QUERY_MESSAGE, query)
            found = answer(broker, request._replace(ext_fields={**(request.ext_fields or {}), **fields}))
            return [body for body in (b"key", b"tag") if body in found.body]

        assert bodies("T") == [b"tag"]
        assert bodies(None) == bodies("K") == [b"key"]
        assert bodies("T", _UNIQUE_KEY_QUERY="true") == [b"key"]
