"""Messages sent back into a store: AbstractSendMessageProcessor.consumerSendMsgBack from request to answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage import Message, MessageStore, StoreConfig, open_store
from storage.format.typed_json import SubscriptionGroupConfig
from storage.pending import PutStatus
from storage.rules.inner_messages import InnerMessage
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.tables.consumer_groups import SubscriptionGroupTable
from storage.tables.topics import TopicTable
from tests.support.broker_handlers import Returner, back_request, ending

GROUP = "OrderGroup"
RETRY, DEAD = "%RETRY%OrderGroup", "%DLQ%OrderGroup"
NOW_MS = 1_750_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    tiny = StoreConfig.tiny()
    config = replace(tiny, commit_log=replace(tiny.commit_log, mapped_file_size_commit_log=1 << 17))
    with open_store(tmp_path / "store", config=config, read_only=False, create=True) as opened:
        yield opened


def handler(store: MessageStore | PutService) -> Returner:
    return Returner(store, clock=lambda: NOW_MS)


def only(store: MessageStore, topic: str, queue_id: int = 0) -> Message:
    (message,) = store.get(topic, queue_id, 0).messages
    return message


def test_a_message_goes_the_whole_way_to_the_dead_letters(store: MessageStore) -> None:
    """consumerSendMsgBack with HookUtils.handleScheduleMessage: a retry waits in the schedule topic, a dead letter does not wait."""
    put = store.put("Orders", b"body", tags="paid", keys="order-1", properties={"own": "x"}, flag=5)
    original = store.message_by_commitlog_offset(put.commitlog_offset)
    request = back_request(commitlog_offset=put.commitlog_offset, group=GROUP, max_reconsume_times=1)
    assert handler(store).send_back(request) == (ResponseCode.SUCCESS, None)
    parked = only(store, "SCHEDULE_TOPIC_XXXX", 2)
    expected = {**original.properties, "WAIT": "false", "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": put.msg_id}
    assert parked.properties == {**expected, "DELAY": "3", "REAL_TOPIC": RETRY, "REAL_QID": "0"}
    assert (parked.reconsume_times, parked.flag, parked.body) == (1, 5, b"body")
    assert (parked.born_time_ms, parked.born_host) == (original.born_time_ms, original.born_host)
    assert store.topics() == ["Orders", "SCHEDULE_TOPIC_XXXX"]

    store.put_inner([replace(InnerMessage.of(parked), topic=RETRY, queue_id=0)])  # as delivery does
    again = replace(request, commitlog_offset=only(store, RETRY).commitlog_offset)
    assert handler(store).send_back(again) == (ResponseCode.SUCCESS, None)
    dead = only(store, DEAD)
    assert dead.properties == {**parked.properties, "DELAY": "0"}
    assert (dead.reconsume_times, dead.body) == (2, b"body")
    topics = store.state("topics.json", TopicTable.load)
    groups = store.state("subscriptionGroup.json", SubscriptionGroupTable.load)
    assert topics is not None
    assert {RETRY, DEAD} <= set(topics.topics)
    assert groups is not None
    assert groups.groups[GROUP] == SubscriptionGroupConfig(GROUP)


def test_a_group_keeps_its_entry_and_its_file_what_else_it_holds(store: MessageStore) -> None:
    """SubscriptionGroupManager.persist writes only when a group was made."""
    table = SubscriptionGroupTable().with_group(SubscriptionGroupConfig(GROUP, retry_max_times=0), now_ms=1)
    store.save_state("subscriptionGroup.json", table.to_text())
    put = store.put("Orders", b"body")
    handler(store).send_back(back_request(commitlog_offset=put.commitlog_offset, group=GROUP))
    assert only(store, DEAD).reconsume_times == 1
    assert store.state("subscriptionGroup.json", SubscriptionGroupTable.load) == table


@pytest.mark.parametrize("offset", [-1, 17, 1 << 40], ids=["negative", "inside a record", "behind the log"])
def test_where_no_message_begins_nothing_is_sent_back(offset: int, store: MessageStore) -> None:
    """DefaultMessageStore.lookMessageByOffset gives null."""
    store.put("Orders", b"body")
    answer = handler(store).send_back(back_request(commitlog_offset=offset, group=GROUP))
    assert answer == (ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
    assert store.topics() == ["Orders"]


def test_what_the_put_path_refuses_is_a_system_error_that_says_which(store: MessageStore) -> None:
    """consumerSendMsgBack: setRemark(putMessageResult.getPutMessageStatus().name())."""
    near_limit = {"own": "x" * (32_767 - 100)}
    store.put_inner([InnerMessage(topic="T", queue_id=0, body=b"b", properties=near_limit)])
    request = back_request(commitlog_offset=only(store, "T").commitlog_offset, group=GROUP)
    assert handler(store).send_back(request) == (ResponseCode.SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED")
    long_group = back_request(
        commitlog_offset=store.put("Orders", b"body").commitlog_offset, group="g" * 140, delay_level=-1
    )
    # HookUtils.checkBeforePutMessage: only %RETRY% topics may have more than 127 characters.
    assert handler(store).send_back(long_group) == (ResponseCode.SYSTEM_ERROR, "MESSAGE_ILLEGAL")
    assert handler(store).send_back(replace(long_group, delay_level=0)) == (ResponseCode.SUCCESS, None)


STATUSES = [status for status in PutStatus if status is not PutStatus.PUT_OK]


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: status.value)
def test_whatever_a_put_ends_in_but_put_ok_is_a_system_error(status: PutStatus, store: MessageStore) -> None:
    """consumerSendMsgBack: also the three time-outs, after which the message stands, unlike handlePutMessageResult."""
    back = handler(ending(store, status))
    request = back_request(
        commitlog_offset=store.put("Orders", b"body").commitlog_offset,
        group=GROUP,
    )
    assert back.send_back(request) == (ResponseCode.SYSTEM_ERROR, status.value)
    assert not back.statistics.send_back_nums


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (
            BrokerState(is_slave=True),
            (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while"),
        ),
        (
            BrokerState(is_os_page_cache_busy=True),
            (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while"),
        ),
        (
            BrokerState(is_slave=True, acts_as_master=True),
            (ResponseCode.SYSTEM_ERROR, "no master available along with 127.0.0.1"),
        ),
        (BrokerState(is_shut_down=True), (ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")),
        (BrokerState(is_writable=False), (ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")),
    ],
)
def test_a_broker_that_cannot_take_anything_says_so(state: BrokerState, answer: Any, store: MessageStore) -> None:
    """SendMessageProcessor.rejectRequest, BrokerController.peekMasterBroker, HookUtils.checkBeforePutMessage."""
    request = back_request(commitlog_offset=store.put("Orders", b"body").commitlog_offset, group=GROUP)
    back = handler(store)
    back.state = state
    assert back.send_back(request) == answer
    assert store.topics() == ["Orders"]


def test_a_busy_broker_takes_what_nobody_would_hear_of(store: MessageStore) -> None:
    offset = store.put("Orders", b"body").commitlog_offset
    back = handler(store)
    back.state = BrokerState(is_os_page_cache_busy=True)
    request = back_request(commitlog_offset=offset, group=GROUP)
    assert back.send_back(request, is_heard=False) == (ResponseCode.SUCCESS, None)


def test_what_was_sent_back_is_counted(store: MessageStore) -> None:
    """consumerSendMsgBack: incSendBackNums by the origin topic; the schedule topic's counts."""
    back = handler(store)
    request = back_request(commitlog_offset=store.put("Orders", b"body").commitlog_offset, group="ns%G")
    for asked in (request, replace(request, delay_level=-1), request):
        assert back.send_back(asked) == (ResponseCode.SUCCESS, None)
    counts, parked = back.statistics, store.get("SCHEDULE_TOPIC_XXXX", 2, 0).messages
    assert {key: value.value for key, value in counts.send_back_nums.items()} == {"Orders@ns%G": 3}
    assert {key: value.value for key, value in counts.topic_put_nums.items()} == {"SCHEDULE_TOPIC_XXXX": 2}
    sizes = sum(message.size_bytes for message in parked)
    assert {key: value.value for key, value in counts.queue_put_size.items()} == {"SCHEDULE_TOPIC_XXXX@2": sizes}
    assert counts.broker_put_nums == 0


def test_groups_that_others_make_meanwhile_are_kept(store: MessageStore) -> None:
    """Java has one SubscriptionGroupManager; here the file is the one table."""
    put = store.put("Orders", b"body")
    first, second = handler(store), handler(store)
    for back, group in ((first, "A"), (second, "B"), (first, "C")):
        back.send_back(back_request(commitlog_offset=put.commitlog_offset, group=group))
    groups = store.state("subscriptionGroup.json", SubscriptionGroupTable.load)
    assert groups is not None
    assert list(groups.groups) == ["A", "B", "C"]
