"""A log that ends before what its tables count, and who opens the store first: nothing that is written from then on is passed over.

A power loss under ASYNC_FLUSH, a repair or a restored log leave such a store.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.broker_server.opening import opened_service
from spark_mq.broker_server.settings import read_configuration
from spark_mq.cli import app
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import SCHEDULE_TOPIC, TimerCheckpoint
from storage.rules.delays import TIMER_TOPIC
from storage.rules.half_messages import HALF_TOPIC, OP_TOPIC
from storage.rules.inner_messages import InnerMessage
from storage.tables.masters import (
    FollowedTimer,
    followed_timer_path,
    note_followed_master,
    read_followed_timer,
    read_timer_checkpoint,
    write_timer_checkpoint,
)
from tests.support.ways_in import WRITING

FILES = LocalFileSystem()
CONF = "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=4000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
HALVES, OPS = f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS", f"{OP_TOPIC}@CID_RMQ_SYS_TRANS"
REVIVING = "rmq_sys_REVIVE_LOG_DefaultCluster@CID_RMQ_SYS_REVIVE_GROUP"
AHEAD = {
    "T@G": {"0": 9, "1": 3},
    "%RETRY%G@G": {"0": 5},
    HALVES: {"0": 7},
    OPS: {"0": 8},
    REVIVING: {"0": 4},
    "rmq_sys_spark_mq_ledger@CID_RMQ_SYS_SPARK_sink": {"0": 70},
    "Unread@G": {"0": 1},
}
LOWERED = {
    "T@G": {"0": 2, "1": 0},
    "%RETRY%G@G": {"0": 1},
    HALVES: {"0": 1},
    OPS: {"0": 1},
    REVIVING: {"0": 1},
    "rmq_sys_spark_mq_ledger@CID_RMQ_SYS_SPARK_sink": {"0": 70},
    "Unread@G": {"0": 1},
}
TIMER_AHEAD = TimerCheckpoint(last_read_time_ms=1_000, queue_offset=6, master_queue_offset=5)


@pytest.fixture(scope="module")
def cut_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two messages of T, one of each other topic; and tables, with their .bak, that count more."""
    directory = tmp_path_factory.mktemp("cut")
    (directory / "broker.conf").write_text(CONF, "utf-8")
    root = directory / "store"
    parked = {
        SCHEDULE_TOPIC: {"REAL_TOPIC": "T", "REAL_QID": "0", "DELAY": "18"},
        TIMER_TOPIC: {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": "9000000000000"},
        HALF_TOPIC: {"REAL_TOPIC": "T", "REAL_QID": "0"},
        OP_TOPIC: {"TAGS": "x"},
    }
    with open_store(root, config=str(directory / "broker.conf"), read_only=False, create=True) as store:
        for topic in ("T", "T", "Unread", "%RETRY%G", "rmq_sys_REVIVE_LOG_DefaultCluster"):
            store.put_inner([InnerMessage(topic=topic, queue_id=0, body=b"before", properties={})])
        for topic, properties in parked.items():
            queue_id = 17 if topic == SCHEDULE_TOPIC else 0
            store.put_inner([InnerMessage(topic=topic, queue_id=queue_id, body=b"parked", properties=properties)])
    for name, table in (("consumerOffset.json", AHEAD), ("delayOffset.json", {"18": 8, "2": 1})):
        for each in (name, f"{name}.bak"):
            (root / "config" / each).write_text(json.dumps({"offsetTable": table}), "utf-8")
    write_timer_checkpoint(FILES, str(root), TIMER_AHEAD)
    (root / "spark_mq").mkdir(exist_ok=True)
    Path(followed_timer_path(str(root))).write_text(FollowedTimer(1_000, 6).to_text(), "utf-8")
    return directory


def _broker(root: str, conf: str) -> None:
    text = f"storePathRootDir={root}\nnamesrvAddr=127.0.0.1:1\n{CONF}"
    opened_service(read_configuration(text.encode(), conf, {}), None).close()


def _promote(root: str, conf: str) -> None:
    note_followed_master(FILES, root, "127.0.0.1:1")
    assert CliRunner().invoke(app, ["promote", root, "--conf", conf]).exit_code == 0


def _slave(root: str, conf: str) -> None:
    text = f"storePathRootDir={root}\nnamesrvAddr=127.0.0.1:1\nbrokerRole=SLAVE\nbrokerId=1\n{CONF}"
    opened_service(read_configuration(text.encode(), conf, {}), None).close()


_DOES_NOT_OPEN = {
    *(
        "sink, plan",
        "sink, task",
        "sink, commit",
        "sink, settings",
        "create_topic",
    ),  # the commit is of rows that are not there
    *(
        "command create-topic",
        "command alter-topic",
        "command delete-topic",  # there is no such topic
        "command sink-status --remove-orphans",
        "commitOffsets",
        "command bind-log",
        "command follow",
        "job replay_dead_letters",
    ),
}
OPENINGS: dict[str, Callable[[str, str], object]] = {
    **{name: way for name, way in WRITING.items() if name not in _DOES_NOT_OPEN},
    "broker": _broker,
    "promote": _promote,
}


@pytest.mark.parametrize("opening", OPENINGS)
def test_whoever_opens_first_lowers_each_table_before_the_first_put(
    cut_store: Path, tmp_path: Path, opening: str
) -> None:
    directory = shutil.copytree(cut_store, tmp_path / "copy")
    root, conf = directory / "store", str(directory / "broker.conf")
    OPENINGS[opening](str(root), conf)
    for suffix in ("", ".bak"):
        found = json.loads((root / "config" / f"consumerOffset.json{suffix}").read_text("utf-8"))["offsetTable"]
        assert {name: found[name] for name in LOWERED} == LOWERED
        levels = json.loads((root / "config" / f"delayOffset.json{suffix}").read_text("utf-8"))["offsetTable"]
        assert levels == {"18": 1, "2": 0}
    timer = read_timer_checkpoint(FILES, str(root))
    assert (timer.queue_offset, timer.master_queue_offset) == (1, 1)
    followed = read_followed_timer(FILES, str(root))
    assert followed is None or followed.queue_offset == 1


def test_a_slaves_tables_stay_as_its_master_gave_them(cut_store: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(cut_store, tmp_path / "copy")
    root = directory / "store"
    _slave(str(root), str(directory / "broker.conf"))
    assert json.loads((root / "config" / "consumerOffset.json").read_text("utf-8"))["offsetTable"] == AHEAD
    assert read_timer_checkpoint(FILES, str(root)) == TIMER_AHEAD


@pytest.mark.parametrize("command", ["recover", "repair", "close"])
def test_a_command_says_how_many_and_from_where_to_where(cut_store: Path, tmp_path: Path, command: str) -> None:
    copies = [shutil.copytree(cut_store, tmp_path / name) for name in ("people", "programs")]
    text = CliRunner().invoke(app, [command, str(copies[0] / "store")]).stdout
    assert "lowered: group G of T queue 0 from 9 to 2" in text
    assert text.count("lowered: ") == 10
    found = json.loads(CliRunner().invoke(app, [command, str(copies[1] / "store"), "--json"]).stdout)["lowered_offsets"]
    assert len(found) == 10
    assert {"file": "delayOffset.json", "name": "delay level 18", "before": 8, "after": 1} in found


def test_a_killed_lowering_is_gone_on_with_by_the_next_opening(cut_store: Path, tmp_path: Path) -> None:
    """Between the cut and the lowering, and between any two of its files."""
    for step in range(1, 12):
        directory = shutil.copytree(cut_store, tmp_path / str(step))
        root, conf = directory / "store", str(directory / "broker.conf")
        if not _killed_at(step, root, conf):
            break
        with open_store(root, config=conf, read_only=False) as store:
            store.put("T", b"after", queue_id=0)
        found = json.loads((root / "config" / "consumerOffset.json").read_text("utf-8"))["offsetTable"]
        assert found == LOWERED
        assert read_timer_checkpoint(FILES, str(root)).queue_offset == 1
    assert step > 5


def _killed_at(step: int, root: Path, conf: str) -> bool:
    class Killed(Exception):
        pass

    class Mortal(LocalFileSystem):
        left = step

        def replace(self, path: str, content: bytes, *, is_private: bool = False) -> None:
            if "/config/" in path or path.endswith("followed_timer.json"):
                Mortal.left -= 1
                if not Mortal.left:
                    raise Killed
            super().replace(path, content, is_private=is_private)

    try:
        open_store(root, config=conf, read_only=False, file_system=Mortal()).close()
    except Killed:
        return True
    return False
