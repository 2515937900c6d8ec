"""What a repair or a recovery cuts is copied first, whole and readable, and nothing is cut where it cannot be copied.

What was intact behind the bad record is told by tests/oracle/damage.py, which knows nothing of the engine.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.errors import StateFileError, StoreDamagedError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from storage.recovery.quarantine import Quarantine, list_quarantines, load_quarantine, read_quarantine
from tests.oracle.damage import stale
from tests.support.fixture_stores import Fixture
from tests.support.message_builder import StoreBuilder

FILES = LocalFileSystem()
TINY = StoreConfig.tiny()
BAD = 13
"""The message that is spoilt, of 40 in several log files."""


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    """Closed cleanly."""
    store = StoreBuilder(tmp_path / "store")
    for number in range(40):
        store.put("TopicA", number % 3, body=b"%4d" % number * 40, properties={"UNIQ_KEY": f"u{number}"})
    store.open(read_only=False).close()
    return store


def spoil(store: StoreBuilder, number: int = BAD) -> None:
    """A byte of a body, of a store that was not closed: its log was on the disk, of its queues no more than the first entries."""
    store.write_log(store.messages[number].commitlog_offset + 95, b"\xff")
    store.abort()
    store.checkpoint(store.messages[-1].store_time_ms + 1, store.messages[0].store_time_ms)


def repair(store: StoreBuilder, **options: object) -> None:
    store.open(read_only=False, truncate_damage=True, **options).close()


def quarantines(root: Path) -> list[Quarantine]:
    return list_quarantines(FILES, str(root))


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def intact_behind(root: Path, end: int) -> list[int]:
    found = stale(root, end)["staleRecords"]
    assert isinstance(found, list)
    return [offset for offset, _ in found]


def test_all_that_is_cut_is_in_the_quarantine(store: StoreBuilder) -> None:
    spoil(store)
    before = content(store.root)
    repair(store)
    (made,) = quarantines(store.root)
    end = store.messages[BAD].commitlog_offset
    assert (made.commitlog_offset, made.intact_records) == (end, 26)
    assert "body CRC" in made.reason
    assert list(read_quarantine(FILES, made)) == store.messages[BAD + 1 :]
    after = content(store.root)
    copied = {part.source: Path(made.directory, part.path).read_bytes().ljust(1 << 16, b"\0") for part in made.parts}
    for name, old in before.items():
        if name.startswith(("commitlog/", "consumequeue/")):
            new = after.get(name, b"").ljust(len(old), b"\0")
            lost = next((at for at in range(len(old)) if old[at] != new[at]), None)
            if lost is not None:
                part = next(part for part in made.parts if part.source == f"{store.root}/{name}")
                assert part.position <= lost
                assert copied[part.source].startswith(old[part.position :]), name
        elif name.startswith("index/") and name not in after:
            assert copied[f"{store.root}/{name}"].startswith(old), name
    kinds = {part.path.partition("/")[0] for part in made.parts}
    assert kinds == {"commitlog", "consumequeue", "index"}
    assert sum(part.path.startswith("commitlog/") for part in made.parts) > 2


def test_the_manifest_says_of_each_part_where_it_is_from(store: StoreBuilder) -> None:
    spoil(store)
    repair(store, clock=lambda: 1_700_000_000_123)
    (made,) = quarantines(store.root)
    directory = store.root / "spark_mq/quarantine" / f"20231114T221320123-{made.commitlog_offset:020d}"
    assert Path(made.directory) == directory
    manifest = json.loads((directory / "manifest.json").read_text("utf-8"))
    assert (manifest["madeMs"], manifest["intactRecords"]) == (1_700_000_000_123, 26)
    parts = {part["path"]: part for part in manifest["parts"]}
    assert parts.keys() | {"manifest.json"} == content(directory).keys()
    for path, part in parts.items():
        data = (directory / path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part["sizeBytes"], part["sha256"])
        if path.startswith("commitlog/"):
            assert part["commitlogOffset"] == int(path[-20:]) == int(part["source"][-20:]) + part["position"]


def test_a_second_repair_makes_another_quarantine(store: StoreBuilder) -> None:
    for number in (30, BAD):
        spoil(store, number)
        repair(store, clock=lambda: 1_700_000_000_123)
    first, second = sorted(quarantines(store.root), key=lambda made: -made.commitlog_offset)
    assert list(read_quarantine(FILES, first)) == store.messages[31:]
    assert list(read_quarantine(FILES, second)) == store.messages[BAD + 1 : 30]


def test_what_a_broker_wrote_is_copied_as_it_was(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("damaged-unclean")
    damage = fixture.damage
    assert damage is not None
    old = content(fixture.root)
    expected = intact_behind(fixture.root, damage["record"])
    assert len(expected) == damage["intactRecordsBehind"]
    options = {"config": str(fixture.conf), "read_only": False}
    with pytest.raises(StoreDamagedError, match="body CRC"):
        open_store(fixture.root, **options)
    with open_store(fixture.root, **options, truncate_damage=True) as opened:
        report = opened.recovery
    (made,) = quarantines(fixture.root)
    assert report is not None
    assert (report.quarantine, report.quarantined_records) == (made.directory, len(expected))
    assert [message.commitlog_offset for message in read_quarantine(FILES, made)] == expected
    (part,) = (part for part in made.parts if part.commitlog_offset is not None)
    file = old[f"commitlog/{damage['file']}"][part.position :]
    assert Path(made.directory, part.path).read_bytes() == file.rstrip(b"\0")


@pytest.mark.parametrize("name", ["recovered", "revived", "crashed", "torn", "clean"])
def test_stale_and_torn_bytes_are_cut_without_a_copy(name: str, fixture_store: Callable[[str], Fixture]) -> None:
    """What a broker's recovery left behind the end was stored before the last record, and no message follows a torn one."""
    fixture = fixture_store(name)
    with open_store(fixture.root, config=str(fixture.conf), read_only=False) as opened:
        assert opened.recovery is not None
        assert opened.recovery.quarantine is None
    assert not (fixture.root / "spark_mq/quarantine").exists()


