"""Forged ledgers: whatever clients of a real broker send to the ledger's topic, no batch of a sink is lost or doubled.

A sink commits; one of its batches is decided and cut off by a kill. A 5.3.3 broker then runs on the store, and clients send it ENDs
of batch 10^9 and a BEGIN of the open batch, in every way that a broker takes messages. The sink goes on when the broker has stopped.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import storage.batch.commit
import storage.log.writer
from jobs.verify_store import verify_store
from spark_mq.remoting.messages import BatchedMessage, encode_batch
from storage import Message, MessageStore, open_store
from storage.batch.commit import CommitOutcome
from storage.batch.ledger import END, GROUP_PREFIX, MARK, QUEUE_ID, TOPIC
from storage.batch.sink_progress import confirm_progress
from storage.errors import SinkProgressError
from storage.format.record import decode_offset_message_id
from tests.broker.remoting_client import Answer, ask, call
from tests.crash.sink_store import SinkStore, rows_of
from tests.support.broker_handlers import Send
from tests.support.dying import killed_at
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FORGED = 10**9
UPDATE_CONSUMER_OFFSET, SEND_BACK, END_TRANSACTION = 15, 36, 37
COMMIT = 8
DONE, WRITTEN = CommitOutcome(True, 0), CommitOutcome(False, 10)
OPEN = rows_of(3, 20, 11)
KEYS = {"KEYS": "sink query", "UNIQ_KEY": "0" * 31 + "1"}


class Scene(NamedTuple):
    """What a client knows: the broker, and what is in the store, which it may read."""

    broker: RunningBroker
    end: Message
    """A true END, of batch 2."""
    claim: bytes
    """The body of an END of batch 10^9 whose last row is a true one."""
    begin: bytes
    """That of a BEGIN by which all rows of the open batch are there."""
    slice: bytes
    """That of a SLICE which says the same."""


def send(scene: Scene, body: bytes, sys_flag: int = 0, **properties: str) -> Answer:
    request = Send(
        topic=TOPIC,
        queue_id=QUEUE_ID,
        default_topic_queue_count=1,
        body=body,
        properties={"TAGS": END, **KEYS, **properties},
        sys_flag=sys_flag,
    )
    answer, _ = ask(scene.broker.address, request)
    return answer


def send_batch(scene: Scene) -> Answer:
    raw = f"TAGS\x01{END}\x02KEYS\x01sink query\x02".encode()
    body = encode_batch([BatchedMessage(scene.claim, raw, 0)])
    answer, _ = ask(scene.broker.address, Send(topic=TOPIC, queue_id=QUEUE_ID, body=body, is_batch=True))
    return answer


def send_transaction(scene: Scene) -> Answer:
    answer = send(scene, scene.claim, TRAN_MSG="true", PGROUP="forgers")
    place = decode_offset_message_id(answer.fields["msgId"])[2]
    fields = {
        "topic": TOPIC,
        "producerGroup": "forgers",
        "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": place,
        "commitOrRollback": COMMIT,
        "fromTransactionCheck": "false",
        "msgId": KEYS["UNIQ_KEY"],
    }
    return call(scene.broker.address, END_TRANSACTION, fields)


def send_back(scene: Scene, group: str = "forgers") -> Answer:
    fields = {"offset": scene.end.commitlog_offset, "group": group, "delayLevel": 1, "originTopic": TOPIC}
    return call(scene.broker.address, SEND_BACK, fields)


def send_shifted(scene: Scene, flag: int) -> Answer:
    """With address bits that are wrong: the record's reader looks for later fields 12 or 24 bytes further, in the client's body.

    What the broker writes behind the body, and 12 or 24 bytes that it does not write, end as the value of a property.
    """
    stored = send(scene, b"how long are the properties?")
    place = decode_offset_message_id(stored.fields["msgId"])[2]
    with open_store(scene.broker.store) as reading:
        record = reading.log.bytes_at(place, reading.message_by_commitlog_offset(place).size_bytes)
    behind = len(record) - 88 - len(b"how long are the properties?") + (24 if flag == 0x30 else 12)
    head = bytes(12 if flag == 0x30 else 0) + MARK.to_bytes(8, "big")
    shown = f"TAGS\x01{END}\x02KEYS\x01sink query\x02x\x01".encode() + bytes(4)
    body = head + len(scene.claim).to_bytes(4, "big") + scene.claim + bytes([len(TOPIC)]) + TOPIC.encode()
    body += (len(shown) + behind).to_bytes(2, "big") + shown
    return send(scene, with_crc(body[:-4], zlib.crc32(scene.claim)), flag)


def set_offset(scene: Scene, group: str, next_batch: int) -> None:
    send_back(scene, group)  # makes the group known to the broker
    fields = {"consumerGroup": group, "topic": TOPIC, "queueId": QUEUE_ID, "commitOffset": next_batch}
    assert call(scene.broker.address, UPDATE_CONSUMER_OFFSET, fields).code == 0


def with_crc(data: bytes, crc: int) -> bytes:
    """The data and four bytes more, by which its CRC-32 is that one: the forged body has to pass for the sent one."""
    table = [zlib.crc32(bytes([number])) ^ zlib.crc32(b"\0") for number in range(256)]
    by_top = {value >> 24: number for number, value in enumerate(table)}
    register = crc ^ 0xFFFFFFFF
    for _ in range(4):
        number = by_top[register >> 24]
        register = (register ^ table[number]) << 8 & 0xFFFFFFFF | number
    return data + (register ^ zlib.crc32(data) ^ 0xFFFFFFFF).to_bytes(4, "little")


FORGERIES: dict[str, Callable[[Scene], Answer]] = {
    "sent": lambda scene: send(scene, scene.claim),
    "sent in a batch": send_batch,
    "delayed by a level": lambda scene: send(scene, scene.claim, DELAY="1"),
    "delivered at a time": lambda scene: send(scene, scene.claim, TIMER_DELAY_MS="1000"),
    "committed in a transaction": send_transaction,
    "transaction bits, it says": lambda scene: send(scene, scene.claim, COMMIT),
    "sent back": send_back,
    "a true END once more": lambda scene: send(scene, scene.end.body),
    "a BEGIN of the open batch": lambda scene: send(scene, scene.begin, TAGS="BEGIN"),
    "a SLICE of the open batch": lambda scene: send(scene, scene.slice, TAGS="SLICE"),
    "a SLICE of the open batch, without UNIQ_KEY": lambda scene: send(scene, scene.slice, TAGS="SLICE", UNIQ_KEY=""),
    "address bits 0x10": lambda scene: send_shifted(scene, 0x10),
    "address bits 0x20": lambda scene: send_shifted(scene, 0x20),
    "address bits 0x30": lambda scene: send_shifted(scene, 0x30),
}
CLAIMS_SEEN = 9
"""How many of them stand in the ledger's topic as ENDs of batch 10^9."""


