"""Tables that count further than the log goes, as a cut leaves them: nothing that is put afterwards is passed over."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jobs.rebuild_queues import rebuild_queues
from storage import open_store
from storage.delay.schedule import deliver_due
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import SCHEDULE_TOPIC
from storage.ha.follower import promote
from storage.log.commit_log import read_checkpoint, write_checkpoint
from storage.rules.half_messages import HALF_TOPIC, OP_TOPIC, op_messages
from storage.rules.inner_messages import InnerMessage
from storage.settings.load import StoreConfig
from storage.store import MessageStore
from storage.tables.document import OFFSETS_FILE
from storage.tables.masters import DELAYS_FILE, note_followed_master
from tests.support.timed_store import NOW, TimedStore

STATIC = {"topicQueueMappingInfoMap": {"static": {"topic": "static", "bname": "b", "hostedQueues": {}}}}
LEDGER = "rmq_sys_spark_mq_ledger@CID_RMQ_SYS_SPARK_sink"


def write(root: Path, name: str, table: object) -> None:
    (root / "config").mkdir(exist_ok=True, parents=True)
    for each in (name, f"{name}.bak"):
        (root / "config" / each).write_text(json.dumps({"offsetTable": table, "kept": 1}), "utf-8")


def table(root: Path, name: str) -> object:
    """What the file and its .bak say: the same."""
    found, old = (json.loads((root / "config" / each).read_text("utf-8")) for each in (name, f"{name}.bak"))
    assert found["kept"] == old["kept"] == 1
    assert found["offsetTable"] == old["offsetTable"]
    return found["offsetTable"]


def opened(root: Path, *, follows: bool = False, truncate_damage: bool = False) -> MessageStore:
    return open_store(
        root,
        config=StoreConfig.tiny(),
        read_only=False,
        create=True,
        truncate_damage=truncate_damage,
        holder="follower" if follows else "writer",
    )


def park(store: MessageStore, level: int) -> None:
    properties = {"REAL_TOPIC": "T", "REAL_QID": "0", "DELAY": str(level)}
    store.put_inner([InnerMessage(topic=SCHEDULE_TOPIC, queue_id=level - 1, body=b"late", properties=properties)])


def test_offsets_behind_the_ends_are_lowered_and_others_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    groups = {"T@G": {"0": 9, "1": 0}, "gone@G": {"3": 7}, "static@G": {"0": 9}, "%LMQ%a@G": {"0": 9}, "odd": {"0": 9}}
    groups[LEDGER] = {"0": 900}
    with opened(tmp_path) as store:
        store.put("T", b"one", queue_id=0)
        park(store, 1)
    write(tmp_path, OFFSETS_FILE, groups)
    write(tmp_path, DELAYS_FILE, {"1": 4, "2": 6})
    (tmp_path / "config" / "topicQueueMapping.json").write_text(json.dumps(STATIC), "utf-8")
    with caplog.at_level(logging.WARNING), opened(tmp_path) as store:
        assert table(tmp_path, OFFSETS_FILE) == {**groups, "T@G": {"0": 1, "1": 0}, "gone@G": {"3": 0}}
        assert table(tmp_path, DELAYS_FILE) == {"1": 1, "2": 0}
        assert [str(each) for each in store.lowered] == [
            "group G of T queue 0 from 9 to 1",
            "group G of gone queue 3 from 7 to 0",
            "delay level 1 from 4 to 1",
            "delay level 2 from 6 to 0",
        ]
    assert "4 offsets were ahead of the log, and are lowered: group G of T queue 0 from 9 to 1" in caplog.text
    caplog.clear()
    with opened(tmp_path) as store:
        assert store.lowered == ()
    assert not caplog.text


def test_old_numbers_do_not_come_back_out_of_a_backup(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("T", b"one", queue_id=0)
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 9}})
    path = tmp_path / "config" / OFFSETS_FILE
    path.write_text(path.read_text("utf-8").replace("9", "1"), "utf-8")
    with opened(tmp_path) as store:
        assert store.lowered == ()
        assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 1}}


@pytest.mark.parametrize("name", [OFFSETS_FILE, DELAYS_FILE])
def test_a_table_that_nobody_can_read_stays_with_a_warning_and_the_others_are_lowered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    opened(tmp_path).close()
    tables = {OFFSETS_FILE: {"T@G": {"0": 9}}, DELAYS_FILE: {"1": 4}}
    lowered = {OFFSETS_FILE: {"T@G": {"0": 0}}, DELAYS_FILE: {"1": 0}}
    for each, content in tables.items():
        write(tmp_path, each, content)
    for each in (name, f"{name}.bak"):
        (tmp_path / "config" / each).write_text("{", "utf-8")
    opened(tmp_path).close()
    for each in (name, f"{name}.bak"):
        assert (tmp_path / "config" / each).read_text("utf-8") == "{"
    (other,) = tables.keys() - {name}
    assert table(tmp_path, other) == lowered[other]
    assert f"config/{name}" in caplog.text
    assert "move it and its .bak away" in caplog.text


def test_before_a_cut_a_table_that_nobody_can_read_is_an_error_with_the_cure(tmp_path: Path) -> None:
    """No later opening finds what the records behind the cut have delivered."""
    with opened(tmp_path) as store:
        place = store.writer.log_end
        park(store, 1)
        (tmp_path / "config" / DELAYS_FILE).write_text("{", "utf-8")
        with pytest.raises(StateFileError, match=rf"{DELAYS_FILE}(.|\n)*put a good copy"):
            store.lower_for_cut(place)


def test_a_released_store_is_compared_too(tmp_path: Path) -> None:
    """Its hint may be that of a process that ended between a cut and the lowering."""
    store = opened(tmp_path)
    store.put("T", b"one", queue_id=0)
    store.release()
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 9}, "unlisted@G": {"0": 9}})
    with opened(tmp_path) as store:
        assert store.recovery is None
        assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 1}, "unlisted@G": {"0": 0}}


def test_a_table_that_was_put_back_is_compared(tmp_path: Path) -> None:
    """It could not be read, and another process has been there since."""
    with opened(tmp_path) as store:
        store.put("T", b"one", queue_id=0)
    for name in (OFFSETS_FILE, f"{OFFSETS_FILE}.bak"):
        (tmp_path / "config" / name).write_text("{", "utf-8")
    for _ in range(2):
        opened(tmp_path).release()
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 9}})
    with opened(tmp_path) as store:
        assert store.recovery is None
        assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 1}}


class Reading(LocalFileSystem):
    """Counts how often each file is read."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def read_file(self, path: str) -> bytes | None:
        self.counts[path.rpartition("/")[2]] += 1
        return super().read_file(path)


