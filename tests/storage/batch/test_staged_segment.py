"""What a task stages comes back whole, in a file that was used before too; what was changed meanwhile is noticed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage.batch import staged_segment
from storage.batch.staged_segment import (
    SegmentPool,
    SegmentReader,
    SegmentWriter,
    StagedSegment,
    decode_columns,
    delete_orphans,
    list_segments,
    sink_digest,
    staged_directory,
)
from storage.errors import CorruptRecordError, StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import index_key_hash, string_hash
from storage.format.record import Message, decode_record
from storage.format.record_block import PIECE_BYTES, OutgoingMessages, UnjoinedBlock, encode_parts

HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
SINK = sink_digest("sink", "query").hex()
FILES = LocalFileSystem()


def block(
    bodies: list[bytes], *, topic: str = "T", queue_ids: list[int] | None = None, first: int = 0
) -> UnjoinedBlock:
    """Messages of one topic with the unique keys K`first`, …, tags and two index keys each."""
    ids = queue_ids or [0] * len(bodies)
    queues = tuple((topic, queue_id) for queue_id in dict.fromkeys(ids))
    keys = [f"K{first + row:031d}" for row in range(len(bodies))]
    count = len(bodies)
    return encode_parts(
        OutgoingMessages(
            queues=queues,
            queue_codes=np.array([queues.index((topic, queue_id)) for queue_id in ids], np.int32),
            bodies=pa.array(bodies, pa.binary()),
            properties=pa.array([f"UNIQ_KEY\x01{key}\x02TAGS\x01t\x02".encode() for key in keys], pa.binary()),
            flags=np.zeros(count, np.int32),
            sys_flags=np.zeros(count, np.int32),
            born_times_ms=np.full(count, 1_700_000_000_000, np.int64),
            tags_codes=np.full(count, string_hash("t"), np.int64),
            key_counts=np.full(count, 2, np.int32),
            key_hashes=np.array([index_key_hash(f"{topic}#{key}") for key in keys for _ in "ab"], np.int32),
        ),
        HOST,
    )


def stage(root: Path, name: str, *blocks: UnjoinedBlock) -> StagedSegment:
    writer = SegmentWriter(FILES, str(root), SINK, name)
    for one in blocks:
        writer.append(one)
    segment = writer.finish()
    assert segment is not None
    return segment


def path_of(root: Path, segment: StagedSegment) -> Path:
    return Path(staged_directory(str(root)), segment.path)


def messages_in(root: Path, segment: StagedSegment) -> list[Message]:
    with SegmentReader(FILES, str(root), segment) as reader:
        reader.verify_data()
        data = np.empty(segment.data_size_bytes, np.uint8)
        reader.read(0, len(data), data)
        found, position = [], 0
        while position < len(data):
            message = decode_record(data.tobytes(), position)
            assert isinstance(message, Message)
            found.append(message)
            position += message.size_bytes
        return found


def test_records_and_columns_come_back_with_the_queues_of_all_blocks(tmp_path: Path) -> None:
    blocks = (
        block([b"one", b"two", b"three"], queue_ids=[2, 0, 2]),
        block([b"four"], topic="Topic", queue_ids=[2], first=3),
        block([b"five", b""], queue_ids=[0, 5], first=4),
    )
    segment = stage(tmp_path, "7-0-1", *blocks)
    assert segment.path == f"{SINK}/7-0-1.segment"
    assert segment.rows == 6
    assert (segment.first_unique_key, segment.last_unique_key) == (f"K{0:031d}", f"K{5:031d}")
    messages = messages_in(tmp_path, segment)
    assert [message.body for message in messages] == [b"one", b"two", b"three", b"four", b"five", b""]
    with SegmentReader(FILES, str(tmp_path), segment) as reader:
        columns = reader.columns
        queues = [columns.queues[code] for code in columns.queue_codes]
        assert queues == [(message.topic, message.queue_id) for message in messages]
        assert queues == [("T", 2), ("T", 0), ("T", 2), ("Topic", 2), ("T", 0), ("T", 5)]
        assert columns.sizes_bytes.tolist() == [message.size_bytes for message in messages]
        assert columns.tags_codes.tolist() == [string_hash("t")] * 6
        assert columns.key_counts.tolist() == [2] * 6
        assert columns.key_hashes[::2].tolist() == [index_key_hash(f"{m.topic}#{m.unique_key}") for m in messages]
        for name, kind in {"queue_codes": "i4", "sizes_bytes": "i4", "tags_codes": "i8", "key_hashes": "i4"}.items():
            assert getattr(columns, name).dtype == kind


def test_a_part_of_the_records_is_read_into_the_callers_memory(tmp_path: Path) -> None:
    made = block([b"one", b"two", b"three"])
    segment = stage(tmp_path, "0-0-0", made)
    memory = np.full(made.columns.sizes_bytes[1] + 2, 7, np.uint8)
    start = int(made.columns.sizes_bytes[0])
    with SegmentReader(FILES, str(tmp_path), segment) as reader:
        reader.read(start, start + len(memory) - 2, memory[1:-1])
    assert memory[0] == memory[-1] == 7
    message = decode_record(memory[1:-1].tobytes())
    assert isinstance(message, Message)
    assert message.body == b"two"


def test_records_of_many_pieces_are_those_of_one_block_made_at_once(tmp_path: Path) -> None:
    bodies = [bytes([row]) * (1_000 + 87 * row) for row in range(200)]
    bodies[120] = bytes(3 * PIECE_BYTES)  # longer than a piece
    made = block(bodies)
    whole = made.parts.joined()
    assert len(list(made.parts.pieces())) > 3
    segment = stage(tmp_path, "0-0-0", made, block([b"behind"], first=200))
    assert (segment.first_unique_key, segment.last_unique_key) == (f"K{0:031d}", f"K{200:031d}")
    assert path_of(tmp_path, segment).read_bytes()[: len(whole)] == whole.tobytes()
    assert [message.body for message in messages_in(tmp_path, segment)] == [*bodies, b"behind"]


def test_a_task_without_rows_leaves_no_file(tmp_path: Path) -> None:
    writer = SegmentWriter(FILES, str(tmp_path), SINK, "0-0-0")
    writer.append(block([]))
    assert writer.row_count == 0
    assert writer.finish() is None
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_used_file_is_taken_again_and_its_length_says_nothing(tmp_path: Path) -> None:
    pool = SegmentPool(FILES, str(tmp_path))
    long = stage(tmp_path, "0-0-0", block([bytes([row]) * 5_000 for row in range(20)]))
    inode = path_of(tmp_path, long).stat().st_ino
    size = path_of(tmp_path, long).stat().st_size
    pool.give_back(long.path)
    assert not path_of(tmp_path, long).exists()
    assert len(list(Path(pool.directory).iterdir())) == 1

    short = stage(tmp_path, "1-0-1", block([b"short"]))
    assert path_of(tmp_path, short).stat().st_ino == inode
    assert path_of(tmp_path, short).stat().st_size == size > short.data_size_bytes + short.columns_size_bytes
    assert [message.body for message in messages_in(tmp_path, short)] == [b"short"]
    assert list(Path(pool.directory).iterdir()) == []


def test_what_is_discarded_goes_to_the_pool_and_giving_back_twice_does_no_harm(tmp_path: Path) -> None:
    writer = SegmentWriter(FILES, str(tmp_path), SINK, "0-0-0")
    writer.append(block([b"never"]))
    assert [path for path, _ in list_segments(FILES, str(tmp_path))] == [writer.path]
    writer.discard()
    writer.discard()
    pool = SegmentPool(FILES, str(tmp_path))
    pool.give_back(writer.path)
    assert list(list_segments(FILES, str(tmp_path))) == []
    assert len(list(Path(pool.directory).iterdir())) == 1


def test_the_pool_keeps_so_many_files_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SegmentPool(FILES, str(tmp_path))
    segments = [stage(tmp_path, f"0-{number}-0", block([b"x" * 100])) for number in range(4)]
    monkeypatch.setattr(staged_segment, "POOL_FILES", 2)
    for segment in segments[:3]:
        pool.give_back(segment.path)
    assert len(os.listdir(pool.directory)) == 2
    monkeypatch.setattr(staged_segment, "POOL_FILES", 100)
    monkeypatch.setattr(staged_segment, "POOL_BYTES", 1)
    pool.give_back(segments[3].path)
    assert len(os.listdir(pool.directory)) == 2
    assert list(list_segments(FILES, str(tmp_path))) == []


def test_a_file_that_another_task_took_first_is_passed_over(tmp_path: Path) -> None:
    class Racing(LocalFileSystem):
        def rename(self, path: str, new_path: str) -> None:
            if path.endswith("-0-0-0.segment"):
                os.unlink(path)
            super().rename(path, new_path)

    for number in range(2):
        name = f"0-{number}-0"
        segment = stage(tmp_path, name, block([b"x"]))
        taken = Path(staged_directory(str(tmp_path)), "pool", f"{SINK}-{name}.segment")
        taken.parent.mkdir(exist_ok=True)
        path_of(tmp_path, segment).rename(taken)
    assert SegmentPool(Racing(), str(tmp_path)).take(f"{SINK}/1-new.segment")
    assert not SegmentPool(Racing(), str(tmp_path)).take(f"{SINK}/1-newer.segment")


def test_orphans_of_finished_batches_are_deleted_and_what_is_kept_or_newer_stays(tmp_path: Path) -> None:
    names = ["3-0-1-a", "9-0-2-b", "10-0-3-c", "10-1-4-d", "11-0-5-e"]
    paths = {name: stage(tmp_path, name, block([b"x"])).path for name in names}
    other = SegmentWriter(FILES, str(tmp_path), sink_digest("other", "query").hex(), "1-0-0")
    other.append(block([b"x"]))
    other.finish()
    assert delete_orphans(FILES, str(tmp_path), SINK, 10, {paths["10-1-4-d"]}) == 3
    left = {path for path, _ in list_segments(FILES, str(tmp_path))}
    assert left == {paths["10-1-4-d"], paths["11-0-5-e"], other.path}
    assert list(Path(staged_directory(str(tmp_path))).glob("pool/*")) == []


def test_no_attempt_writes_over_anothers_file(tmp_path: Path) -> None:
    segment = stage(tmp_path, "0-0-0", block([b"mine"]))
    with pytest.raises(FileExistsError):
        stage(tmp_path, "0-0-0", block([b"yours"]))
    assert [message.body for message in messages_in(tmp_path, segment)] == [b"mine"]


def test_every_bit_is_under_a_checksum(tmp_path: Path) -> None:
    segment = stage(tmp_path, "0-0-0", block([b"one", b"two"]))
    path = path_of(tmp_path, segment)
    sound = path.read_bytes()
    for position in range(len(sound)):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 0x10]) + sound[position + 1 :])
        with pytest.raises(CorruptRecordError) as caught:
            messages_in(tmp_path, segment)
        expected = "data CRC" if position < segment.data_size_bytes else "columns CRC"
        assert (caught.value.field, caught.value.file) == (expected, str(path))


def test_a_file_that_was_cut_or_is_gone_is_named(tmp_path: Path) -> None:
    segment = stage(tmp_path, "0-0-0", block([b"one", b"two"]))
    path = path_of(tmp_path, segment)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptRecordError, match="bad file length") as caught:
        SegmentReader(FILES, str(tmp_path), segment)
    assert caught.value.file == str(path)
    path.unlink()
    with pytest.raises(StorageError, match=f"{path} is gone, with 2 rows"):
        SegmentReader(FILES, str(tmp_path), segment)


def test_a_finished_segment_is_on_the_disk_before_it_is_reported(tmp_path: Path) -> None:
    steps: list[tuple[str, str]] = []

    class Watched(LocalFileSystem):
        def open_for_writing(self, path: str):  # type: ignore[no-untyped-def]
            writer = super().open_for_writing(path)
            write, sync = writer.write, writer.sync
            writer.write = lambda position, data: (steps.append(("write", path)), write(position, data))[1]  # type: ignore[method-assign]
            writer.sync = lambda: (steps.append(("sync", path)), sync())[1]  # type: ignore[method-assign]
            return writer

        def rename(self, path: str, new_path: str) -> None:
            steps.append(("rename", new_path))
            super().rename(path, new_path)

        def sync(self, path: str) -> None:
            steps.append(("sync", path))
            super().sync(path)

    SegmentPool(FILES, str(tmp_path)).give_back(stage(tmp_path, "0-0-0", block([b"old"])).path)
    writer = SegmentWriter(Watched(), str(tmp_path), SINK, "1-0-0")
    writer.append(block([b"one"]))
    segment = writer.finish()
    assert segment is not None
    file, staged = str(path_of(tmp_path, segment)), staged_directory(str(tmp_path))
    assert steps == [
        ("sync", f"{tmp_path}/spark_mq"),
        ("sync", staged),
        ("rename", file),
        ("sync", f"{staged}/pool"),
        ("write", file),
        ("write", file),
        ("sync", file),
        ("sync", f"{staged}/{SINK}"),
    ]


def test_a_segment_crosses_processes_and_an_intent(tmp_path: Path) -> None:
    segment = stage(tmp_path, "0-0-0", block([b"one"]))
    assert pickle.loads(pickle.dumps(segment)) == segment
    assert StagedSegment.from_json(list(segment)) == segment


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../../commitlog/00000000000000000000"},
        {"path": f"{SINK}/../../0-x.segment"},
        {"path": f"/{SINK}/0-x.segment"},
        {"path": "pool/0-x.segment"},
        {"path": f"{SINK}/x.segment"},
        {"rows": "1"},
        {"rows": True},
        {"data_size_bytes": -1},
        {"first_unique_key": None},
        {"has_records": 1},
        {"has_records": False},
    ],
    ids=str,
)
def test_what_a_file_says_of_a_segment_is_not_believed_blindly(change: dict[str, object]) -> None:
    sound = StagedSegment(f"{SINK}/0-0-0.segment", 1, 100, 50, 1, 2, "A", "B")
    assert StagedSegment.from_json(list(sound)) == sound
    assert StagedSegment.from_json(list(sound)[:8]) == sound, "as a version before wrote it"
    with pytest.raises(ValueError, match=r"staged segment|negative"):
        StagedSegment.from_json(list(sound._replace(**change)))  # type: ignore[arg-type]


def test_sinks_and_queries_have_directories_of_their_own() -> None:
    named = {sink_digest(sink, query) for sink, query in [("a", "b"), ("b", "a"), ("ab", ""), ("a", "b2")]}
    assert len(named) == 4
    assert all(len(digest) == 8 for digest in named)


@pytest.mark.parametrize(
    "head", [b"", b"{}", b"[]", b"5", b'{"rows": 9, "keys": 0, "hostSize": 8, "queues": []}', b"[" * 90_000]
)
def test_columns_of_another_version_are_named(head: bytes) -> None:
    encoded = np.frombuffer(len(head).to_bytes(4, "little") + head, np.uint8)
    with pytest.raises(CorruptRecordError, match="columns"):
        decode_columns(encoded)
