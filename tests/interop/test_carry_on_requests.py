"""The Apache broker and ours get the same requests, byte for byte, and make the same records, topics and answers of them.

Each goes to a real broker over the wire and to our handlers as a call. Both logs are then compared record by record and field by field,
both answers by code, remark and place. What we answer otherwise on purpose stands in DEPARTURES.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.end_transaction import TransactionEnder
from spark_mq.remoting.messages import EndTransactionRequest
from storage import MessageStore, open_store
from storage.format.properties import decode_properties
from storage.format.record import Message
from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.half_messages import OP_TOPIC
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import VERSION_SETTING
from storage.tables.consumer_groups import SubscriptionGroupTable
from storage.tables.document import GROUPS_FILE, TOPICS_FILE
from storage.tables.topics import TopicConfig, TopicTable
from tests.support import broker_requests
from tests.support.broker_handlers import Returner, Send, Sender, back_request
from tests.support.java_broker import Oracle, free_ports
from tests.support.log_records import log_records

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 1 << 20,
    "consume_queue_file_size_bytes": 6_000,
    "maxMessageSize": 20_000,
    # Nothing is due, asked back or ended in the background while the requests come.
    "messageDelayLevel": "1h 2h 3h 4h 5h 6h 7h 8h 9h 10h",
    "transactionCheckInterval": 3_600_000,
    "transactionOpBatchInterval": 3_600_000,
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": 1 << 20,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a broker made of the requests."""

    answers: dict[str, dict[str, Any]]
    """By request: `code`, `remark`, `fields`."""
    records: list[Message]
    topics: Mapping[str, TopicConfig]
    groups: set[str]


