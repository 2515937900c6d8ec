"""How much of the index may be kept after an unclean stop: all of it within a boot, what was synced after a power loss."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.keys import HEADER_STRUCT, ITEM_STRUCT
from storage.index.store import IndexTrust, drop_index_trust, has_index_trust, load_index_trust, save_index_trust
from storage.log.commit_log import decode_checkpoint
from tests.support.broker_index import put_keys
from tests.support.unsynced_files import UnsyncedFileSystem

FILES = UnsyncedFileSystem()
TINY = StoreConfig.tiny()
NOW_MS = 1_700_000_000_000
FOREVER_MS = NOW_MS + 10**9


class OtherBoot(UnsyncedFileSystem):
    """The machine was started again."""

    def boot_id(self) -> str:
        return "another"


def trust_file(root: Path) -> Path:
    return root / "spark_mq" / "index_synced.json"


def test_where_this_package_never_ran_ahead_the_checkpoint_is_believed(tmp_path: Path) -> None:
    assert not has_index_trust(FILES, str(tmp_path))
    assert load_index_trust(FILES, str(tmp_path), NOW_MS) == IndexTrust(NOW_MS, NOW_MS)


def test_after_a_clean_stop_all_is_believed_where_nothing_is_told(tmp_path: Path) -> None:
    trust = load_index_trust(FILES, str(tmp_path), NOW_MS, was_clean=True)
    assert trust.keeps(FOREVER_MS)
    assert trust.is_synced(FOREVER_MS)


def test_a_clean_stop_says_nothing_against_what_is_told(tmp_path: Path) -> None:
    """It was a broker's, and a broker believes the checkpoint, which runs ahead."""
    save_index_trust(FILES, str(tmp_path), NOW_MS)
    for files in (FILES, OtherBoot()):
        unclean = load_index_trust(files, str(tmp_path), FOREVER_MS)
        assert load_index_trust(files, str(tmp_path), FOREVER_MS, was_clean=True) == unclean


def test_within_a_boot_every_file_is_kept_but_only_synced_ones_are_whole(tmp_path: Path) -> None:
    save_index_trust(FILES, str(tmp_path), NOW_MS)
    assert has_index_trust(FILES, str(tmp_path))
    trust = load_index_trust(FILES, str(tmp_path), FOREVER_MS)
    assert trust.keeps(FOREVER_MS)
    assert trust.is_synced(NOW_MS - 1)
    assert not trust.is_synced(NOW_MS), "more may have come in that millisecond"


def test_after_another_start_only_what_was_synced_is_kept(tmp_path: Path) -> None:
    save_index_trust(FILES, str(tmp_path), NOW_MS)
    trust = load_index_trust(OtherBoot(), str(tmp_path), FOREVER_MS)
    assert trust.keeps(NOW_MS)
    assert not trust.keeps(NOW_MS + 1)
    assert trust.is_synced(NOW_MS - 1)
    lowered = load_index_trust(OtherBoot(), str(tmp_path), NOW_MS - 5)
    assert not lowered.keeps(NOW_MS), "a checkpoint that was lowered counts"


def test_dropped_trust_leaves_the_checkpoint(tmp_path: Path) -> None:
    save_index_trust(FILES, str(tmp_path), NOW_MS)
    drop_index_trust(FILES, str(tmp_path))
    drop_index_trust(FILES, str(tmp_path))
    assert load_index_trust(OtherBoot(), str(tmp_path), FOREVER_MS) == IndexTrust(FOREVER_MS, FOREVER_MS)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"{}", b'{"bootId": "x"}', b'{"bootId": "x", "indexSyncedTime": "soon"}', b"\xff", b"null"),
        *(b'{"bootId": "x", "indexSyncedTime": 1e999}', b'{"bootId": "x", "indexSyncedTime": NaN}', b"[" * 100_000),
    ],
    ids=lambda content: content[:50].decode(errors="replace"),
)
def test_a_file_that_says_nothing_trusts_nothing(content: bytes, tmp_path: Path) -> None:
    trust_file(tmp_path).parent.mkdir()
    trust_file(tmp_path).write_bytes(content)
    trust = load_index_trust(FILES, str(tmp_path), FOREVER_MS)
    assert not trust.keeps(1)
    assert not trust.is_synced(1)


# In a store


def opened(root: Path, files: LocalFileSystem = FILES, now_ms: int = NOW_MS) -> MessageStore:
    return open_store(root, config=TINY, read_only=False, create=True, file_system=files, clock=lambda: now_ms)


def put(store: MessageStore, count: int, prefix: str) -> None:
    keys = [f"{prefix}{number}" for number in range(count)]
    store.put_batch(pa.table({"topic": ["T"] * count, "body": [b"body"] * count, "keys": keys}))


def index_time(root: Path) -> int:
    return decode_checkpoint((root / "checkpoint").read_bytes()).index_msg_timestamp


