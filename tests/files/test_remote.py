"""Stores that lie elsewhere: the same bytes through any fsspec file system, in few and small requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_mq.cli.message_lines import dump_queue
from storage import open_store
from storage.errors import OffsetOutOfRangeError, StoreNotFoundError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import COALESCE_GAP_BYTES, RemoteFileSystem, absolute_path, file_system_of
from storage.queues.scan import scan_queue
from tests.support.fixture_stores import Fixture, golden_lines

_numbers = itertools.count()


@pytest.fixture
def url() -> Iterator[str]:
    """An empty place in the memory file system."""
    place = f"memory://remote{next(_numbers)}"
    yield place
    files = fsspec.filesystem("memory")
    if files.exists(place):
        files.rm(place, recursive=True)


def upload(directory: Path, url: str) -> None:
    files = fsspec.filesystem("memory")
    for path in directory.rglob("*"):
        if path.is_file():
            files.pipe_file(f"{url}/{path.relative_to(directory)}", path.read_bytes())


@pytest.mark.parametrize("path", ["/a/b", "a", "file:///a/b", "local:///a"])
def test_plain_paths_are_local(path: str) -> None:
    assert isinstance(file_system_of(path), LocalFileSystem)


def test_other_urls_go_through_fsspec() -> None:
    assert isinstance(file_system_of("memory://x"), RemoteFileSystem)


def test_listing_and_small_files(url: str) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file(f"{url}/b/file", b"12345")
    files.pipe_file(f"{url}/a", b"")
    remote = RemoteFileSystem(url)
    listed = [(entry.name, entry.is_directory, entry.size_bytes) for entry in remote.list_directory(url)]
    assert listed == [("a", False, 0), ("b", True, 0)]
    assert remote.list_directory(f"{url}/none") == []
    assert remote.read_file(f"{url}/b/file") == b"12345"
    assert remote.read_file(f"{url}/none") is None
    files.pipe_file(f"{url}/c", b"new")
    assert [entry.name for entry in remote.list_directory(url)] == ["a", "b", "c"]


@pytest.mark.parametrize("position", [0, 1, 99_999, 100_000, 199_990, 200_000, 300_000])
@pytest.mark.parametrize("length", [0, 1, 20, 70_000, 300_000])
def test_a_view_is_a_range_and_shorter_at_the_end(url: str, position: int, length: int) -> None:
    data = np.arange(100_000, dtype=">u2").tobytes()
    fsspec.filesystem("memory").pipe_file(f"{url}/file", data)
    file = RemoteFileSystem(url).open_file(f"{url}/file")
    assert file.size_bytes == 200_000
    for at in (position, 0, position):
        assert file.view(at, length).tobytes() == data[at : at + length]


@pytest.mark.parametrize(
    "positions",
    [
        [],
        [5],
        [0, 10, 20],
        [0, 0, 3],
        [100, 150_000, 400_000, 400_010, 999_990],
        [999_999],
        list(range(0, 1_000_000, 70_001)),
        list(range(0, 1_000_000, 200_003)),
    ],
    ids=["none", "one", "near", "overlapping", "mixed", "last byte", "70 kB apart", "200 kB apart"],
)
def test_many_ranges_come_in_one_buffer(url: str, positions: list[int]) -> None:
    data = np.random.default_rng(3).integers(0, 256, 1_000_000, np.uint8)
    fsspec.filesystem("memory").pipe_file(f"{url}/file", data.tobytes())
    sizes = np.array([50 + 13 * number for number in range(len(positions))], np.int64)
    buffer, places = RemoteFileSystem(url).open_file(f"{url}/file").gather(np.array(positions, np.int64), sizes)
    for position, size, place in zip(positions, sizes.tolist(), places.tolist(), strict=True):
        expected = data[position : position + size]
        assert buffer[place : place + len(expected)].tolist() == expected.tolist()
    assert len(buffer) <= len(data)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(path, bytes) of every read that the memory file system is asked for."""
    asked: list[tuple[str, int]] = []
    original = MemoryFileSystem.cat_file

    def counting(self: MemoryFileSystem, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        content: bytes = original(self, path, start=start, end=end, **options)
        asked.append((path, len(content)))
        return content

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counting)
    return asked


def test_ranges_that_lie_close_together_are_one_request(url: str, requests: list[tuple[str, int]]) -> None:
    fsspec.filesystem("memory").pipe_file(f"{url}/file", b"x" * 1_000_000)
    file = RemoteFileSystem(url).open_file(f"{url}/file")
    near = np.arange(10) * 1_000
    far = near[-1] + 100 + COALESCE_GAP_BYTES + 1
    file.gather(np.append(near, far), np.full(11, 100))
    assert [size for _, size in requests] == [9_100, 100]
    requests.clear()
    for position in range(0, 4_000, 20):
        file.view(position, 20)
    assert len(requests) == 1


def test_what_a_broker_writes_on_is_seen_in_place_of_zeros(url: str) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file(f"{url}/file", b"written".ljust(1_000, b"\0"))
    file = RemoteFileSystem(url).open_file(f"{url}/file")
    assert file.view(0, 10).tobytes() == b"written\0\0\0"
    files.pipe_file(f"{url}/file", b"written on".ljust(1_000, b"\0"))
    assert file.view(0, 10).tobytes() == b"written on"