@pytest.mark.long
def test_no_batch_is_lost_or_doubled_by_what_clients_send(oracle: Oracle, tmp_path: Path) -> None:
    store = sinks_store(oracle, tmp_path)
    with (
        oracle.namesrv() as name_server,
        oracle.broker(Path(store.root), name_server, port=port_of(store), timerWheelEnable="true") as broker,
    ):
        scene = look_at(broker)
        answers = {name: forge(scene) for name, forge in FORGERIES.items()}
        assert {name: answer.code for name, answer in answers.items() if answer.code} == {}
        wait_until(lambda: len(claims(store)) >= CLAIMS_SEEN, "the delayed forgeries are in the ledger's topic")
        set_offset(scene, f"{GROUP_PREFIX}other", FORGED)
    forged = claims(store)
    assert Counter(record.prepared_transaction_offset for record in forged)[MARK] >= 3, "a mark alone can be forged"
    assert any(record.prepared_transaction_offset not in (0, MARK) for record in forged), "that of the transaction"
    assert store.commit(OPEN) == DONE, "finished by the opening, all of it"
    assert store.commit(rows_of(4)) == WRITTEN
    others = rows_of(2, sink_id="other", query_id="other")
    with pytest.raises(SinkProgressError, match="says that batch 999999999 is written, but the ledger's last is 1"):
        store.commit(others)
    with store.open() as opened:
        assert confirm_progress(opened.writer, "other", "other", None) == 1
        opened.release()
    assert store.commit(others) == WRITTEN
    store.close()
    expected = [*(rows_of(number) for number in (0, 1, 2, 4)), OPEN]
    expected += [rows_of(number, sink_id="other", query_id="other") for number in range(3)]
    with open_store(store.root) as reading:
        assert Counter(bodies(reading)) == Counter(row.body for rows in expected for row in rows.rows)
    assert verify_store(store.root).findings == ()


