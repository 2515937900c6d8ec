"""Batches of a read with kernels are the batches of one without, whatever is asked for; files and pulled records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.source.offsets import QueueId
from spark_mq.source.pulled_records import PulledPart, slice_of
from spark_mq.source.queue_split import QueueSplit
from spark_mq.source.rows import COLUMNS, KAFKA_COLUMNS, RowRequest, to_batches
from storage import open_store
from storage.files.file_system import Scratch
from storage.files.local_file_system import LocalFileSystem
from storage.format import window_decoder
from storage.format.arrays import Memory
from storage.format.record import BORN_HOST_V6
from storage.format.window_decoder import Claims, Wanted, decoding_of
from storage.queues.scan import scan_queue
from storage.tables.surroundings import StoreLayout
from tests.support.fixture_stores import Fixture
from tests.support.kernels import ON, kernels, loaded
from tests.support.log_records import log_records
from tests.support.message_builder import StoreBuilder
from tests.support.shares import one_in

pytestmark = pytest.mark.slow  # kernels are compiled first, where they are not in the user's cache

EVERYTHING = RowRequest(tuple(name for name in COLUMNS if name != "_corrupt"))
KAFKA = RowRequest(tuple(name for name in KAFKA_COLUMNS if name != "_corrupt"), kafka=True)
REQUESTS = {
    "everything": EVERYTHING,
    "Kafka's columns": KAFKA,
    "Kafka's columns without headers": RowRequest(("key", "value", "offset", "timestamp"), kafka=True),
    "headers only": RowRequest(("queue_offset", "store_timestamp", "store_host", "store_size")),
    "one property": RowRequest(("tags",)),
    "nothing of the record": RowRequest(("queue_offset", "topic")),
    "some tags": replace(EVERYTHING, tags=frozenset({"a", "TagA"})),
    "one key": replace(EVERYTHING, key="k3"),
    "compressed": replace(EVERYTHING, decompress=False),
    "checked": replace(EVERYTHING, verify_crc=True),
    "permissive": RowRequest((*COLUMNS,), permissive=True, verify_crc=True),
}


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    loaded()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each slice that kernels were asked for, whether they did it."""
    done: list[bool] = []
    finish = window_decoder.WindowDecoder.finish

    def note(decoder: window_decoder.WindowDecoder) -> window_decoder.Decoded | None:
        found = finish(decoder)
        done.append(found is not None)
        return found

    monkeypatch.setattr(window_decoder.WindowDecoder, "finish", note)
    return done


def rows_of(root: Path, queue: QueueId, end: int, request: RowRequest) -> pa.Table:
    with open_store(root) as store:
        split = QueueSplit(StoreLayout(str(root), store.log.directories), store.log_end, queue, 0, ((0, end),), request)
        batches = list(split.read())
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches).combine_chunks() if batches else pa.table({})