def test_the_index_time_runs_ahead_only_once_this_file_stands(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    class Watching(LocalFileSystem):
        def write(self, path: str, position: int, data: object) -> None:
            super().write(path, position, data)  # type: ignore[arg-type]
            if path.endswith("checkpoint"):
                seen.append((index_time(tmp_path), trust_file(tmp_path).exists()))

    store = opened(tmp_path, Watching())
    put(store, 1, "a")
    store.writer.checkpoint()
    assert not trust_file(tmp_path).exists()
    store.release()
    store = opened(tmp_path, Watching(), NOW_MS + 60_000)
    put(store, 1, "b")
    assert [exists for time, exists in seen if time > NOW_MS + 5_000] == [True]
    assert json.loads(trust_file(tmp_path).read_bytes())["indexSyncedTime"] == NOW_MS
    store.close()
    assert not trust_file(tmp_path).exists()


@pytest.fixture
def ahead(tmp_path: Path) -> Path:
    """Two full index files that are synced, then keys that are not; killed."""
    store = opened(tmp_path)
    put(store, 19, "synced")  # two keys each: two files of 19
    store.writer.checkpoint()
    store.release()
    store = opened(tmp_path, now_ms=NOW_MS + 60_000)
    put(store, 15, "young")
    store.writer.close()
    (tmp_path / "spark_mq" / "hint.json").unlink(missing_ok=True)
    return tmp_path


def index_files(root: Path) -> dict[str, int]:
    """Name → inode: a file that was made anew has another, or another name."""
    return {path.name: path.stat().st_ino for path in (root / "index").iterdir()}


def assert_all_keys_are_found(root: Path) -> None:
    with open_store(root, config=TINY) as store:
        for key in (*(f"synced{number}" for number in range(19)), *(f"young{number}" for number in range(15))):
            assert len(store.query("T", key)) == 1, key
        assert sum(len(file.items()) for file in store.index.files()) == 2 * (19 + 15)


def test_after_a_kill_the_index_is_kept(ahead: Path) -> None:
    before = index_files(ahead)
    with opened(ahead, now_ms=NOW_MS + 120_000) as store:
        assert store.recovery is not None
        assert (store.recovery.indexed_keys, store.recovery.removed_files) == (0, [])
    assert index_files(ahead) == before
    assert_all_keys_are_found(ahead)


@pytest.mark.parametrize("number", [2, 3, None], ids=["first young", "last", "all young"])
def test_after_a_kill_slots_are_made_again_where_they_may_not_have_been_written(
    number: int | None, ahead: Path
) -> None:
    """Of full files too, and of files that a broker has followed with others since: nobody else would ever do it."""
    before = index_files(ahead)
    young = sorted((ahead / "index").iterdir())[2:]
    assert len(young) == 2
    for path in young if number is None else [sorted((ahead / "index").iterdir())[number]]:
        with path.open("r+b") as file:
            file.seek(40)
            file.write(bytes(4 * 10))
    opened(ahead, now_ms=NOW_MS + 120_000).close()
    assert index_files(ahead) == before
    assert_all_keys_are_found(ahead)


@pytest.mark.parametrize("files", [FILES, OtherBoot()], ids=["same boot", "another"])
@pytest.mark.parametrize("clean", [False, True])
def test_keys_without_slots_are_found_behind_those_of_a_broker_that_has_come_and_gone(
    clean: bool, files: LocalFileSystem, ahead: Path
) -> None:
    """Killed behind the header of the last file; a broker then dispatched the rest of the log into the same slots."""
    path = sorted((ahead / "index").iterdir())[3]
    sound = path.read_bytes()
    begin_ms, _, begin_offset, _, _, count = HEADER_STRUCT.unpack_from(sound)
    items = list(ITEM_STRUCT.iter_unpack(sound[40 + 4 * 10 :]))[1:count]
    assert count == 12
    of_ours, of_the_broker = items[:7], items[7:]
    ours = HEADER_STRUCT.pack(begin_ms, begin_ms, begin_offset, of_ours[-1][1], 3, 8)
    path.write_bytes(ours + bytes(4 * 10) + sound[40 + 4 * 10 :])
    put_keys(path, 10, [(key_hash, place, begin_ms) for key_hash, place, _, _ in of_the_broker])
    assert path.read_bytes() != sound
    if clean:
        (ahead / "abort").unlink()
    else:
        (ahead / "abort").write_bytes(b"4711")
    opened(ahead, files, NOW_MS + 120_000).close()
    assert_all_keys_are_found(ahead)
    assert not trust_file(ahead).exists()


@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "a broker stopped cleanly since"])
def test_after_a_power_loss_what_is_younger_than_the_last_sync_is_entered_again(clean: bool, ahead: Path) -> None:
    before = index_files(ahead)
    for path in sorted((ahead / "index").iterdir())[2:]:  # the pages that were not synced
        sound = path.read_bytes()
        path.write_bytes(sound[:40] + bytes(len(sound) - 40))
        assert struct.unpack(">q", sound[8:16])[0] > NOW_MS
    assert index_time(ahead) > NOW_MS + 5_000, "the checkpoint vouches for these files, and a broker keeps them"
    if clean:
        (ahead / "abort").unlink()
    with opened(ahead, OtherBoot(), NOW_MS + 120_000) as store:
        assert store.recovery is not None
        assert store.recovery.indexed_keys == 30
    after = index_files(ahead)
    kept = sorted(before)[:2]
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert_all_keys_are_found(ahead)
