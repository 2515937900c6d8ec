"""A hint spares a recovery where nothing happened since, and is worth nothing after anything that happened."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.dispatch.writer import Hint, drop_hint, load_hint, save_hint
from storage.files.local_file_system import LocalFileSystem
from storage.log.commit_log import RecordIdentity
from tests.support.unsynced_files import UnsyncedFileSystem

FILES = UnsyncedFileSystem()
TINY = StoreConfig.tiny()
HINT = Hint(
    abort="1 a",
    boot_id="boot",
    log_end=4_096,
    last_record=RecordIdentity(4_000, 17),
    log_file=("/store/commitlog/0", (1, 2, 3)),
    index_file=("20240101000000000", 3, 4_000),
    queue_ends={"T": {0: 5, 11: 2**40}, "ä": {0: 1}},
    unsynced=("/store/commitlog/0",),
    checkpointed_ms=7,
    marked_ends={"sink": {"query": 3, "older": 9}},
    synced_entries=("", "spark_mq"),
    finished_intents=("/store/spark_mq/intents/0-1.json",),
    compared_tables={"/store/config/delayOffset.json": (1, 2, 3, 4), "/store/config/timercheck": None},
    name="0a",
)
NOTHING = Hint("", "", 0, None, None, None)


class OtherBoot(UnsyncedFileSystem):
    """The machine was started again."""

    def boot_id(self) -> str:
        return "another"


class UnknownBoot(UnsyncedFileSystem):
    def boot_id(self) -> str:
        return ""


def opened(root: Path, files: LocalFileSystem = FILES) -> MessageStore:
    return open_store(root, config=TINY, read_only=False, create=True, file_system=files)


def fill(store: MessageStore, count: int = 25, prefix: str = "") -> None:
    columns = {
        "topic": ["T" if number % 3 else "U" for number in range(count)],
        "body": [f"{prefix}{number}".encode() * 20 for number in range(count)],
        "keys": [f"{prefix}k{number}" for number in range(count)],
    }
    store.put_batch(pa.table(columns))


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A store of several log and index files that was let go of."""
    root = tmp_path / "store"
    store = opened(root)
    fill(store)
    store.release()
    return root


Ends = tuple[int, dict[tuple[str, int], int], dict[str, int]]


def ends(store: MessageStore) -> Ends:
    found = store.writer.ends
    times = {} if found.last_record is None else found.last_record._asdict()
    return found.log_end, {name: end for name, end in found.queue_ends.items() if end}, times


def last_log_file(root: Path) -> Path:
    return max(path for path in (root / "commitlog").iterdir() if any(path.read_bytes()))


def last_index_file(root: Path) -> Path:
    return max((root / "index").iterdir())


def log_end(root: Path) -> int:
    hint = load_hint(FILES, str(root))
    assert hint is not None
    return hint.log_end


def write(path: Path, position: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, position)
    finally:
        os.close(descriptor)


# The file


@pytest.mark.parametrize("hint", [HINT, NOTHING], ids=["full", "empty"])
def test_what_is_saved_is_loaded(hint: Hint, tmp_path: Path) -> None:
    assert load_hint(FILES, str(tmp_path)) is None
    save_hint(FILES, str(tmp_path), NOTHING)
    save_hint(FILES, str(tmp_path), hint)
    loaded = load_hint(FILES, str(tmp_path))
    assert loaded == hint
    assert loaded is None or list(loaded.marked_ends or {}) == list(hint.marked_ends or {})
    drop_hint(FILES, str(tmp_path))
    drop_hint(FILES, str(tmp_path))
    assert load_hint(FILES, str(tmp_path)) is None


def test_the_query_that_wrote_last_stays_first(tmp_path: Path) -> None:
    save_hint(FILES, str(tmp_path), HINT)
    loaded = load_hint(FILES, str(tmp_path))
    assert loaded is not None
    assert list((loaded.marked_ends or {})["sink"]) == ["query", "older"]