def test_a_table_is_read_once_and_not_again_by_a_hint_while_it_is_the_same(tmp_path: Path) -> None:
    """Each batch of a sink is such an opening, and the table grows with groups and queues."""
    names = [each for name in (OFFSETS_FILE, DELAYS_FILE) for each in (name, f"{name}.bak")]
    with opened(tmp_path) as store:
        store.put("T", b"one", queue_id=0)
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 1}})
    write(tmp_path, DELAYS_FILE, {"1": 0})
    for count in (1, 0, 0):
        files = Reading()
        store = open_store(tmp_path, config=StoreConfig.tiny(), read_only=False, file_system=files)
        assert [files.counts[name] for name in names] == [count] * 4
        store.put("T", b"more", queue_id=0)
        store.release()


def test_what_a_follower_has_copied_is_compared_when_its_store_is_written(tmp_path: Path) -> None:
    """Its master's tables may say more than its log has, whatever the hint of before says."""
    opened(tmp_path).release()
    store = opened(tmp_path, follows=True)
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 9}})
    store.release()
    with opened(tmp_path) as store:
        assert store.recovery is None
        assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 0}}


def test_groups_of_a_topic_that_was_deleted_are_compared_when_it_is_made_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put("T", b"one", queue_id=0)
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 1}})
    store.release()
    store = opened(tmp_path)
    store.writer.delete_topic("T")
    store.release()
    with opened(tmp_path) as store:
        assert store.recovery is None
        assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 0}}


@pytest.mark.parametrize("is_released", [False, True])
def test_groups_of_a_queue_without_a_directory_go_back_to_where_it_begins_again(
    tmp_path: Path, is_released: bool
) -> None:
    """The log has its messages, but the next one gets offset 0: it would be passed over."""
    _lose_queue(tmp_path)
    if is_released:
        opened(tmp_path).release()
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 2, "1": 9}})
    with opened(tmp_path) as store:
        assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 0, "1": 2}}
        assert store.put("T", b"next", queue_id=0).queue_offset == 0


def test_groups_of_a_queue_that_is_rebuilt_stay_where_they_are(tmp_path: Path) -> None:
    _lose_queue(tmp_path)
    conf = "".join(f"{name}={value}\n" for name, value in StoreConfig.tiny().settings.items())
    (tmp_path / "broker.conf").write_text(conf, "utf-8")
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 2, "1": 9}})
    rebuild_queues(str(tmp_path))
    assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 2, "1": 2}}
    with opened(tmp_path) as store:
        assert store.put("T", b"next", queue_id=0).queue_offset == 2


def _lose_queue(root: Path) -> None:
    with opened(root) as store:
        for queue_id in (0, 0, 1, 1):
            store.put("T", b"one", queue_id=queue_id)
    shutil.rmtree(root / "consumequeue" / "T" / "0")