def test_intact_records_of_a_tail_are_copied_before_it_is_cut(fixture_store: Callable[[str], Fixture]) -> None:
    """In `crcflip` a byte was inverted behind the checkpoint: no crash is told from a disk that spoilt what was acknowledged."""
    fixture = fixture_store("crcflip")
    summary = next(
        json.loads(line) for line in fixture.golden.read_text("utf-8").splitlines() if '"type":"summary"' in line
    )
    expected = intact_behind(fixture.root, summary["afterLoadMaxPhy"])
    assert expected
    with open_store(fixture.root, config=str(fixture.conf), read_only=False) as opened:
        report = opened.recovery
    (made,) = quarantines(fixture.root)
    assert report is not None
    assert (report.quarantine, report.quarantined_records) == (made.directory, len(expected))
    assert [message.commitlog_offset for message in read_quarantine(FILES, made)] == expected


class FullFileSystem(LocalFileSystem):
    """A disk that is full at its nth change within the quarantine."""

    def __init__(self, changes: int) -> None:
        self.left = changes

    def _change(self, path: str) -> None:
        if "/quarantine" in path:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device", path)

    def create_file(self, path: str, size_bytes: int) -> None:
        self._change(path)
        super().create_file(path, size_bytes)

    def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
        self._change(path)
        super().write(path, position, data)

    def sync(self, path: str) -> None:
        self._change(path)
        super().sync(path)

    def rename(self, path: str, new_path: str) -> None:
        self._change(path)
        super().rename(path, new_path)


def test_where_the_copy_has_no_room_nothing_is_cut(store: StoreBuilder) -> None:
    spoil(store)
    before = content(store.root)
    counting = FullFileSystem(1 << 30)
    shutil.copytree(store.root, copy := store.root.with_name("copy"))
    open_store(copy, config=TINY, read_only=False, truncate_damage=True, file_system=counting).close()
    changes = (1 << 30) - counting.left
    assert changes > 20
    for left in range(changes):
        with pytest.raises(StoreNotWritableError, match="nothing was cut") as refused:
            repair(store, file_system=FullFileSystem(left))
        assert refused.value.retriable
        assert content(store.root) == before, left
        assert quarantines(store.root) == []
    repair(store, file_system=FullFileSystem(changes))
    (made,) = quarantines(store.root)
    assert made.intact_records == 26


def test_a_copy_that_was_not_finished_is_no_quarantine_and_goes_with_the_next(store: StoreBuilder) -> None:
    spoil(store)
    unfinished = store.root / "spark_mq/quarantine/20200101T000000000-00000000000000000000"
    (unfinished / "commitlog").mkdir(parents=True)
    (unfinished / "commitlog/00000000000000000000").write_bytes(b"half of it")
    assert quarantines(store.root) == []
    repair(store)
    assert not unfinished.exists()
    assert len(quarantines(store.root)) == 1


def test_a_manifest_that_cannot_be_read_is_an_error_that_names_it(store: StoreBuilder) -> None:
    spoil(store)
    repair(store)
    (made,) = quarantines(store.root)
    manifest = Path(made.directory, "manifest.json")
    for text in ("", "[]", "[" * 100_000, '{"version": 2}', manifest.read_text("utf-8").replace("sha256", "md5")):
        manifest.write_text(text, "utf-8")
        with pytest.raises(StateFileError, match=r"manifest\.json"):
            load_quarantine(FILES, made.directory)
    shutil.rmtree(made.directory)
    assert load_quarantine(FILES, made.directory) is None