@pytest.mark.parametrize("name", ["clean", "expired", "preblank", "ipv6", "ext"])
def test_a_store_elsewhere_reads_as_the_local_one(
    name: str, pristine_store: Callable[[str], Fixture], url: str
) -> None:
    fixture = pristine_store(name)
    upload(fixture.root, f"{url}/store")
    fsspec.filesystem("memory").pipe_file(f"{url}/broker.conf", fixture.conf.read_bytes())
    with open_store(f"{url}/store") as store:
        queues = [(topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic)]
        found = [line for topic, queue_id in queues for line in dump_queue(store, topic, queue_id)]
        golden = list(golden_lines(fixture.golden, "message"))
        place = "cqTopic", "cqQueueId", "cqOffset"
        assert sorted(found, key=lambda line: [line[part] for part in place]) == sorted(
            golden, key=lambda line: [line[part] for part in place]
        )
        for line in itertools.islice(golden_lines(fixture.golden, "query"), 0, None, 10):
            messages = store.query(
                line["topic"], line["key"], line["maxNum"], begin_ms=line["begin"], end_ms=line["end"]
            )
            assert {message.commitlog_offset for message in messages} >= set(line["physicalOffsets"])
        scanned = 0
        for topic, queue_id in queues:
            queue = store.queues.get(topic, queue_id)
            assert queue is not None
            start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            scanned += sum(len(part.records) for part in scan_queue(queue, store.log, store.log_end, start, end))
        assert scanned == len(golden)


def test_a_few_messages_take_a_few_small_reads(
    pristine_store: Callable[[str], Fixture], url: str, requests: list[tuple[str, int]]
) -> None:
    fixture = pristine_store("syncflush")
    upload(fixture.root, f"{url}/store")
    with open_store(f"{url}/store") as store:
        topic = "TopicA" if "TopicA" in store.topics() else store.topics()[-1]
        queue_id = store.queue_ids(topic)[0]
        requests.clear()
        got = store.get(topic, queue_id, store.min_offset(topic, queue_id), 3)
        assert got.messages
        assert all("/commitlog/" not in path or size <= 128 << 10 for path, size in requests)
        assert len(requests) <= 12


def test_no_queue_file_is_asked_for_its_length_behind_the_listing_that_told_it(
    pristine_store: Callable[[str], Fixture], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be very many, and each question is a request."""
    upload(pristine_store("clean").root, f"{url}/store")
    asked = []
    original = MemoryFileSystem.info

    def counting(self: MemoryFileSystem, path: str, **options: Any) -> Any:
        asked.append(path)
        return original(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "info", counting)
    with open_store(f"{url}/store") as store:
        queues = [(topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic)]
        assert sum(store.max_offset(*queue) - store.min_offset(*queue) for queue in queues) > 0
    files = [path for path in asked if not path.endswith("/CURRENT")]  # that is RocksDB's
    assert [path for path in files if "/consumequeue/" in path] == []
    assert any("/commitlog/" in path for path in asked), "questions are noticed"


def test_a_file_that_was_written_anew_has_its_new_length_once_it_is_listed(url: str) -> None:
    files, remote = fsspec.filesystem("memory"), RemoteFileSystem(url)
    for length in (100, 300):
        files.pipe_file(f"{url}/queue/file", b"x" * length)
        remote.list_directory(f"{url}/queue")
        assert remote.open_small_reads(f"{url}/queue/file").size_bytes == length
    files.rm(f"{url}/queue/file")
    with pytest.raises(FileNotFoundError):
        remote.open_small_reads(f"{url}/queue/file").view(0, 10)
    remote.list_directory(f"{url}/queue")
    with pytest.raises(FileNotFoundError):
        remote.open_small_reads(f"{url}/queue/file")


def test_a_store_elsewhere_is_not_written(pristine_store: Callable[[str], Fixture], url: str) -> None:
    upload(pristine_store("roll").root, url)
    with pytest.raises(StoreNotWritableError):
        open_store(url, read_only=False)


def test_no_store_there(url: str) -> None:
    with pytest.raises(StoreNotFoundError):
        open_store(url)


def test_a_log_file_deleted_elsewhere_is_out_of_range(pristine_store: Callable[[str], Fixture], url: str) -> None:
    upload(pristine_store("roll").root, url)
    with open_store(url) as store:
        topic, queue_id = next(
            (topic, queue_id)
            for topic in store.topics()
            for queue_id in store.queue_ids(topic)
            if store.max_offset(topic, queue_id) > 50
        )
        queue = store.queues.get(topic, queue_id)
        assert queue is not None
        fsspec.filesystem("memory").rm(store.log.files[0].path)
        store.log.close()
        with pytest.raises(OffsetOutOfRangeError) as raised:
            list(scan_queue(queue, store.log, store.log_end, 0, store.max_offset(topic, queue_id)))
        assert raised.value.queue_id == queue_id
        assert 0 < raised.value.minimum < store.max_offset(topic, queue_id)


def test_a_relative_path_becomes_this_processs_and_a_url_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, expected in (
        ("store", f"{tmp_path}/store"),
        ("./store", f"{tmp_path}/store"),
        (".", str(tmp_path)),
        ("link/../store", f"{tmp_path}/link/../store"),
        ("/data/store", "/data/store"),
        ("file:///data/store", "file:///data/store"),
        ("s3://bucket/store", "s3://bucket/store"),
        (" with blank ", f"{tmp_path}/ with blank "),
    ):
        assert absolute_path(path) == expected