@pytest.fixture(params=[300, window_decoder.WINDOW_BYTES])
def window_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What is decoded at a time: two records or so, or a whole small store."""
    monkeypatch.setattr(window_decoder, "WINDOW_BYTES", request.param)
    return int(request.param)


@pytest.mark.usefixtures("window_bytes")
@pytest.mark.parametrize("request_name", one_in(2, REQUESTS, others=pytest.mark.long))
def test_files_are_read_the_same_with_kernels(
    request_name: str, fixture_store: Callable[[str], Fixture], decoded: list[bool]
) -> None:
    request, root = REQUESTS[request_name], fixture_store("clean").root
    with open_store(root) as store:
        queues = [(QueueId(q.topic, "b", q.queue_id), store.max_offset(q.topic, q.queue_id)) for q in store.queues]
    for queue, end in queues:
        found = []
        for mode in (ON, "off"):
            with kernels(mode):
                found.append(rows_of(root, queue, end, request))
        assert found[0].equals(found[1]), queue
    assert any(decoded), "no kernel was used"


def mixed_store(root: Path, irregular_at: int | None) -> None:
    builder = StoreBuilder(root)
    for number in range(40):
        flags = {} if number != irregular_at else {"sys_flag": BORN_HOST_V6}
        builder.put(body=b"%d" % number, properties={"TAGS": "ab"[number % 2], "KEYS": f"k{number}"}, **flags)


@pytest.mark.usefixtures("window_bytes")
@pytest.mark.parametrize("irregular_at", [None, 0, 20, 39])
@pytest.mark.parametrize("request_name", ["everything", "some tags", "one key"])
def test_a_row_that_is_not_regular_leaves_its_slice_to_the_exact_path(
    irregular_at: int | None, request_name: str, tmp_path: Path, decoded: list[bool]
) -> None:
    mixed_store(tmp_path, irregular_at)
    found = []
    for mode in (ON, "off"):
        with kernels(mode):
            found.append(rows_of_queue(tmp_path, REQUESTS[request_name]))
    assert found[0].equals(found[1])
    assert any(decoded)
    assert all(decoded) == (irregular_at is None)


@pytest.mark.usefixtures("window_bytes")
@pytest.mark.parametrize("raw", [False, True])
def test_what_was_not_wanted_is_there_all_the_same(raw: bool, tmp_path: Path, decoded: list[bool]) -> None:
    mixed_store(tmp_path, None)
    with open_store(tmp_path) as store, kernels(ON):
        log = store.layout.commit_log(LocalFileSystem(), Scratch())
        (queue,) = (queue for queue in store.queues if queue.topic == "TopicA")
        wanted = Wanted(properties=frozenset({"KEYS"}), raw=raw)
        rows = 0
        for part in scan_queue(queue, log, store.log_end, 0, 40, wanted=wanted):  # one for each of the log's files
            records, numbers = part.records, part.queue_offsets.tolist()
            some = records.take(np.array([3, len(numbers) - 1]))
            assert some.bodies().to_pylist() == [b"%d" % numbers[3], b"%d" % numbers[-1]]
            assert records.bodies().to_pylist() == [b"%d" % number for number in numbers]
            assert records.column("size_bytes").min() > 0
            assert records.is_whole.all()
            assert set(records.topics().to_pylist()) == {b"TopicA"}
            assert records.properties().values_of("TAGS").to_pylist() == ["ab"[number % 2] for number in numbers]
            rows += len(records)
    assert rows == 40
    assert decoded == [True, True]


@pytest.mark.usefixtures("window_bytes")
@pytest.mark.parametrize("liar", [0, 1, 7, 18])
@pytest.mark.parametrize("raw", [False, True])
def test_an_entry_that_claims_the_next_records_too_leaves_the_slice_to_the_exact_path(
    raw: bool, liar: int, tmp_path: Path, decoded: list[bool]
) -> None:
    mixed_store(tmp_path, None)
    with open_store(tmp_path) as store, kernels(ON):
        log = store.layout.commit_log(LocalFileSystem(), Scratch())
        (queue,) = (queue for queue in store.queues if queue.topic == "TopicA")
        entries = queue.entries(0, 20)
        places, sizes = entries["commitlog_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
        sizes[liar] *= 4
        wanted = Wanted(bodies=True, properties=frozenset({"KEYS"}), raw=raw)
        decoding = decoding_of(20, Claims(b"TopicA", 0), wanted, Memory())
        assert decoding is not None
        ((_, records),) = log.records(places, sizes, decoding)
        assert records.agree(places, sizes, b"TopicA", 0).tolist() == [row != liar for row in range(20)]
        assert records.bodies().to_pylist() == [b"%d" % number for number in range(20)]
    assert decoded == [False]


@pytest.mark.parametrize("raw", [False, True])
def test_to_read_a_slice_again_leaves_the_next_one_alone(raw: bool, tmp_path: Path) -> None:
    mixed_store(tmp_path, None)
    with open_store(tmp_path) as store, kernels(ON):
        log = store.layout.commit_log(LocalFileSystem(), Scratch())
        (queue,) = (queue for queue in store.queues if queue.topic == "TopicA")
        first = next(scan_queue(queue, log, store.log_end, 0, 20, wanted=Wanted(fields=frozenset({"flag"}))))
        second = next(scan_queue(queue, log, store.log_end, 20, 30, wanted=Wanted(fields=frozenset({"flag"}), raw=raw)))
        assert first.records.bodies().to_pylist() == [b"%d" % number for number in range(20)]
        assert second.records.bodies().to_pylist() == [b"%d" % number for number in range(20, 30)]


def rows_of_queue(root: Path, request: RowRequest) -> pa.Table:
    return rows_of(root, QueueId("TopicA", "b", 0), 40, request)


def test_pulled_records_are_read_the_same_with_kernels(
    fixture_store: Callable[[str], Fixture], decoded: list[bool]
) -> None:
    records = [one for one in log_records(fixture_store("clean").root) if one.message.topic == "TopicA"]
    ours = [one for one in records if one.message.queue_id == records[0].message.queue_id]
    queue = QueueId("TopicA", "b", records[0].message.queue_id)
    bodies = b"".join(one.raw for one in ours)
    for request in (EVERYTHING, KAFKA):
        found = []
        for mode in (ON, "off"):
            with kernels(mode):
                part = slice_of([PulledPart(0, len(ours), bodies)], b"TopicA", queue.queue_id, request.wanted)
                found.append(list(to_batches([part], queue, 0, request, None)))
        assert found[0] == found[1]
    assert decoded == [True, True]