@pytest.mark.parametrize(
    ("is_clean", "checkpoint_ms", "is_damage", "is_copied"),
    [
        pytest.param(True, 0, True, True, id="closed, the checkpoint's own millisecond"),
        pytest.param(False, 0, False, True, id="not closed, the checkpoint's own millisecond: more may have come within it"),
        pytest.param(False, 1, True, True, id="not closed, and a later record was on the disk"),
        pytest.param(False, -1, False, True, id="behind the checkpoint"),
        pytest.param(True, -1, False, True, id="closed, but behind the checkpoint"),
    ],
)  # fmt: skip
def test_the_checkpoint_says_whether_the_record_behind_a_bad_one_was_on_the_disk(
    store: StoreBuilder, is_clean: bool, checkpoint_ms: int, is_damage: bool, is_copied: bool
) -> None:
    last = store.messages[-1]
    spoil(store, len(store.messages) - 2)
    store.checkpoint(last.store_time_ms + checkpoint_ms, index_ms=last.store_time_ms)
    if is_clean:
        (store.root / "abort").unlink()
    if is_damage:
        with pytest.raises(StoreDamagedError, match="at least 1 intact"):
            store.open(read_only=False)
        repair(store)
    else:
        store.open(read_only=False).close()
    assert [list(read_quarantine(FILES, made)) for made in quarantines(store.root)] == [[last]][:is_copied]


class Life(NamedTuple):
    """What a broker did after a crash: it cut the log before a bad record, wrote so many messages so much later, and was closed."""

    cut: int
    count: int
    later_ms: int = 600_000


def live(store: StoreBuilder, life: Life) -> None:
    """CommitLog.recoverNormally and recoverAbnormally: positions are moved, no byte is, but later files go (truncateDirtyFiles)."""
    cut, last_ms = store.messages[life.cut], store.store_time_ms
    assert cut.commitlog_offset >= int(max((store.root / "commitlog").iterdir()).name)
    store.write_log(cut.commitlog_offset + 95, b"\xff")
    del store.messages[life.cut :]
    store.end, store.store_time_ms = cut.commitlog_offset, last_ms + life.later_ms
    for queue_id in range(3):
        store.queue_ends["TopicA", queue_id] = sum(message.queue_id == queue_id for message in store.messages)
    for number in range(life.count):
        store.put("TopicA", number % 3, body=bytes(77 + number), properties={"UNIQ_KEY": f"{life.cut} {number}"})


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    ("lives", "is_copied"),
    [
        pytest.param([Life(32, 1)], False, id="written to again"),
        pytest.param([Life(33, 3), Life(34, 1)], False, id="twice"),
        pytest.param([Life(32, 3), Life(33, 0)], True, id="twice, the last time nothing was written"),
        pytest.param(
            [Life(32, 1, -3_600_000)], True, id="the clock was set back: what is stale looks like a successor"
        ),
    ],
)
def test_what_brokers_leave_behind_the_end_when_they_recover_is_no_damage(
    store: StoreBuilder, lives: list[Life], is_copied: bool, is_clean: bool
) -> None:
    """StoreCheckpoint holds the time of the last flushed message then: of the last one that was written."""
    for life in lives:
        live(store, life)
    store.checkpoint(store.messages[-1].store_time_ms)
    if not is_clean:
        store.abort()
    assert len(intact_behind(store.root, store.end)) >= 4
    expected = {message.commitlog_offset for message in store.messages}
    with store.open() as reading:
        assert (reading.log_end, served(reading)) == (store.end, expected)
    with store.open(read_only=False) as opened:
        assert (opened.log_end, served(opened)) == (store.end, expected)
        assert opened.recovery is not None
        assert opened.recovery.cut_bytes > 0
        again = opened.put("TopicA", b"more", queue_id=0)
        assert again.queue_offset == store.queue_ends["TopicA", 0]
    assert len(quarantines(store.root)) == is_copied
    assert intact_behind(store.root, store.end) == [again.commitlog_offset]


def test_damage_that_a_broker_has_cut_and_nobody_has_written_over_is_refused_still(store: StoreBuilder) -> None:
    """FlushRealTimeService leaves the checkpoint as it is while nothing is written, so it vouches for what the broker has cut."""
    last_ms = store.messages[-1].store_time_ms
    live(store, Life(34, 0))
    store.checkpoint(last_ms)
    with pytest.raises(StoreDamagedError, match="at least 5 intact"):
        store.open(read_only=False)
    live(store, Life(33, 1))
    store.checkpoint(store.messages[-1].store_time_ms)
    store.open(read_only=False).close()


def served(store: MessageStore) -> set[int]:
    return {
        message.commitlog_offset
        for queue_id in store.queue_ids("TopicA")
        for message in store.get("TopicA", queue_id, 0, max_count=100).messages
    }
