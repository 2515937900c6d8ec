"""Stores that lie elsewhere: the same rows, and no more bytes fetched than the rows need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from spark_mq.conditions import ConvertedError
from storage import open_store
from tests.support.fixture_stores import Fixture
from tests.support.object_store import BUCKET, ObjectStore, object_store
from tests.support.places import PROJECT
from tests.support.store_builder import StoreBuilder
from tests.support.web_store import WebFlaws, web_store

from .golden_rows import golden_rows, hashed
from .in_process import bodies, next_batch, open_stream, plan_batch, planned_size, read_batch, rows_of

pytestmark = pytest.mark.slow

ALL = {"subscribePattern": ".*", "includeSystemTopics": "true"}


@pytest.fixture
def memory() -> Iterator[Callable[[Path, str], str]]:
    """`memory(directory, name)`: a copy of a directory in fsspec's memory:// file system, which this process alone sees."""
    files = fsspec.filesystem("memory")

    def upload(directory: Path, name: str) -> str:
        files.put(str(directory) + "/", f"/{name}/", recursive=True)
        return f"memory://{name}"

    yield upload
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A bucket on loopback that s3:// URLs lead to."""
    s3fs = pytest.importorskip("s3fs")
    with object_store(tmp_path / "objects") as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        yield store
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("name", ["clean", "ext", "expired"])
def test_a_store_in_memory_gives_the_golden_rows(
    name: str, memory: Callable[[Path, str], str], pristine_store: Callable[[str], Fixture]
) -> None:
    store = pristine_store(name)
    home = memory(store.root.parent, name)
    assert hashed(read_batch(f"{home}/store", **ALL)) == golden_rows(store)
    assert len(read_batch(home, topic="TopicA", tags="TagA")) == sum(
        row["tags"] == "TagA" for row in golden_rows(store, "TopicA")
    )


def test_keys_and_messages_are_found_in_memory(
    memory: Callable[[Path, str], str], pristine_store: Callable[[str], Fixture]
) -> None:
    store = pristine_store("clean")
    golden = next(row for row in golden_rows(store, "TopicA") if row["keys"])
    url = memory(store.root.parent, "clean") + "/store"
    with open_store(url) as remote:
        assert golden["commitlog_offset"] in {
            message.commitlog_offset for message in remote.query("TopicA", golden["unique_key"])
        }
        found = remote.message_by_commitlog_offset(golden["commitlog_offset"])
        assert (found.msg_id, found.properties) == (golden["msg_id"], golden["properties"])
    rows = read_batch(url, topic="TopicA", key=golden["unique_key"])
    assert golden["msg_id"] in {row["msg_id"] for row in rows}


def test_a_stream_follows_a_store_that_is_copied_again(memory: Callable[[Path, str], str], tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    sent = store.send_many("Topic", 5)
    reader = open_stream(memory(store.root, "broker-a"), topic="Topic", startingOffsets="earliest")
    position, rows = next_batch(reader, reader.initialOffset())
    assert bodies(rows) == sent
    sent = store.send_many("Topic", 4) + store.send_many("Topic", 2, queue_id=1)
    memory(store.root, "broker-a")
    assert bodies(next_batch(reader, position)[1]) == sent


def test_a_url_without_a_store_is_refused(memory: Callable[[Path, str], str], tmp_path: Path) -> None:
    with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_STORE_NOT_FOUND\].*memory://nothing"):
        read_batch("memory://nothing", topic="Topic")


def test_a_bucket_is_listed_to_the_last_page(bucket: ObjectStore) -> None:
    store = StoreBuilder(bucket.root / "broker-a", log_file_size_bytes=2 << 10)
    sent = [body for queue_id in range(5) for body in store.send_many("Topic", 20, queue_id=queue_id)]
    assert len(store.log_files) > 4
    bucket.page_size = 2
    assert sorted(bodies(read_batch(f"s3://{BUCKET}/broker-a", topic="Topic"))) == sorted(sent)


def test_a_store_on_the_web_gives_the_golden_rows(pristine_store: Callable[[str], Fixture]) -> None:
    pytest.importorskip("aiohttp")
    store = pristine_store("clean")
    with web_store(store.root.parent) as url:
        assert hashed(read_batch(url, **ALL)) == golden_rows(store)
        reader = open_stream(f"{url}/store", topic="TopicA", startingOffsets="earliest")
        assert len(next_batch(reader, reader.initialOffset())[1]) == len(golden_rows(store, "TopicA"))


