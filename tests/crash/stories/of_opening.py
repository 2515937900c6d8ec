"""Stores opened, closed and released, and logs that are bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage import StoreConfig
from storage.files.syncs import note_failed_sync
from storage.recovery.opening import bind_log
from storage.recovery.quarantine import list_quarantines
from tests.crash.stories.life import ROOMY, START_MS, Life, bodies, expected, kill, put, small_config
from tests.crash.stories.of_batches import commit
from tests.support.dying import killed_at


def opening_after_a_kill(directory: Path) -> list[str]:
    """After a checkpoint two queue files were lost, and the log ends in a torn record; a batch was decided, and is in the log."""
    life = Life(directory, config=ROOMY)
    store = life.open()
    put(store, 0, 3)
    store.writer.checkpoint()
    put(store, 3, 30)
    commit(life, store, 0)
    tail = store.writer.log_end
    kill(store)
    for path in sorted((life.root / "consumequeue/A/0").iterdir())[1:]:
        life.disk.unlink(str(path))
    life.disk.write(f"{life.root}/commitlog/{0:020d}", tail, b"torn")
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert bodies(again) == expected(33)
    return told


def opening_after_a_start_of_the_machine(directory: Path) -> list[str]:
    """What was written to the index since the checkpoint may not be on the disk: its files go, and keys are entered again."""
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    store.writer.checkpoint()
    put(store, 3, 30)
    kill(store)
    life.disk.boot = 2
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert bodies(again) == expected(33)
        assert [len(again.query("A", f"k{number}", 10)) for number in (0, 3, 32)] == [1, 1, 1]
    return told


def opening_after_a_failed_sync(directory: Path) -> list[str]:
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    note_failed_sync(life.disk, str(life.root), store.writer.unsynced_paths())
    kill(store)
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert bodies(again) == expected(3)
    return told


def opening_after_a_kill_amid_the_index(directory: Path) -> list[str]:
    """The writer was killed behind an index file's header and before its slots."""
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    with killed_at("amid-index"):
        put(store, 3, 3)
    kill(store)
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert [len(again.query("A", f"k{number}", 10)) for number in range(6)] == [1] * 6
    return told


def repairing(directory: Path, *, config: StoreConfig | None = None) -> list[str]:
    """A bad record amid others, over several files, behind the checkpoint; a copy of a former attempt was not finished."""
    life = Life(directory, config=config)
    store = life.open()
    put(store, 0, 3)
    store.writer.checkpoint()
    put(store, 3, 37)
    place = store.position("A", 0, 5)
    kill(store)
    assert place is not None
    life.disk.write(f"{life.root}/commitlog/{0:020d}", place.commitlog_offset + 95, b"\xff")
    unfinished = f"{life.root}/spark_mq/quarantine/20000101T000000000-{0:020d}"
    life.disk.create_file(f"{unfinished}/commitlog/{0:020d}", 1)
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert bodies(again) == expected(5)
        assert [kept.intact_records for kept in list_quarantines(life.disk, str(life.root))] == [34]
        assert not Path(unfinished).exists()
    return told


def bridging(directory: Path) -> list[str]:
    """A log file is missing amid others."""
    life = Life(directory)
    with life.open() as store:
        put(store, 0, 60)
    life.disk.unlink(f"{life.root}/commitlog/{4096:020d}")
    life.disk.begin()
    with life.open(create=False, truncate_damage=True) as again:
        told = [word for word in life.disk.told() if "4096" in word or word == "sync commitlog"]
        assert set(bodies(again)) < set(expected(60))
        assert again.get("A", 0, 59).messages
    return told


def closing(directory: Path) -> list[str]:
    """A store with a batch whose intent stands, and a put."""
    life = Life(directory, config=ROOMY)
    store = life.open()
    commit(life, store, 0)
    put(store, 0, 3)
    life.disk.begin()
    store.close()
    told = life.disk.told()
    with life.open(create=False) as again:  # the lock was given back
        assert bodies(again) == expected(3)
        assert again.plan.was_clean
    return told


def releasing(directory: Path, *, after_ms: int = 0) -> list[str]:
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    life.wait_until(START_MS + 1_000 + after_ms)
    life.disk.begin()
    store.release()
    told = life.disk.told()
    with life.open(create=False) as again:
        assert bodies(again) == expected(3)
        assert again.recovery is None, "the hint holds"
    return told


def binding(directory: Path) -> list[str]:
    """A store's log lies outside of it."""
    (directory / "log").mkdir()
    config = small_config(4096)
    log = replace(config.commit_log, store_path_commit_log=str(directory / "log"))
    life = Life(directory, config=replace(config, commit_log=log))
    life.disk.begin()
    assert bind_log(str(life.root), life.config, life.disk) == (str(directory / "log"),)
    return life.disk.told()
