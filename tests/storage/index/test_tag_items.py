"""Index items of tags, which brokers have since 5.4: right wherever they stand, missing nowhere, written for those that look there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.verify_store import verify_store
from storage import MessageStore, open_store
from storage.errors import IndexElsewhereError
from storage.log.dispatch import dispatch, index_keys
from storage.recovery.verify import Kind
from storage.rules.inner_messages import InnerMessage
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture

NEWER = ("v5.4.0", "v5.4.0-killed", "v5.5.0", "v5.5.0-killed")


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_releases_store_lacks_nothing_but_what_its_own_recovery_lost(
    name: str, pristine_store: Callable[[str], Fixture]
) -> None:
    """After the kill, 5.5.0 deleted the index file that was newer than the checkpoint, and entered keys again from the log file on in
    which the checkpoint's queue position is (IndexService.load, ConsumeQueueStore.isMappedFileMatchedRecover): its own look-ups do not
    find the others either.
    """
    fixture = pristine_store(name)
    found = verify_store(str(fixture.root), conf=str(fixture.conf)).findings
    assert [finding.kind for finding in found] == ([Kind.MISSING_KEY] if name == "v5.5.0" else [])


@pytest.mark.parametrize("name", ["v5.4.0", "v5.4.0-killed", "v5.5.0-killed"])
def test_the_items_are_those_of_the_broker(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        files = store.index.files()
        end = files[-1].header().end_commitlog_offset
        theirs = [pair for file in files for pair in file.items()[["commitlog_offset", "key_hash"]].tolist()]
        ours = set()
        for offsets, records in store.log.walk(store.log.minimum):
            keys = index_keys(dispatch(offsets, records, (1_000,)), indexes_tags=True)
            ours |= set(zip(keys.commitlog_offsets.tolist(), keys.key_hashes.tolist(), strict=True))
        assert {pair for pair in ours if pair[0] <= end} == set(theirs)


@pytest.mark.parametrize("name", ["v5.4.0", "v5.4.0-killed", "v5.5.0-killed"])
def test_a_message_is_found_by_the_tag_that_its_broker_indexed(
    name: str, fixture_store: Callable[[str], Fixture]
) -> None:
    fixture = fixture_store(name)
    with open_store(fixture.root, config=str(fixture.conf), read_only=False) as store:
        tagged = [
            message
            for topic in store.topics()
            for queue_id in store.queue_ids(topic)
            for message in store.get(topic, queue_id, 0, 32).messages
            if message.tags
        ]
        assert tagged
        for message in tagged:
            found = store.messages_by_key(message.topic, message.tags or "", 10_000, index_type="T")
            assert message.commitlog_offset in [each.commitlog_offset for each in found]
            assert {each.tags for each in found} == {message.tags}


def put_rows(store: MessageStore) -> None:
    rows = {"topic": ["T"] * 3, "body": [b"1", b"2", b"3"], "tags": ["red", None, "blue"], "keys": ["k", "k red", None]}
    store.put_batch(
        pa.table(rows, pa.schema([("topic", "string"), ("body", "binary"), ("tags", "string"), ("keys", "string")]))
    )


def put_few(store: MessageStore) -> None:
    put_inner(store, 1)


def put_many(store: MessageStore) -> None:
    put_inner(store, 100)


def put_inner(store: MessageStore, copies: int) -> None:
    store.save_topic(TopicConfig("T", 1, 1))
    given: Iterable[dict[str, str]] = (
        {"TAGS": "red", "KEYS": "k"},
        {"KEYS": "k red"},
        {"TAGS": ""},
        {"TAGS": "blue"},
    )
    messages = [
        InnerMessage(topic="T", queue_id=0, body=b"m", properties=properties, born_time_ms=1)
        for _ in range(copies)
        for properties in given
    ]
    store.put_inner(messages)


@pytest.mark.parametrize("put", [put_rows, put_few, put_many])
@pytest.mark.parametrize(("version", "is_found"), [(None, False), ("5.3.3", False), ("5.4.0", True), ("5.5.0", True)])
@pytest.mark.parametrize("is_rebuilt", [False, True], ids=["put", "rebuilt"])
def test_tags_are_entered_for_a_release_that_looks_there(
    put: Callable[[MessageStore], None], version: str | None, is_found: bool, is_rebuilt: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with open_store(root, read_only=False, create=True, rocketmq_version=version) as store:
        put(store)
    if is_rebuilt:
        shutil.rmtree(root / "index")
        (root / "abort").touch()
    with open_store(root, read_only=not is_rebuilt, rocketmq_version=version) as store:
        for tags in ("red", "blue"):
            found = store.messages_by_key("T", tags, 1_000, index_type="T")
            assert ({message.tags for message in found} == {tags}) == is_found
        assert store.messages_by_key("T", "", index_type="T") == []
        assert {message.tags for message in store.messages_by_key("T", "red")} == {None}, "a key, not the tag"
    assert verify_store(str(root)).findings == ()


@pytest.mark.parametrize(("name", "version"), [("v5.3.3", "5.5.0"), ("v5.5.0", "5.3.3"), ("v5.5.0", "5.5.0")])
def test_a_store_of_two_releases_is_healthy(
    name: str, version: str, fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    fixture = fixture_store(name)
    with open_store(fixture.root, config=str(fixture.conf), read_only=False, rocketmq_version=version) as store:
        put_rows(store)
        assert bool(store.messages_by_key("T", "red", index_type="T")) == (version == "5.5.0")
    found = verify_store(str(fixture.root), conf=str(fixture.conf)).findings
    assert [finding.kind for finding in found] == ([Kind.MISSING_KEY] if name == "v5.5.0" else []), "as before"


def test_an_index_in_rocksdb_is_neither_written_nor_asked(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("indexRocksDBEnable=true\nindexFileWriteEnable=false\n")
    root = tmp_path / "store"
    with open_store(root, config=str(conf), read_only=False, create=True) as store:
        put_rows(store)
        with pytest.raises(IndexElsewhereError, match="indexFileWriteEnable=false"):
            store.messages_by_key("T", "k")
    assert not any((root / "index").glob("*"))
    assert verify_store(str(root), conf=str(conf)).findings == ()