@pytest.mark.parametrize(
    "flaws",
    [WebFlaws(ignores_ranges=True), WebFlaws(hides_sizes=True), WebFlaws(fails="/0{20}$")],
    ids=["ranges", "sizes", "503"],
)
def test_a_web_server_that_lacks_something_is_named(flaws: WebFlaws, pristine_store: Callable[[str], Fixture]) -> None:
    pytest.importorskip("aiohttp")
    with (
        web_store(pristine_store("clean").root, flaws) as url,
        pytest.raises(ConvertedError, match=r"\[SPARK_MQ_FILE_SYSTEM_UNAVAILABLE\]"),
    ):
        read_batch(url, topic="TopicA")


def large_store(root: Path, count: int) -> int:
    """`count` messages of about 2 KB in files of 4 MiB; returns the bytes of the log."""
    store = StoreBuilder(root, log_file_size_bytes=4 << 20)
    for n in range(count):
        store.send("Topic", f"{n} ".ljust(2_000, "x"), queue_id=n % 2, tags=f"Tag{n % 100}")
    return sum(file.stat().st_size for file in store.log_files)


def test_a_few_records_cost_few_bytes(bucket: ObjectStore) -> None:
    log_bytes = large_store(bucket.root / "broker-a", 6_000)
    url = f"s3://{BUCKET}/broker-a"
    offsets = {
        "startingOffsets": '{"Topic": {"0": 1000, "1": 1500}}',
        "endingOffsets": '{"Topic": {"0": 1010, "1": 1510}}',
    }
    splits = plan_batch(url, topic="Topic", **offsets)
    of_planning = bucket.fetched_bytes
    assert planned_size(splits) == 20
    assert of_planning < log_bytes / 20, "opening a store finds its end without reading what lies before"
    bucket.fetched.clear()
    rows = rows_of(splits)
    assert [row["body"].decode().split()[0] for row in rows] == [
        *map(str, range(2_000, 2_020, 2)),
        *map(str, range(3_001, 3_021, 2)),
    ]
    of_log = [size for key, size in bucket.fetched if "commitlog" in key]
    assert len(of_log) == 2 * 2, "neighbours in the log come with one request, after a small one that proves the store"
    assert sum(size <= 112 for size in of_log) == len(splits)
    assert sum(of_log) < 2 * 20 * 2_200 * 2  # ten records and the ten of the other queue between them, for each queue


def test_records_far_apart_are_fetched_apart(bucket: ObjectStore) -> None:
    log_bytes = large_store(bucket.root / "broker-a", 6_000)
    rows = read_batch(f"s3://{BUCKET}/broker-a", topic="Topic", tags="Tag7")
    assert len(rows) == 60
    of_log = [size for key, size in bucket.fetched if "commitlog" in key]
    assert sum(of_log) < log_bytes / 10
    assert max(of_log) < 1 << 20


@pytest.mark.spark
@pytest.mark.slow
def test_sparks_workers_read_an_object_store(bucket: ObjectStore, pristine_store: Callable[[str], Fixture]) -> None:
    """In a session of its own: Spark's workers take the endpoint from the environment that its JVM was started in."""
    store = pristine_store("roll")
    bucket.root.parent.mkdir(exist_ok=True)
    bucket.root.symlink_to(store.root.parent)
    script = f"""
import json, sys
from spark_mq import build_session
spark = build_session("remote", master="local[1]", config={{"spark.driver.memory": "512m"}})
frame = spark.read.format("spark_mq").option("topic", "TopicOne").option("queueId", "1")
rows = frame.load("s3://{BUCKET}/store").select("queue_offset", "msg_id").collect()
sys.stdout.write("rows:" + json.dumps([list(row) for row in rows]))
spark.stop()
"""
    root = PROJECT
    environ = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2_000:]
    expected = [[row["queue_offset"], row["msg_id"]] for row in golden_rows(store, "TopicOne") if row["queue_id"] == 1]
    assert json.loads(done.stdout.rpartition("rows:")[2]) == expected
