"""Offsets behind their queues' ends, as a promotion or a cut leaves them: nothing new is passed over by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spark_mq.broker_server.offsets_ahead import lower_levels_for_cut, lower_offsets

from spark_mq.broker_server.opening import opened_service
from spark_mq.broker_server.settings import read_configuration
from storage import open_store
from storage.delay.schedule import deliver_due
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.message_store import MessageStore
from storage.messages.inner_messages import InnerMessage
from storage.settings.load import StoreConfig
from storage.tables.consumer_offsets import FILE_NAME as OFFSETS_FILE
from storage.tables.delay_offsets import FILE_NAME as DELAYS_FILE


def write(root: Path, name: str, table: object) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(json.dumps({"offsetTable": table, "kept": 1}), "utf-8")


def table(root: Path, name: str) -> object:
    found = json.loads((root / "config" / name).read_text("utf-8"))
    assert found["kept"] == 1
    return found["offsetTable"]


def opened(root: Path) -> MessageStore:
    return open_store(root, config=StoreConfig.tiny(), read_only=False, create=True)


def park(store: MessageStore, level: int) -> None:
    properties = {"REAL_TOPIC": "T", "REAL_QID": "0", "DELAY": str(level)}
    store.put_inner([InnerMessage(topic=SCHEDULE_TOPIC, queue_id=level - 1, body=b"late", properties=properties)])


def test_offsets_behind_the_ends_are_lowered_and_others_stay(tmp_path: Path) -> None:
    mapping = {"topicQueueMappingInfoMap": {"static": {"topic": "static", "bname": "b", "hostedQueues": {}}}}
    groups = {"T@G": {"0": 9, "1": 0}, "gone@G": {"3": 7}, "static@G": {"0": 9}, "%LMQ%a@G": {"0": 9}, "odd": {"0": 9}}
    with opened(tmp_path) as store:
        store.put("T", b"one", queue_id=0)
        park(store, 1)
        write(tmp_path, OFFSETS_FILE, groups)
        write(tmp_path, DELAYS_FILE, {"1": 4, "2": 6})
        write(tmp_path, "topicQueueMapping.json", {})
        (tmp_path / "config" / "topicQueueMapping.json").write_text(json.dumps(mapping), "utf-8")
        lower_offsets(store)
        assert table(tmp_path, OFFSETS_FILE) == {**groups, "T@G": {"0": 1, "1": 0}, "gone@G": {"3": 0}}
        assert table(tmp_path, DELAYS_FILE) == {"1": 1, "2": 0}


@pytest.mark.parametrize(("role", "offset"), [("ASYNC_MASTER", 0), ("SLAVE", 9)])
def test_a_broker_lowers_them_when_it_is_master(tmp_path: Path, role: str, offset: int) -> None:
    is_slave = int(role == "SLAVE")
    text = f"storePathRootDir={tmp_path}\nbrokerRole={role}\nbrokerId={is_slave}\nnamesrvAddr=127.0.0.1:1\n"
    configuration = read_configuration((text + "mappedFileSizeCommitLog=65536").encode(), None, {})
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 9}})
    opened_service(configuration, None).close()
    assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": offset}}


def test_a_cut_delivery_is_delivered_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(tmp_path, DELAYS_FILE, {"1": 0, "2": 0})
        for level in (1, 1, 1, 2):
            park(store, level)
        due_ms = store.get(SCHEDULE_TOPIC, 1, 0, 1).messages[0].store_time_ms + 1_000
        deliver_due(store, due_ms, max_messages=1)
        place = store.writer.log_end
        park(store, 2)
        deliver_due(store, due_ms)
        assert table(tmp_path, DELAYS_FILE) == {"1": 3, "2": 0}
        lower_levels_for_cut(store, place)
        assert table(tmp_path, DELAYS_FILE) == {"1": 1, "2": 0}
