"""The Apache broker as judge of `put_cases/`: it answers and stores what the cases say, and its records are ours field by field.

A broker of each conf gets every request over its own protocol; what it stored is read out of its log. Where a case departs, it is
shown that the broker really does otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import MessageStore, open_store
from storage.format.record import Message, decode_offset_message_id
from storage.tables.document import TOPICS_FILE
from storage.tables.topics import TopicTable
from tests.broker.put_cases import CASES
from tests.broker.put_cases.case import CONFS, PutCase
from tests.broker.put_stores import LOG_FILE_SIZE_BYTES, QUEUE_FILE_SIZE_BYTES, open_case_store
from tests.broker.remoting_client import Answer, ask
from tests.support.broker_handlers import Sender
from tests.support.java_broker import Oracle, RunningBroker, needed_oracle

pytestmark = [pytest.mark.interop, pytest.mark.long]

ENDS_THE_LOG = "a batched message whose properties grow too long is refused"
"""Sent to no Apache broker: what it stores then is the end of its log."""
MADE_ANEW = re.compile(r"(?:[0-9A-F]{32}|[0-9A-F]{56})")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return needed_oracle(tmp_path_factory.mktemp("oracle-"))


@pytest.fixture(scope="module", params=CONFS)
def broker(request: pytest.FixtureRequest, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(conf, a broker of that conf on a store that has what the cases need)."""
    conf = request.param
    root = tmp_path_factory.mktemp(f"apache-{conf}") / "store"
    open_case_store(root, conf).close()
    with (
        oracle.namesrv() as name_server,
        oracle.broker(
            root,
            name_server,
            commitlog_file_size_bytes=LOG_FILE_SIZE_BYTES,
            consume_queue_file_size_bytes=QUEUE_FILE_SIZE_BYTES,
            **CONFS[conf],
        ) as running,
    ):
        yield conf, running


def test_the_broker_does_what_the_cases_say(broker: tuple[str, RunningBroker], tmp_path: Path) -> None:
    conf, running = broker
    cases = [case for case in CASES if case.conf == conf and case.name != ENDS_THE_LOG]
    answers = {case.name: ask(running.address, case.request) for case in cases}
    with open_store(running.store, config=str(running.conf)) as store, open_case_store(tmp_path / "ours", conf) as ours:
        handler = Sender(ours)
        table = TopicTable.load((running.store / "config" / TOPICS_FILE).read_text("utf-8"))
        wrong = []
        for case in cases:
            answer, client = answers[case.name]
            theirs = _records(store, answer.fields.get("msgId"))
            response = handler.send(case.request)
            found = _differences(case, answer, client, theirs[0] if theirs else None)
            if theirs and response.is_stored:
                found += _unlike(theirs, _records(ours, response.msg_id))
            if case.made is not None and table.topics.get(case.made.topic) != case.made:
                found.append(("topics.json", table.topics.get(case.made.topic)))
            if bool(found) != bool(case.departs):
                wrong.append(f"{case.name}: {found or case.departs}")
    assert not wrong, "\n".join(wrong)


def _records(store: MessageStore, msg_ids: str | None) -> list[Message]:
    """The records that an answer names; of a batch all."""
    places = [decode_offset_message_id(msg_id)[2] for msg_id in msg_ids.split(",")] if msg_ids else []
    return [store.message_by_commitlog_offset(place) for place in places]


def _differences(case: PutCase, answer: Answer, client: str, record: Message | None) -> list[tuple[str, object]]:
    """What the broker answered and stored otherwise than the case says."""
    found: list[tuple[str, object]] = []
    if answer.code != case.code:
        found.append(("code", (answer.code, answer.remark)))
    if case.remark is not None and answer.remark != case.remark.replace("{client}", client):
        found.append(("remark", answer.remark))
    told = {
        "queue_id": answer.fields.get("queueId"),
        "queue_offset": answer.fields.get("queueOffset"),
        "transaction_id": answer.fields.get("transactionId"),
    }
    found += [(name, told[name]) for name, value in case.answer.items() if told[name] != str(value)]
    if record is not None:
        found += [
            (name, getattr(record, name)) for name, value in case.stored.items() if getattr(record, name) != value
        ]
        properties = record.properties
        found += [
            (name, properties.get(name)) for name, value in case.properties.items() if properties.get(name) != value
        ]
        found += [(name, properties[name]) for name in case.absent if name in properties]
    elif case.stored:
        found.append(("stored", None))
    return found


def _unlike(theirs: list[Message], ours: list[Message]) -> list[tuple[str, object]]:
    """In what the records of one request differ, but for place, time, client's address and what is made anew."""
    return [] if (pair := (_fields(theirs), _fields(ours)))[0] == pair[1] else [("records", pair)]


def _fields(records: list[Message]) -> list[dict[str, object]]:
    names = ("topic", "queue_id", "flag", "sys_flag", "born_time_ms", "reconsume_times", "body", "magic", "body_crc")
    return [
        {name: getattr(record, name) for name in (*names, "prepared_transaction_offset")}
        | {f"property {name}": _fixed(name, value) for name, value in record.properties.items()}
        for record in records
    ]


def _fixed(name: str, value: str) -> str:
    if name == "TIMER_OUT_MS":  # a time from now on
        return f"{len(value)} digits, {value[-3:]}"
    return "made anew" if name == "UNIQ_KEY" and MADE_ANEW.fullmatch(value) else value