@pytest.fixture(scope="module")
def outcomes(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome]:
    """Apache's and ours."""
    directory = tmp_path_factory.mktemp("requests-")
    theirs, ours, port = directory / "theirs", directory / "ours", free_ports()
    settings = SETTINGS | {VERSION_SETTING: oracle.version}
    sent = broker_requests.requests(time.time_ns() // 1_000_000 + 3_600_000)
    with oracle.namesrv() as name_server:
        conf, their_conf = directory / "ours.conf", directory / "theirs.conf"
        for root, of_root in ((ours, conf), (theirs, their_conf)):
            of_root.write_text(oracle.broker_conf(root, name_server, port, **settings), "utf-8")
            prepare(root, of_root)
        (directory / "in").write_text("".join(request.to_line() for request in sent), "utf-8")
        with oracle.broker(theirs, name_server, port=port, **SETTINGS) as broker:
            oracle.java("Requests", directory / "in", directory / "out", broker.address)
            broker.kill()
    lines = [json.loads(line) for line in (directory / "out").read_text("utf-8").splitlines()]
    apache = outcome_of(theirs, {line.pop("name"): line for line in lines})
    return apache, outcome_of(ours, our_answers(ours, conf, sent))


def prepare(root: Path, conf: Path) -> None:
    with open_store(root, config=str(conf), read_only=False, create=True) as store:
        store.save_topic(TopicConfig("One", 1, 1))
        store.save_topic(TopicConfig("%RETRY%Unwritable", 1, 1, perm=4))
        groups = SubscriptionGroupTable()
        for group in (
            SubscriptionGroupConfig("Few", retry_max_times=1),
            SubscriptionGroupConfig("NoRetries", retry_queue_count=0),
            SubscriptionGroupConfig("Unwritable"),
        ):
            groups = groups.with_group(group, now_ms=1)
        store.save_state(GROUPS_FILE, groups.to_text())


def outcome_of(root: Path, answers: dict[str, dict[str, Any]]) -> Outcome:
    config = root / "config"
    topics = TopicTable.load((config / TOPICS_FILE).read_text("utf-8"))
    groups = SubscriptionGroupTable.load((config / GROUPS_FILE).read_text("utf-8"))
    return Outcome(answers, [record.message for record in log_records(root)], topics.topics, set(groups.groups))


# Ours


def our_answers(root: Path, conf: Path, sent: list[broker_requests.Request]) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    with open_store(root, config=str(conf), read_only=False) as store:
        ours = Ours(store)
        for request in sent:
            fields = {name: resolved(str(value), answers) for name, value in request.fields.items()}
            answers[request.name] = ours.answer(request, fields)
        store.flush()
        store.release()
    return answers


def resolved(value: str, answers: dict[str, dict[str, Any]]) -> str:
    if value[:1] not in ("@", "#"):
        return value
    fields = answers[value[1:]]["fields"]
    return fields["queueOffset"] if value[0] == "#" else str(int(fields["msgId"].split(",")[0][-16:], 16))


class Ours:
    """The handlers of our broker, called with what stands in a request's header."""

    def __init__(self, store: MessageStore) -> None:
        self._sends = Sender(store)
        self._backs = Returner(store, clock=now_ms)
        self._ends = TransactionEnder.of(store, now_ms())

    def answer(self, request: broker_requests.Request, fields: dict[str, str]) -> dict[str, Any]:
        match request.code:
            case broker_requests.SEND:
                return self._send(request, fields)
            case broker_requests.SEND_BACK:
                return self._send_back(request, fields)
            case _:
                return self._end(fields)

    def _send(self, request: broker_requests.Request, fields: dict[str, str]) -> dict[str, Any]:
        response = self._sends.send(
            Send(
                topic=fields["topic"],
                body=request.body or b"",  # nothing and an empty body are one on the wire
                properties=decode_properties(fields["properties"].encode()),
                queue_id=int(fields["queueId"]),
                producer_group=fields["producerGroup"],
                default_topic=fields["defaultTopic"],
                default_topic_queue_count=int(fields["defaultTopicQueueNums"]),
                flag=int(fields["flag"]),
                sys_flag=int(fields["sysFlag"]),
                born_time_ms=int(fields["bornTimestamp"]),
                born_host=bytes([127, 0, 0, 1]) + (40_000).to_bytes(4, "big"),
                reconsume_times=int(fields["reconsumeTimes"]),
                max_reconsume_times=optional(fields.get("maxReconsumeTimes")),
                unit_mode=fields["unitMode"] == "true",
                is_batch=fields["batch"] == "true",
                client_version=request.version,
            )
        )
        place = {
            "msgId": response.msg_id,
            "queueId": response.queue_id,
            "queueOffset": response.queue_offset,
            "transactionId": response.transaction_id,
            "recallHandle": response.recall_handle,
        }
        told = {name: str(value) for name, value in place.items() if value is not None}
        return {"code": int(response.code), "remark": response.remark, "fields": {**response.ext_fields, **told}}

    def _send_back(self, request: broker_requests.Request, fields: dict[str, str]) -> dict[str, Any]:
        response = self._backs.send_back(
            back_request(
                commitlog_offset=int(fields["offset"]),
                group=fields["group"],
                delay_level=int(fields["delayLevel"]),
                max_reconsume_times=optional(fields.get("maxReconsumeTimes")),
                unit_mode=fields["unitMode"] == "true",
            ),
            client_version=request.version,
        )
        return {"code": int(response.code), "remark": response.remark, "fields": {}}

    def _end(self, fields: dict[str, str]) -> dict[str, Any]:
        request = EndTransactionRequest(
            producer_group=fields["producerGroup"],
            half_queue_offset=int(fields["tranStateTableOffset"]),
            half_commitlog_offset=int(fields["commitLogOffset"]),
            commit_or_rollback=int(fields["commitOrRollback"]),
            from_transaction_check=fields["fromTransactionCheck"] == "true",
        )
        response = self._ends.end(request, now_ms())
        assert response is not None
        return {"code": int(response.code), "remark": response.remark, "fields": {}}


def optional(text: str | None) -> int | None:
    return None if text is None else int(text)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# Side by side


DEPARTURES = {
    "wrong-message": "a broker throws, code 1; we answer with code 1 that there is no such half message",
}
"""Requests that we answer with another remark."""
BUILT_IN = {
    *(
        "TBW102",
        "SELF_TEST_TOPIC",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "LabCluster",
        "LabCluster_REPLY_TOPIC",
        "broker-lab",
    ),
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer"),
    *("rmq_sys_REVIVE_LOG_LabCluster", "rmq_sys_SYNC_BROKER_MEMBER_broker-lab"),
}
"""Topics that a broker makes at its start, without being asked."""
BUILT_IN_LATER = {"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"}
"""The same, from 5.4.0 on."""
TOOLS = {"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"}
"""Groups that a broker makes at its start, besides those named CID_…"""


def test_both_answer_each_request_alike(outcomes: tuple[Outcome, Outcome]) -> None:
    theirs, ours = ({name: comparable(answer) for name, answer in outcome.answers.items()} for outcome in outcomes)
    different = {name: (theirs[name], ours.get(name)) for name in theirs if theirs[name] != ours.get(name)}
    assert {name: pair for name, pair in different.items() if name not in DEPARTURES} == {}
    assert different.keys() == DEPARTURES.keys()


def test_what_a_broker_accepts_we_accept_and_nothing_else(outcomes: tuple[Outcome, Outcome]) -> None:
    theirs, ours = ({name for name, answer in outcome.answers.items() if answer["code"] == 0} for outcome in outcomes)
    assert ours == theirs
    assert 45 < len(theirs) < len(outcomes[0].answers) - 8


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without the client's port, which is another."""
    remark = re.sub(r"Producer: [0-9.:]*", "", answer["remark"] or "")
    return {"code": answer["code"], "remark": remark, **(answer["fields"] or {})}


def test_both_write_the_same_records(outcomes: tuple[Outcome, Outcome]) -> None:
    """All but op messages, which a broker writes later. Java: MessageExtEncoder.encode."""
    theirs, ours = (list(map(comparable_record, outcome.records)) for outcome in outcomes)
    ours = [record for record in ours if record["topic"] != OP_TOPIC]
    assert [record["KEYS"] for record in ours] == [record["KEYS"] for record in theirs]
    different = [
        {name for name in there.keys() | here.keys() if there.get(name) != here.get(name)}
        for there, here in zip(theirs, ours, strict=True)
    ]
    assert set().union(*different) == set()


def comparable_record(record: Message) -> dict[str, Any]:
    """Fields and properties, without times and the client's port; the order of properties is a Java HashMap's."""
    assert record.born_host[:4] == record.store_host[:4] == bytes([127, 0, 0, 1])
    fields = asdict(replace(InnerMessage.of(record), born_host=None))
    properties = fields.pop("properties")
    place = {"at": record.commitlog_offset, "queue_offset": record.queue_offset, "magic": record.magic}
    return {"KEYS": None, **fields, **properties, **place}


def test_both_make_the_same_topics(outcomes: tuple[Outcome, Outcome]) -> None:
    """Java: TopicConfigManager.createTopicInSendMessageMethod, createTopicInSendMessageBackMethod."""
    theirs, ours = (outcome.topics for outcome in outcomes)
    assert {
        name: topic for name, topic in theirs.items() if name not in BUILT_IN | BUILT_IN_LATER or name in ours
    } == ours
    assert theirs.keys() > BUILT_IN
    assert ours["%RETRY%Units"].topic_sys_flag == 2


def test_both_make_the_same_groups(outcomes: tuple[Outcome, Outcome]) -> None:
    """Java: SubscriptionGroupManager.findSubscriptionGroupConfig. A broker makes those of its tools at its start."""
    theirs, ours = (outcome.groups for outcome in outcomes)
    assert ours == theirs - {group for group in theirs if group.startswith("CID_") or group in TOOLS}
    assert ours > {"Failing", "New", "Newer", "Unknown", "Units"}
