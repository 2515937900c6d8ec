"""Every store that the broker wrote, as it lies and as we recover it, against what Apache's own classes say of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from spark_mq.cli.message_lines import dump_queue
from storage import MessageStore, open_store
from storage.errors import StoreDamagedError
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines
from tests.support.shares import one_in

DAMAGED = {"damaged", "damaged-unclean"}
CLEAN = {"clean", "ext", "syncflush", "recovered", "expired", "preblank", "roll", "ipv6"}
AGREEING = [name for name in FIXTURE_NAMES if name != "revived"]


@pytest.mark.parametrize("name", one_in(12, AGREEING, always=sorted(DAMAGED)[:2]))
def test_a_recovered_copy_reads_as_apaches_classes_say(name: str, fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store(name)
    with open_store(fixture.root, config=str(fixture.conf), read_only=False, truncate_damage=name in DAMAGED) as store:
        assert differences(store, fixture.golden, every_time=7) == []
        assert names_of_queues(store) == names_in(fixture.golden)
        (summary,) = golden_lines(fixture.golden, "summary")
        assert store.recovery is not None
        assert (store.log_end, store.recovery.cut_bytes, store.recovery.was_clean) == (
            summary["afterLoadMaxPhy"],
            summary["truncatedBytes"],
            not summary["abortFile"],
        )
        assert store.undispatched_bytes == summary["maxPhyOffset"] - summary["maxPhyInCq"]
        assert_index_has_no_doubles(store)
    assert not (fixture.root / "abort").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(6, AGREEING, others=pytest.mark.long))
def test_a_recovered_copy_finds_every_time_where_apaches_classes_do(
    name: str, fixture_store: Callable[[str], Fixture]
) -> None:
    fixture = fixture_store(name)
    with open_store(fixture.root, config=str(fixture.conf), read_only=False, truncate_damage=name in DAMAGED) as store:
        assert differences(store, fixture.golden) == []


@pytest.mark.parametrize("name", one_in(12, AGREEING, always=sorted(DAMAGED)[:2]))
def test_a_recovered_store_is_found_as_it_was_left(name: str, fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store(name)
    options: dict[str, Any] = {"config": str(fixture.conf), "read_only": False, "truncate_damage": name in DAMAGED}
    open_store(fixture.root, **options).close()
    before = content(fixture.root)
    with open_store(fixture.root, **options) as store:
        assert store.recovery is not None
        found = store.recovery
    assert found.was_clean
    assert (found.cut_bytes, found.cut_entries, found.added_entries, found.indexed_keys) == (0, 0, 0, 0)
    assert (found.rebuilt_queues, found.holes, found.removed_files) == ([], [], [])
    assert content(fixture.root) == before


@pytest.mark.parametrize("name", one_in(12, FIXTURE_NAMES))
def test_a_read_only_open_serves_a_part_of_it_and_changes_no_byte(
    name: str, pristine_store: Callable[[str], Fixture]
) -> None:
    fixture = pristine_store(name)
    before = content(fixture.root), modification_times(fixture.root)
    golden = messages_in(fixture.golden)
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        served = {
            (topic, queue_id, line["cqOffset"]): line
            for topic, queue_id in names_of_queues(store)
            for line in dump_queue(store, topic, queue_id)
        }
        for line in golden_lines(fixture.golden, "query"):
            found = key_lookup(store, line)
            assert len(set(found)) == len(found)
            if name in CLEAN:
                assert set(found) >= set(line["physicalOffsets"])
        pulled = {
            (message.topic, message.queue_id, offset)
            for topic, queue_id in names_of_queues(store)
            for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
            for message in store.get(topic, queue_id, offset, 1).messages
        }
    assert {place for place, line in served.items() if golden.get(place) != line} == set()
    assert pulled == set(served)
    if name in CLEAN:
        assert served.keys() == golden.keys()
    assert (content(fixture.root), modification_times(fixture.root)) == before


@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_damage_is_refused_for_writing_and_left_as_it_is(name: str, fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store(name)
    damage = fixture.damage
    assert damage is not None
    before = content(fixture.root)
    with pytest.raises(StoreDamagedError) as refused:
        open_store(fixture.root, config=str(fixture.conf), read_only=False)
    assert content(fixture.root) == before
    assert refused.value.commitlog_offset == damage["record"]
    assert Path(refused.value.file).name == damage["file"]
    assert refused.value.field == "body CRC"
    assert refused.value.intact_records_behind == damage["intactRecordsBehindWithinCheckpoint"]


@pytest.mark.parametrize("read_only", [True, False])
def test_stale_entries_that_apache_takes_up_again_are_not_served(
    read_only: bool, fixture_store: Callable[[str], Fixture]
) -> None:
    fixture = fixture_store("revived")
    lines = list(golden_lines(fixture.golden, "message"))
    wrong = {(line["cqTopic"], line["cqQueueId"], line["cqOffset"]) for line in lines if "error" in line}
    assert wrong
    with open_store(fixture.root, config=str(fixture.conf), read_only=read_only) as store:
        for line in lines:
            place = line["cqTopic"], line["cqQueueId"], line["cqOffset"]
            found = list(dump_queue(store, *place, place[2] + 1))
            assert found == ([] if place in wrong else [line])
            assert bool(store.get(*place, 1).messages) == (place not in wrong)
        for topic, queue_id in {place[:2] for place in wrong}:
            first = min(place[2] for place in wrong if place[:2] == (topic, queue_id))
            assert store.max_offset(topic, queue_id) == first


def differences(store: MessageStore, golden: Path, *, every_time: int = 1) -> list[tuple[dict[str, Any], object]]:
    """Golden lines that the store does not agree with, each with what the store says. Of those about times, one in `every_time`."""
    dumped: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    answers: dict[str, Callable[[dict[str, Any]], tuple[object, object]]] = {
        "message": lambda line: (message_at(store, dumped, line), line),
        "queue": lambda line: (
            (store.min_offset(line["topic"], line["queueId"]), store.max_offset(line["topic"], line["queueId"])),
            (line["minOffset"], line["maxOffset"]),
        ),
        "offsetByTime": lambda line: (
            tuple(
                store.offset_by_time(line["topic"], line["queueId"], line["timestamp"], upper=upper)
                for upper in (False, True)
            ),
            (line["lower"], line["upper"]),
        ),
        "pull": lambda line: (
            pull(store, line),
            tuple(line[name] for name in ("status", "nextBeginOffset", "minOffset", "maxOffset", "count", "bytes")),
        ),
    }
    wrong: list[tuple[dict[str, Any], object]] = []
    times = count()
    for line in golden_lines(golden):
        if line["type"] == "offsetByTime" and next(times) % every_time:
            continue
        if line["type"] in answers:
            found, expected = answers[line["type"]](line)
            if found != expected:
                wrong.append((line, found))
        elif line["type"] == "query":
            places = key_lookup(store, line)
            if len(set(places)) != len(places) or not set(places) >= set(line["physicalOffsets"]):
                wrong.append((line, places))
    return wrong


def message_at(
    store: MessageStore, dumped: dict[tuple[str, int], dict[int, dict[str, Any]]], line: dict[str, Any]
) -> dict[str, Any] | None:
    queue = line["cqTopic"], line["cqQueueId"]
    if queue not in dumped:
        dumped[queue] = {found["cqOffset"]: found for found in dump_queue(store, *queue)}
    return dumped[queue].get(line["cqOffset"])


def pull(store: MessageStore, line: dict[str, Any]) -> tuple[object, ...]:
    got = store.get(line["topic"], line["queueId"], line["offset"], 32)
    return (
        got.status.name,
        got.next_begin_offset,
        got.min_offset,
        got.max_offset,
        len(got.messages),
        got.size_bytes,
    )


def key_lookup(store: MessageStore, line: dict[str, Any]) -> list[int]:
    found = store.query(line["topic"], line["key"], line["maxNum"], begin_ms=line["begin"], end_ms=line["end"])
    return [message.commitlog_offset for message in found]


def assert_index_has_no_doubles(store: MessageStore) -> None:
    """No file that we made holds an item twice; a file that the broker made may."""
    made = {path.rpartition("/")[2] for path in (store.recovery.removed_files if store.recovery else [])}
    for file in store.index.files() if made else []:
        items = file.items()
        places = list(zip(items["key_hash"].tolist(), items["commitlog_offset"].tolist(), strict=True))
        if file is store.index.files()[-1]:
            assert len(set(places)) == len(places)
        assert file.reachable_items().all()


def names_of_queues(store: MessageStore) -> list[tuple[str, int]]:
    return [(topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic)]


def names_in(golden: Path) -> list[tuple[str, int]]:
    return sorted((line["topic"], line["queueId"]) for line in golden_lines(golden, "queue"))


def messages_in(golden: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The golden messages by topic, queue id and queue offset; without those that Apache cannot read itself."""
    return {
        (line["cqTopic"], line["cqQueueId"], line["cqOffset"]): line
        for line in golden_lines(golden, "message")
        if "error" not in line
    }


def content(root: Path) -> dict[str, str]:
    """What stands in every file, by its path; directories too."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        for path in sorted(root.rglob("*"))
    }


def modification_times(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in sorted(root.rglob("*"))}
