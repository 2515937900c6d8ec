"""The audit finds nothing in a sound store, and exactly what was broken in a broken one."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.verify_store import main, verify_store
from spark_mq.cli import app
from storage import StoreConfig, open_store
from storage.recovery.verify import Finding, Kind
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines
from tests.support.releases import LOSES_KEYS_AFTER_A_KILL

FixtureStore = Callable[[str], Fixture]
SLOT_COUNT = 1_000  # maxHashSlotNum of the clean fixture


def findings_of(root: Path) -> list[Finding]:
    return list(verify_store(str(root)).findings)


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def found(root: Path) -> list[tuple[Kind, str, int]]:
    return [(finding.kind, finding.where, finding.count) for finding in findings_of(root)]


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_a_recovered_store_has_nothing_to_find(fixture_store: FixtureStore, name: str) -> None:
    fixture = fixture_store(name)
    open_store(fixture.root, read_only=False, truncate_damage=True).close()
    report = verify_store(str(fixture.root))
    lost = [Kind.MISSING_KEY] if name in LOSES_KEYS_AFTER_A_KILL else []
    assert [finding.kind for finding in report.findings] == lost, report.findings
    assert (report.undispatched_bytes, report.deleted_topics) == (0, ())
    assert report.torn_records == (1 if name == "torn" else 0)


@pytest.mark.parametrize("name", ["clean", "ext", "syncflush", "expired", "preblank", "roll", "ipv6"])
def test_a_store_that_a_broker_closed_has_nothing_to_find(pristine_store: FixtureStore, name: str) -> None:
    fixture = pristine_store(name)
    summary = next(golden_lines(fixture.golden, "summary"))
    report = verify_store(str(fixture.root))
    assert (report.findings, report.records, report.log_end) == ((), summary["rawMessages"], summary["rawEnd"])


def test_stale_entries_that_a_broker_takes_up_again_are_found(pristine_store: FixtureStore) -> None:
    fixture = pristine_store("revived")
    taken_up = {
        (line["cqTopic"], line["cqQueueId"], line["cqOffset"])
        for line in golden_lines(fixture.golden, "message")
        if "error" in line
    }
    stale = [finding for finding in findings_of(fixture.root) if finding.kind is Kind.STALE_ENTRY]
    assert {finding.where for finding in stale} >= {f"{topic} queue {queue}" for topic, queue, _ in taken_up}
    assert sum(finding.count for finding in stale) >= len(taken_up) > 0


def test_what_a_crash_left_undispatched_is_told_and_no_difference(pristine_store: FixtureStore) -> None:
    report = verify_store(str(pristine_store("crashed").root))
    assert (report.findings, report.undispatched_bytes > 0) == ((), True)


def test_looking_changes_no_byte(fixture_store: FixtureStore) -> None:
    root = fixture_store("torn").root
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    verify_store(str(root))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("position", [0, 8, 12], ids=["place", "size", "tags code"])
def test_a_changed_entry_is_found(fixture_store: FixtureStore, position: int) -> None:
    root = fixture_store("clean").root
    queue = root / "consumequeue" / "TopicA" / "0" / f"{0:020d}"
    entry = struct.unpack_from(">qiq", queue.read_bytes(), 3 * 20)
    changed = {0: (entry[0] + 1, *entry[1:]), 8: (entry[0], entry[1] + 1, entry[2]), 12: (*entry[:2], entry[2] + 1)}
    overwrite(queue, 3 * 20, struct.pack(">qiq", *changed[position]))
    (finding,) = findings_of(root)
    assert (finding.kind, finding.where, finding.count) == (Kind.WRONG_ENTRY, "TopicA queue 0", 1)
    assert finding.example.startswith("offset 3:")


def test_deliver_times_of_before_a_change_of_the_levels_are_no_difference(fixture_store: FixtureStore) -> None:
    """CommitLog.checkMessageAndReturnSize enters the deliver time when the message is dispatched, and nobody changes it afterwards."""
    fixture = fixture_store("clean")
    conf = fixture.root.parent / "broker.conf"
    conf.write_text(conf.read_text() + "\nmessageDelayLevel=7s 8m 9h 10d\n")
    assert findings_of(fixture.root) == []


@pytest.mark.parametrize("ahead_ms", [999, -1_000_000_000], ids=["no whole second", "before it was stored"])
def test_what_is_no_deliver_time_of_a_parked_message_is_found(fixture_store: FixtureStore, ahead_ms: int) -> None:
    root = fixture_store("clean").root
    queue = root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "17" / f"{0:020d}"
    place, size, time_ms = struct.unpack_from(">qiq", queue.read_bytes(), 0)
    overwrite(queue, 0, struct.pack(">qiq", place, size, time_ms + ahead_ms))
    assert found(root) == [(Kind.WRONG_ENTRY, "SCHEDULE_TOPIC_XXXX queue 17", 1)]


def test_an_erased_entry_and_one_too_many_are_found(fixture_store: FixtureStore) -> None:
    root = fixture_store("clean").root
    queue = root / "consumequeue" / "TopicA" / "1" / f"{0:020d}"
    first = queue.read_bytes()[:20]
    overwrite(queue, 150 * 20, first)  # behind the last of 150
    overwrite(queue, 7 * 20, bytes(20))
    assert found(root) == [(Kind.MISSING_ENTRY, "TopicA queue 1", 1), (Kind.STALE_ENTRY, "TopicA queue 1", 1)]


@pytest.mark.parametrize("what", [f"{0:020d}", "."], ids=["its file", "its directory"])
def test_a_lost_queue_is_found(fixture_store: FixtureStore, what: str) -> None:
    root = fixture_store("clean").root
    lost = root / "consumequeue" / "TopicA" / "2" / what
    lost.unlink() if lost.is_file() else shutil.rmtree(lost)
    assert found(root) == [(Kind.MISSING_ENTRY, "TopicA queue 2", 150)]


def test_records_of_a_deleted_topic_are_no_difference(fixture_store: FixtureStore) -> None:
    root = fixture_store("clean").root
    shutil.rmtree(root / "consumequeue" / "TopicOrder")
    topics = root / "config" / "topics.json"
    table = json.loads(topics.read_text("utf-8"))
    del table["topicConfigTable"]["TopicOrder"]
    topics.write_text(json.dumps(table), "utf-8")
    report = verify_store(str(root))
    assert (report.findings, report.deleted_topics) == ((), ("TopicOrder",))


def test_keys_behind_an_erased_slot_are_found(fixture_store: FixtureStore) -> None:
    root = fixture_store("clean").root
    index = min((root / "index").iterdir())
    data = index.read_bytes()
    slots = struct.unpack_from(f">{SLOT_COUNT}i", data, 40)
    slot, number = max(enumerate(slots), key=lambda each: each[1])
    keys = set()
    while number > 0:
        key_hash, place, _, number = struct.unpack_from(">iqii", data, 40 + 4 * SLOT_COUNT + 20 * number)
        keys.add((key_hash, place))
    overwrite(index, 40 + 4 * slot, bytes(4))
    assert found(root) == [(Kind.MISSING_KEY, str(root / "index"), len(keys))]


def test_an_item_that_names_another_record_is_found(fixture_store: FixtureStore) -> None:
    root = fixture_store("clean").root
    index = max((root / "index").iterdir())
    position = 40 + 4 * SLOT_COUNT + 20 * 5 + 4
    (place,) = struct.unpack_from(">q", index.read_bytes(), position)
    overwrite(index, position, struct.pack(">q", place + 1))
    assert found(root) == [(Kind.MISSING_KEY, str(root / "index"), 1), (Kind.WRONG_KEY, str(index), 1)]


@pytest.mark.parametrize("field", [0, 1, 2], ids=["log", "queues", "index"])
def test_a_checkpoint_of_the_future_is_found(fixture_store: FixtureStore, field: int) -> None:
    root = fixture_store("clean").root
    times = list(struct.unpack_from(">3q", (root / "checkpoint").read_bytes()))
    times[field] = max(times) + 1
    overwrite(root / "checkpoint", 0, struct.pack(">3q", *times))
    assert found(root) == [(Kind.CHECKPOINT_AHEAD, "checkpoint", 1)]


def test_a_store_between_two_puts_has_nothing_to_find(tmp_path: Path) -> None:
    """The checkpoint's index time runs ahead of puts, so that not each one writes it."""
    settings = StoreConfig.tiny().settings
    (tmp_path / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        store.put("T", b"x", keys="k")
        store.release()
    assert found(tmp_path / "store") == []


def test_a_wrong_body_and_an_unreadable_part_of_an_old_log_file_are_found(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    log = fixture.root / "commitlog" / f"{0:020d}"
    records = sorted(golden_lines(fixture.golden, "message"), key=lambda line: int(line["physicalOffset"]))
    in_file = [line for line in records if line["physicalOffset"] < log.stat().st_size]
    body, unreadable = in_file[10]["physicalOffset"] + 88, in_file[-5]["physicalOffset"]
    overwrite(log, body, bytes([log.read_bytes()[body] ^ 0xFF]))
    overwrite(log, unreadable, bytes(8))
    damaged, bad = findings_of(fixture.root)
    assert (damaged.kind, bad.kind, bad.count) == (Kind.DAMAGED_LOG, Kind.BAD_BODY, 1)
    assert str(unreadable) in damaged.example
    assert str(in_file[10]["physicalOffset"]) in bad.example


def test_the_command_says_so_by_its_exit_code(fixture_store: FixtureStore, pristine_store: FixtureStore) -> None:
    root = fixture_store("clean").root
    sound = CliRunner().invoke(app, ["verify", str(root), "--json"])
    assert (sound.exit_code, json.loads(sound.stdout)["findings"]) == (0, [])
    overwrite(root / "checkpoint", 0, struct.pack(">q", 2**62))
    broken = CliRunner().invoke(app, ["verify", str(root), "--json"])
    assert broken.exit_code == 1
    assert [finding["kind"] for finding in json.loads(broken.stdout)["findings"]] == ["checkpoint_ahead"]
    for_people = CliRunner().invoke(app, ["verify", str(root)])
    assert for_people.exit_code == 1
    assert "checkpoint ahead" in for_people.stdout


def test_the_job_says_so_by_its_exit_code(fixture_store: FixtureStore, capsys: pytest.CaptureFixture[str]) -> None:
    root = fixture_store("roll").root
    assert main([str(root)]) == 0
    overwrite(root / "checkpoint", 0, struct.pack(">q", 2**62))
    assert main([str(root)]) == 1
    assert "checkpoint_ahead" in capsys.readouterr().out