def test_our_records_do_no_harm_in_a_broker(oracle: Oracle, tmp_path: Path) -> None:
    """Apache's store classes serve them, and enter them again into queues and index that are lost."""
    store = sinks_store(oracle, tmp_path)
    store.close()
    with open_store(store.root) as reading:
        offsets = {one.queue_offset: one.prepared_transaction_offset for one in ledger_messages(reading)}
    assert set(offsets.values()) == {MARK}
    derived = Path(shutil.copytree(store.root, tmp_path / "derived"))
    for name in ("consumequeue", "index"):
        shutil.rmtree(derived / name)
    (derived / "abort").touch()
    for root in (Path(store.root), derived):
        lines = oracle.dump(root, tmp_path / "broker.conf")
        messages = [line for line in lines if line["type"] == "message" and line["topic"] == TOPIC]
        assert [line["queueOffset"] for line in messages] == list(offsets)
        assert {line["preparedTransactionOffset"] for line in messages} == {MARK}


def sinks_store(oracle: Oracle, directory: Path) -> SinkStore:
    """Batches 0 to 2 of a sink, 3 decided and in part in the log, 0 and 1 of another."""
    conf = oracle.broker_conf(directory / "store", "127.0.0.1:9", free_ports(), timerWheelEnable="true")
    store = SinkStore(SinkStore.make_place(directory, conf))
    for number in range(3):
        store.commit(rows_of(number))
        if number < 2:
            store.commit(rows_of(number, sink_id="other", query_id="other"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.log.writer, "SLICE_BYTES", 1_000)
        with killed_at("amid-records"):
            store.commit(OPEN)
    return store


def port_of(store: SinkStore) -> int:
    text = (Path(store.root).parent / "broker.conf").read_text()
    return int([line for line in text.splitlines() if line.startswith("listenPort=")][-1].partition("=")[2])


def look_at(broker: RunningBroker) -> Scene:
    with open_store(broker.store) as reading:
        end = [one for one in ledger_messages(reading) if one.tags == END and b'"sink":"sink"' in one.body][-1]
        row = reading.get("orders", reading.queue_ids("orders")[0], 0, 1).messages[0]
    claim = {
        "sink": "sink",
        "query": "query",
        "batch": FORGED,
        "rows": 1,
        "last": [row.commitlog_offset, row.unique_key],
    }
    begin = {"sink": "sink", "query": "query", "batch": 3, "rows": 31, "from": 31}
    of_slice = {"sink": "sink", "query": "query", "batch": 3, "rows": 0, "from": 31, "bytes": 0, "sum": 0}
    claimed = (json.dumps(body, separators=(",", ":")).encode() for body in (claim, begin, of_slice))
    return Scene(broker, end, *claimed)


def ledger_messages(reading: MessageStore) -> list[Message]:
    return list(reading.get(TOPIC, QUEUE_ID, 0, 1_000).messages)


def claims(store: SinkStore) -> list[Message]:
    with open_store(store.root) as reading:
        return [message for message in ledger_messages(reading) if f'"batch":{FORGED}'.encode() in message.body]


def bodies(reading: MessageStore) -> list[str]:
    return [
        message.body.decode()
        for topic in ("orders", "bills")
        for queue_id in reading.queue_ids(topic)
        for message in reading.get(topic, queue_id, 0, 1_000).messages
    ]