def test_ends_that_a_version_before_the_mark_knew_are_looked_up_again(tmp_path: Path) -> None:
    """Among them may be forged ones."""
    document = asdict(HINT)
    document["ledger"] = document.pop("marked_ends")
    content = json.dumps(document).encode()
    (tmp_path / "spark_mq").mkdir()
    (tmp_path / "spark_mq/hint.json").write_bytes(b"%08x" % zlib.crc32(content) + content)
    assert load_hint(FILES, str(tmp_path)) == replace(HINT, marked_ends=None)


def test_open_batches_are_looked_up_again_after_a_version_that_knew_no_begins_among_them(tmp_path: Path) -> None:
    document = asdict(HINT) | {"open_slices": {"sink": {"query": 5}}}
    del document["open_batches"]
    content = json.dumps(document).encode()
    (tmp_path / "spark_mq").mkdir()
    (tmp_path / "spark_mq/hint.json").write_bytes(b"%08x" % zlib.crc32(content) + content)
    assert load_hint(FILES, str(tmp_path)) == HINT


def test_half_a_hint_is_none(tmp_path: Path) -> None:
    save_hint(FILES, str(tmp_path), HINT)
    path = tmp_path / "spark_mq" / "hint.json"
    sound = path.read_bytes()
    for length in range(0, len(sound), 7):
        path.write_bytes(sound[:length])
        assert load_hint(FILES, str(tmp_path)) is None
    for position in range(0, len(sound), 5):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        assert load_hint(FILES, str(tmp_path)) is None
    path.write_bytes(sound[: len(sound) // 2] + bytes(len(sound) - len(sound) // 2))
    assert load_hint(FILES, str(tmp_path)) is None


def test_a_write_that_was_cut_off_leaves_the_old_hint(tmp_path: Path) -> None:
    save_hint(FILES, str(tmp_path), HINT)
    (tmp_path / "spark_mq" / "hint.json.tmp").write_bytes(b"half of")
    assert load_hint(FILES, str(tmp_path)) == HINT
    save_hint(FILES, str(tmp_path), NOTHING)
    assert load_hint(FILES, str(tmp_path)) == NOTHING
    assert [entry.name for entry in (tmp_path / "spark_mq").iterdir()] == ["hint.json"]


# Whether it holds


def test_a_released_store_is_opened_without_recovery(released: Path) -> None:
    assert (released / "abort").exists()
    store = opened(released)
    assert store.recovery is None
    by_hint = ends(store)
    assert len(list(store.get("T", 0, 0).messages)) > 0
    store.writer.close()
    store.release()
    (released / "spark_mq" / "hint.json").unlink()
    store = opened(released)
    assert store.recovery is not None
    assert ends(store) == by_hint, "recovery finds the same ends"
    assert (store.recovery.added_entries, store.recovery.indexed_keys) == (0, 0)
    store.close()


def test_after_a_release_and_another_everything_is_there(released: Path) -> None:
    for number in range(3):
        store = opened(released)
        assert store.recovery is None
        fill(store, 10, f"r{number}-")
        store.release()
    with open_store(released, config=TINY) as store:
        for number in range(3):
            for row in range(10):
                assert len(store.query("T" if row % 3 else "U", f"r{number}-k{row}")) == 1
        assert sum(store.max_offset(topic, queue) for topic in "TU" for queue in store.queue_ids(topic)) == 25 + 30


@pytest.mark.parametrize("closed", [True, False])
def test_an_empty_store_is_let_go_of_too(closed: bool, tmp_path: Path) -> None:
    root = tmp_path / "store"
    opened(root).release()
    store = opened(root)
    assert store.recovery is None
    assert store.put("T", b"first").commitlog_offset == 0
    store.close() if closed else store.release()
    store = opened(root)
    assert (store.recovery is None) == (not closed)
    store.close()


def test_a_clean_close_leaves_no_hint(released: Path) -> None:
    opened(released).close()
    assert load_hint(FILES, str(released)) is None
    assert not (released / "abort").exists()


def append_a_byte(root: Path) -> None:
    write(last_log_file(root), log_end(root) % 4_096, b"\1")


def append_a_filler(root: Path) -> None:
    write(last_log_file(root), log_end(root) % 4_096, b"\0\0\1\0\xcb\xd4\x31\x94")


def begin_the_next_file(root: Path) -> None:
    path = last_log_file(root).with_name(f"{log_end(root) // 4_096 * 4_096 + 4_096:020d}")
    path.write_bytes(b"\0\0\0\x80" + bytes(4_092))


def set_abort_anew(root: Path) -> None:
    (root / "abort").write_bytes(b"4711")


def empty_abort(root: Path) -> None:
    """What Java writes until 5.3; a newer one writes its process id."""
    (root / "abort").write_bytes(b"")


def take_abort_away(root: Path) -> None:
    (root / "abort").unlink()


def replace_the_last_file(root: Path) -> None:
    path = last_log_file(root)
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def delete_the_last_file(root: Path) -> None:
    last_log_file(root).unlink()


def zero_the_last_record(root: Path) -> None:
    hint = load_hint(FILES, str(root))
    assert hint is not None
    assert hint.last_record is not None
    start = hint.last_record.commitlog_offset
    write(last_log_file(root), start % 4_096, bytes(hint.log_end - start))


def turn_a_bit_of_the_last_body(root: Path) -> None:
    hint = load_hint(FILES, str(root))
    assert hint is not None
    assert hint.last_record is not None
    position = hint.last_record.commitlog_offset % 4_096 + 90
    old = last_log_file(root).read_bytes()[position]
    write(last_log_file(root), position, bytes([old ^ 1]))


def delete_an_index_file(root: Path) -> None:
    last_index_file(root).unlink()


def delete_the_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def add_an_index_file(root: Path) -> None:
    path = last_index_file(root)
    path.with_name("99990101000000000").write_bytes(bytes(path.stat().st_size))


def enter_an_index_item(root: Path) -> None:
    path = last_index_file(root)
    count = int.from_bytes(path.read_bytes()[36:40], "big")
    write(path, 36, (count + 1).to_bytes(4, "big"))


def delete_the_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def delete_the_queues_of_a_topic(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "T")


def delete_a_queue(root: Path) -> None:
    shutil.rmtree(min((root / "consumequeue" / "T").iterdir()))


def put_a_queue_back(root: Path) -> None:
    """From a copy of an earlier time, say."""
    queue = min((root / "consumequeue" / "T").iterdir())
    shutil.copytree(queue, root / "copy")
    shutil.rmtree(queue)
    (root / "copy").rename(queue)


def make_a_queue(root: Path) -> None:
    (root / "consumequeue" / "T" / "99").mkdir()


def tear_the_hint(root: Path) -> None:
    path = root / "spark_mq" / "hint.json"
    path.write_bytes(path.read_bytes()[:-10])


CHANGES = [
    append_a_byte,
    append_a_filler,
    begin_the_next_file,
    set_abort_anew,
    empty_abort,
    take_abort_away,
    replace_the_last_file,
    delete_the_last_file,
    zero_the_last_record,
    turn_a_bit_of_the_last_body,
    delete_an_index_file,
    delete_the_index,
    add_an_index_file,
    enter_an_index_item,
    delete_the_queues,
    delete_the_queues_of_a_topic,
    delete_a_queue,
    put_a_queue_back,
    make_a_queue,
    tear_the_hint,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_after_any_change_the_store_is_recovered(change: Callable[[Path], None], released: Path) -> None:
    change(released)
    store = open_store(released, config=TINY, read_only=False, truncate_damage=True)
    assert store.recovery is not None
    assert load_hint(FILES, str(released)) is None, "it is gone before anything is written"
    store.close()


@pytest.mark.parametrize("delete", [delete_the_queues, delete_the_queues_of_a_topic, delete_a_queue])
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "let go of"])
def test_queues_that_are_deleted_are_built_again_and_new_messages_go_behind_the_old(
    delete: Callable[[Path], None], is_closed: bool, released: Path
) -> None:
    with open_store(released, config=TINY) as store:
        before = {(topic, queue): store.max_offset(topic, queue) for topic in "TU" for queue in store.queue_ids(topic)}
    delete(released)
    store = opened(released)
    new = store.put("T", b"new", queue_id=0)
    assert new.queue_offset == before["T", 0]
    store.close() if is_closed else store.release()
    with open_store(released, config=TINY) as store:
        for (topic, queue), end in before.items():
            offsets = [message.queue_offset for message in store.get(topic, queue, 0, 100).messages]
            assert offsets == list(range(end + ((topic, queue) == ("T", 0))))


def test_while_a_store_is_written_there_is_no_hint(released: Path) -> None:
    """What a writer that fails leaves is not what the hint tells of."""
    store = opened(released)
    assert store.recovery is None
    assert load_hint(FILES, str(released)) is None
    store.release()
    assert load_hint(FILES, str(released)) is not None


@pytest.mark.parametrize("files", [OtherBoot(), UnknownBoot()], ids=["another boot", "no boot id"])
def test_after_a_start_of_the_machine_the_store_is_recovered(files: LocalFileSystem, released: Path) -> None:
    """What was not synced may be gone then, and no look at the ends would tell."""
    store = opened(released, files)
    assert store.recovery is not None
    store.release()
    if isinstance(files, UnknownBoot):
        store = opened(released, files)
        assert store.recovery is not None
        store.close()


def test_another_opening_in_between_makes_a_hint_of_its_own(released: Path) -> None:
    """The old one, put back, does not hold: `abort` was set anew by the recovery in between."""
    old = (released / "spark_mq" / "hint.json").read_bytes()
    opened(released, OtherBoot()).release()
    store = opened(released)
    assert store.recovery is not None
    store.release()
    (released / "spark_mq" / "hint.json").write_bytes(old)
    store = opened(released)
    assert store.recovery is not None
    store.close()


@pytest.mark.parametrize(
    "change", [{"log_end": None}, {"queue_ends": []}, {"last_record": 5}, {"unsynced": 5}], ids=str
)
def test_a_hint_of_another_version_is_none(change: dict[str, object], tmp_path: Path) -> None:
    """Its checksum is right. Without a hint the store is recovered."""
    document = {**asdict(HINT), **change}
    documents = (document, {name: value for name, value in document.items() if name not in change}, [document], 5)
    for wrong in documents[1:] if "log_end" in change else documents:
        content = json.dumps(wrong).encode()
        (tmp_path / "spark_mq").mkdir(exist_ok=True)
        (tmp_path / "spark_mq" / "hint.json").write_bytes(b"%08x" % zlib.crc32(content) + content)
        assert load_hint(FILES, str(tmp_path)) is None


@pytest.mark.parametrize(("byte", "mask"), [(2, 0x80), (10, 0x04)], ids=["place", "size"])
def test_a_wrong_last_entry_of_a_queue_makes_no_later_message_look_old(tmp_path: Path, byte: int, mask: int) -> None:
    """Its bits say that the queue knows records far behind the log's end; who opens by a hint does not look at it."""
    root = tmp_path / "store"
    store = opened(root)
    store.put("T", b"one", queue_id=0)
    placed = store.put("T", b"two", queue_id=0)
    store.release()
    with (root / "consumequeue" / "T" / "0" / f"{0:020d}").open("r+b") as queue:
        queue.seek(20 * placed.queue_offset + byte)
        wrong = queue.read(1)[0] ^ mask
        queue.seek(-1, os.SEEK_CUR)
        queue.write(bytes([wrong]))
    store = opened(root)
    assert store.recovery is None
    later = store.put("T", b"three", queue_id=0)
    assert later.queue_offset == placed.queue_offset + 1
    assert [one.body for one in store.get("T", 0, later.queue_offset).messages] == [b"three"]
    store.release()