def test_a_followers_tables_are_its_masters_until_it_is_promoted(tmp_path: Path) -> None:
    opened(tmp_path).close()
    note_followed_master(LocalFileSystem(), str(tmp_path), "127.0.0.1:1")
    write(tmp_path, OFFSETS_FILE, {"T@G": {"0": 9}})
    opened(tmp_path, follows=True).close()
    assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 9}}
    promote(str(tmp_path), config=StoreConfig.tiny())
    assert table(tmp_path, OFFSETS_FILE) == {"T@G": {"0": 0}}


def test_a_timed_message_that_is_put_after_the_cut_is_delivered_in_place_of_the_cut_one(tmp_path: Path) -> None:
    """The timer's log names the cut message at the same place, and the checkpoint counts its offset."""
    timed = TimedStore(tmp_path)
    timed.park("kept", NOW + 60_000)
    timed.store.close()
    kept = {path: path.read_bytes() for path in _of_log(tmp_path)}
    timed.store = timed.open()
    timed.park("cut", NOW + 20_000)
    timed.deliver(NOW + 1_000)
    timed.store.close()
    for path in _of_log(tmp_path):
        path.write_bytes(kept.get(path, b""))
    timed.clock.now_ms = NOW + 5_000
    timed.store = timed.open()
    assert [str(each) for each in timed.store.lowered] == [
        "timer queue offset from 2 to 1",
        "timer master queue offset from 2 to 1",
    ]
    timed.park("new", NOW + 10_000)
    timed.deliver(NOW + 15_000)
    assert timed.delivered == ["new"]
    timed.deliver(NOW + 70_000)
    assert timed.delivered == ["new", "kept"], "what the old unit names is another message"
    timed.store.close()


def _of_log(root: Path) -> list[Path]:
    """Log, queues, checkpoint: what a copy of before the cut holds."""
    places = (root / "commitlog", root / "consumequeue", root / "index", root / "checkpoint")
    return [path for place in places for path in [place, *place.rglob("*")] if path.is_file()]


def test_a_cut_delivery_is_delivered_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for level in (1, 1, 1, 2):
            park(store, level)
        due_ms = store.get(SCHEDULE_TOPIC, 1, 0, 1).messages[0].store_time_ms + 1_000
        deliver_due(store, due_ms, max_messages=1)
        place = store.writer.log_end
        park(store, 2)
        deliver_due(store, due_ms)
        write(tmp_path, DELAYS_FILE, {"1": 3, "2": 0})
        store.lower_for_cut(place)
        assert table(tmp_path, DELAYS_FILE) == {"1": 1, "2": 0}


def test_a_half_that_was_ended_behind_a_cut_is_open_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        halves = [InnerMessage(topic=HALF_TOPIC, queue_id=0, body=b"%d" % number, properties={}) for number in range(4)]
        store.put_inner(halves)
        store.put_inner(op_messages(np.array([0]), 4_096, NOW))
        place = store.writer.log_end
        store.put_inner(op_messages(np.array([2, 1]), 4_096, NOW))
        write(
            tmp_path,
            OFFSETS_FILE,
            {f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 3}, f"{OP_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 2}},
        )
        store.lower_for_cut(place)
        assert table(tmp_path, OFFSETS_FILE) == {
            f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 1},
            f"{OP_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 0},
        }


def test_slots_that_were_delivered_behind_a_cut_are_delivered_again(tmp_path: Path) -> None:
    timed = TimedStore(tmp_path)
    for number, seconds in enumerate((10, 20, 30)):
        timed.park(f"m{number}", NOW + 1_000 * seconds)
    timed.deliver(NOW + 15_000)
    place = timed.store.writer.log_end
    timed.deliver(NOW + 40_000)
    timed.store.lower_for_cut(place)
    assert timed.checkpoint.last_read_time_ms == NOW + 20_000
    timed.store.close()


def test_repair_lowers_what_the_cut_records_had_delivered(tmp_path: Path) -> None:
    files = LocalFileSystem()
    with opened(tmp_path) as store:
        for _ in range(3):
            park(store, 1)
        due_ms = store.get(SCHEDULE_TOPIC, 0, 2, 1).messages[0].store_time_ms + 1_000
        deliver_due(store, due_ms, max_messages=1)
        bad = store.writer.log_end
        deliver_due(store, due_ms)
        last_ms = store.get("T", 0, 2, 1).messages[0].store_time_ms
    write(tmp_path, DELAYS_FILE, {"1": 3})
    checkpoint = read_checkpoint(files, str(tmp_path))
    write_checkpoint(files, str(tmp_path), checkpoint._replace(physic_msg_timestamp=last_ms + 1))
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(bad)
        log.write(b"\xff" * 8)  # of the second delivery; the third is intact behind it
    with opened(tmp_path, truncate_damage=True) as store:
        assert table(tmp_path, DELAYS_FILE) == {"1": 2}
        assert [str(each) for each in store.lowered] == ["delay level 1 from 3 to 2"]
