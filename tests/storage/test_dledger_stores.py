"""Stores of a DLedger group: we read what the group acknowledged and served, of its leader and of a follower, closed and killed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import MessageStore, open_store
from storage.convert import convert
from storage.errors import (
    CorruptRecordError,
    StoreLockedError,
    StoreNotFoundError,
    StoreRefusedError,
)
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import UNIT
from storage.format.dledger import ENTRY_HEAD, ENTRY_HEAD_SIZE, ENTRY_MAGIC, FILLER, FILLER_MAGIC, INDEX_UNIT
from storage.format.record import Message
from storage.log.commit_log import CommitLog, read_checkpoint
from storage.recovery.verify import verify
from storage.settings.load import StoreConfig, load_config, parse_config
from storage.tables.surroundings import log_place, refuse_foreign_log
from tests.support.fixture_stores import Fixture, copy_store, unpack_group
from tests.support.store_copies import picture

Groups = Callable[[str], dict[str, Fixture]]
NAMES = ("dledger", "dledger-killed")
PEERS = ("leader", "follower")
FILES = LocalFileSystem()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Groups:
    """`group(name)`: both stores, unpacked once. Shared: a test must not change them."""
    unpacked: dict[str, dict[str, Fixture]] = {}

    def unpack_once(name: str) -> dict[str, Fixture]:
        if name not in unpacked:
            unpacked[name] = unpack_group(name, tmp_path_factory.mktemp(name))
        return unpacked[name]

    return unpack_once


@pytest.fixture
def own(group: Groups, tmp_path: Path) -> Callable[[str, str], Fixture]:
    """`own(name, peer)`: a copy that the test may change."""

    def copied(name: str, peer: str) -> Fixture:
        found = group(name)[peer]
        copy_store(found.conf.parent, tmp_path / peer)
        return Fixture(
            found.name, tmp_path / peer / "store", tmp_path / peer / "broker.conf", found.golden, None, None, None
        )

    return copied


def lines(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


def served(fixture: Fixture) -> dict[tuple[str, int, int], tuple[object, ...]]:
    """What the group's own client was served: place, unique key, tags, keys and body by topic, queue and offset."""
    return {
        (line["topic"], line["queueId"], line["queueOffset"]): (
            line["commitLogOffset"],
            line["uniqKey"],
            line["tags"],
            line["keys"],
            line["bodySha256"],
        )
        for line in lines(fixture.served)
        if line["type"] == "message"
    }


def messages_of(store: MessageStore) -> Iterator[Message]:
    for topic in store.topics():
        for queue_id in store.queue_ids(topic):
            bounds = store.bounds(topic, queue_id)
            assert bounds is not None
            offset, end = bounds
            while offset < end:
                found = store.get(topic, queue_id, offset, 500, max_bytes=1 << 30)
                yield from found.messages
                offset = found.next_begin_offset


def read(store: MessageStore) -> dict[tuple[str, int, int], tuple[object, ...]]:
    """The same, as we read it."""
    return {
        (message.topic, message.queue_id, message.queue_offset): (
            message.commitlog_offset,
            message.properties.get("UNIQ_KEY"),
            message.properties.get("TAGS"),
            message.properties.get("KEYS"),
            hashlib.sha256(message.plain_body).hexdigest(),
        )
        for message in messages_of(store)
    }


def opened(fixture: Fixture, **options: Any) -> MessageStore:
    return open_store(fixture.root, config=str(fixture.conf), **options)


# Reading


@pytest.mark.parametrize("peer", PEERS)
def test_a_closed_peers_store_shows_what_the_group_served(peer: str, group: Groups) -> None:
    fixture = group("dledger")[peer]
    expected = served(fixture)
    with opened(fixture) as store:
        found = read(store)
        topics = {line["topic"] for line in lines(fixture.served) if line["type"] == "queue"}
        assert {place: message for place, message in found.items() if place[0] in topics} == expected
        for line in lines(fixture.served):
            if line["type"] == "lookUp":
                places = {message.commitlog_offset for message in store.query(line["topic"], line["key"], 64)}
                assert places >= set(line["commitLogOffsets"]) > set()
        terms = {int(head["term"]) for _, head in entries(store.log)}
    assert len(terms) == 2, "the leader changed"
    acknowledged = [line for line in lines(fixture.sent) if "Tail" not in line["topic"] and "delayLevel" not in line]
    assert len(acknowledged) == 195
    for line in acknowledged:
        assert found[line["topic"], line["queueId"], line["queueOffset"]][-1] == line["bodySha256"]


@pytest.mark.parametrize("peer", PEERS)
def test_a_killed_peers_store_shows_what_was_acknowledged(peer: str, group: Groups) -> None:
    """Also what the group's own restart loses: it measures its log without the entries' heads, and cuts queues there
    (DLedgerCommitLog.dledgerRecoverAbnormally)."""
    fixture = group("dledger-killed")[peer]
    with opened(fixture) as store:
        found = read(store)
    missing = acknowledged(fixture) - named(found)
    assert len(missing) <= (0 if peer == "leader" else 1), "the last one was on a majority, and not dispatched yet"
    assert len(acknowledged(fixture) - named(served(fixture))) > 5, "the judge itself has lost some"


def acknowledged(fixture: Fixture) -> set[tuple[object, ...]]:
    return {
        (line["topic"], line["queueId"], line["queueOffset"], line["bodySha256"])
        for line in lines(fixture.sent)
        if "delayLevel" not in line
    }


def named(found: dict[tuple[str, int, int], tuple[object, ...]]) -> set[tuple[object, ...]]:
    return {(*place, message[-1]) for place, message in found.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("peer", PEERS)
def test_queues_and_index_of_a_peer_agree_with_its_log(name: str, peer: str, group: Groups) -> None:
    fixture = group(name)[peer]
    with opened(fixture) as store:
        report = verify(
            *(store.log, store.queues, store.index, read_checkpoint(FILES, str(fixture.root)), store.plan),
            delays_ms=store.config.delay.delays_ms,
        )
    assert report.findings == ()
    assert report.records > 800


def test_a_store_without_settings_is_known_by_its_directory(group: Groups, tmp_path: Path) -> None:
    fixture = group("dledger")["leader"]
    copy_store(fixture.root, tmp_path / "store")
    with open_store(tmp_path / "store") as store, opened(fixture) as known:
        assert store.log.entry_directories
        assert read(store) == read(known)


def test_of_two_peers_in_one_directory_the_settings_choose(own: Callable[..., Fixture]) -> None:
    fixture = own("dledger", "leader")
    (peer,) = fixture.root.glob("dledger-*")
    shutil.copytree(peer, fixture.root / "dledger-n9")
    with opened(fixture) as store:
        assert store.log.entry_directories == (f"{peer}/data",)
    with pytest.raises(StoreRefusedError, match="dLegerSelfId does not say which"):
        open_store(fixture.root, config=StoreConfig())


def test_a_peers_directory_that_is_missing_is_named(own: Callable[..., Fixture]) -> None:
    """Also where a plain log of before the group is there, or another peer's."""
    fixture = own("dledger", "leader")
    (peer,) = fixture.root.glob("dledger-*")
    shutil.copytree(peer / "data", fixture.root / "commitlog")
    peer.rename(fixture.root / "dledger-n7")
    for there in (True, False):
        with pytest.raises(StoreNotFoundError, match=rf"log of its DLedger group, {peer}/data/") as refused:
            opened(fixture)
        assert ("dledger-n7 is there" in str(refused.value)) == there
        assert "dLegerSelfId" in str(refused.value.hint)
        shutil.rmtree(fixture.root / "dledger-n7", ignore_errors=True)


def test_a_group_log_in_another_directory_is_found_by_its_setting(own: Callable[..., Fixture], tmp_path: Path) -> None:
    fixture = own("dledger", "follower")
    (peer,) = fixture.root.glob("dledger-*")
    (peer / "data").rename(tmp_path / "elsewhere")
    set_group_log(fixture, tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="storePathDLedgerCommitLog"):
        store = opened(fixture)
    with store:
        assert len(read(store)) == 812
    (tmp_path / "elsewhere").rename(tmp_path / "gone")
    with pytest.raises(StoreNotFoundError, match=f"{tmp_path}/elsewhere/"):
        opened(fixture)


def test_a_copy_reads_its_own_group_log_and_not_the_one_that_its_broker_conf_names(own: Callable[..., Fixture]) -> None:
    """The setting is that of the store from which the copy was made."""
    fixture = own("dledger", "leader")
    (peer,) = fixture.root.glob("dledger-*")
    other = fixture.root.parent / "original"
    shutil.copytree(peer / "data", other)
    cut(other, entry_of(log_of(fixture), 400))
    set_group_log(fixture, other)
    with pytest.warns(UserWarning, match="storePathDLedgerCommitLog") as seen:
        store = opened(fixture)
    with store:
        assert store.log.entry_directories == (f"{peer}/data",)
        assert len(read(store)) == 812
    assert f"those of {peer}/data; {other}, which" in str(seen[0].message)


def set_group_log(fixture: Fixture, directory: Path) -> None:
    with fixture.conf.open("a", encoding="utf-8") as conf:
        conf.write(f"storePathDLedgerCommitLog={directory}\n")


def test_a_running_groups_new_messages_are_seen(own: Callable[..., Fixture], group: Groups) -> None:
    """The files are put in place as a broker writes them: entries, then queue entries."""
    fixture, after = own("dledger", "leader"), group("dledger")["leader"]
    with opened(after) as whole:
        last = max(read(whole).items(), key=lambda item: item[1][0])[0]
        place = whole.queues.get(last[0], last[1])
        assert place is not None
        position = entry_of(whole.log, 20)
    path = fixture.root / "consumequeue" / last[0] / str(last[1])
    cut(next(fixture.root.glob("dledger-*/data")), position)
    empty_behind(fixture, position)
    with opened(fixture) as store:
        before = read(store)
        assert not store.refresh()
        for folder in ("consumequeue", "."):
            copy_store(after.root / folder, fixture.root / folder)
        assert path.exists()
        assert store.refresh()
        found = read(store)
    assert before.items() < found.items()
    with opened(after) as whole:
        assert found == read(whole)


def entry_of(log: CommitLog, from_end: int) -> int:
    return [int(offset) for offset, _ in entries(log)][-from_end]


def entries(log: CommitLog) -> Iterator[tuple[int, np.ndarray]]:
    for offsets, records in log.walk(log.minimum):
        heads = np.array(
            [
                np.frombuffer(records.buffer[at - ENTRY_HEAD_SIZE : at].tobytes(), ENTRY_HEAD)[0]
                for at in records.positions.tolist()
            ],
            ENTRY_HEAD,
        )
        yield from zip(offsets.tolist(), heads, strict=True)


def cut(data: Path, record: int) -> None:
    """Zero the log from the entry of that record on."""
    for path in sorted(data.iterdir()):
        start = int(path.name)
        keep = max(0, record - ENTRY_HEAD_SIZE - start)
        with path.open("r+b") as file:
            size = path.stat().st_size
            if keep < size:
                file.seek(keep)
                file.write(bytes(size - keep))


def empty_behind(fixture: Fixture, record: int) -> None:
    """Zero queue entries that point at or behind a place."""
    for path in fixture.root.glob("consumequeue/*/*/*"):
        content = bytearray(path.read_bytes())
        for at in range(0, len(content), 20):
            if int.from_bytes(content[at : at + 8], "big") >= record:
                content[at : at + 20] = bytes(20)
        path.write_bytes(content)


# The walk


def log_of(fixture: Fixture) -> CommitLog:
    (data,) = fixture.root.glob("dledger-*/data")
    return CommitLog(FILES, (str(data),), entry_directories=(str(data),))


def test_a_walk_begins_at_a_file_at_an_entry_and_at_a_record(group: Groups) -> None:
    log = log_of(group("dledger")["leader"])
    places = [place for place, _ in entries(log)]
    assert places[0] == ENTRY_HEAD_SIZE
    for start in (places[5], places[5] - ENTRY_HEAD_SIZE):
        assert [int(found) for offsets, _ in log.walk(start) for found in offsets] == places[5:]
    second = log.files[1]
    assert next(int(offsets[0]) for offsets, _ in log.walk(second.start)) == second.first_record


def test_a_walk_reads_nothing_behind_its_limit(group: Groups) -> None:
    log = log_of(group("dledger")["leader"])
    places = [place for place, _ in entries(log)]
    for limit, count in ((places[4], 4), (places[4] - 1, 4), (places[4] - ENTRY_HEAD_SIZE, 4), (places[5], 5)):
        walk = log.walk(0, limit=limit)
        assert sum(len(records) for _, records in walk) == count
        assert walk.end == places[count] - ENTRY_HEAD_SIZE
        assert walk.failure is None


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("magic", 2, "entry's magic"),
        ("size_bytes", 7, "entry's size"),
        ("entry_index", 99, "entry's index"),
        ("term", 0, "entry's term"),
        ("place", 1, "entry's place"),
        ("body_size_bytes", 99, "entry's size"),
    ],
)
def test_an_entry_that_a_broker_cuts_off_ends_the_log(
    field: str, value: int, named: str, own: Callable[..., Fixture]
) -> None:
    """Java: DLedgerMmapFileStore.recover. A stale entry of an earlier term fits its place and its index."""
    fixture = own("dledger", "leader")
    log = log_of(fixture)
    last, head = list(entries(log))[-3]
    number = log.file_index(last)
    changed = head.copy()
    changed[field] = value
    with Path(log.files[number].path).open("r+b") as file:
        file.seek(last - ENTRY_HEAD_SIZE - log.files[number].start)
        file.write(changed.tobytes())
    walk = log_of(fixture).walk(0)
    for _ in walk:
        pass
    assert walk.end == last - ENTRY_HEAD_SIZE
    assert walk.failure is not None
    assert walk.failure.field == named
    assert walk.failure.position == last - ENTRY_HEAD_SIZE - log.files[number].start


def test_the_index_files_and_fillers_are_as_described(group: Groups) -> None:
    fixture = group("dledger")["leader"]
    log = log_of(fixture)
    (index,) = fixture.root.glob("dledger-*/index/*")
    with index.open("rb") as file:
        units = np.frombuffer(file.read(812 * INDEX_UNIT.itemsize), INDEX_UNIT)
    found = list(entries(log))
    assert units["entry_index"].tolist() == list(range(812)) == [int(head["entry_index"]) for _, head in found]
    assert units["place"].tolist() == [place - ENTRY_HEAD_SIZE for place, _ in found]
    assert units["term"].tolist() == [int(head["term"]) for _, head in found]
    assert set(units["magic"].tolist()) == {ENTRY_MAGIC}
    for file in log.files[:-1]:
        last = max(place for place, _ in found if place < file.end)
        end = last + log.message_at(last, file.end).size_bytes
        assert FILLER.unpack(log.bytes_at(end, FILLER.size)) == (FILLER_MAGIC, file.end - end)


# Writing


def test_writing_is_refused_by_name_and_says_what_to_do(own: Callable[..., Fixture]) -> None:
    fixture = own("dledger", "leader")
    before = sorted((path, path.stat().st_mtime_ns) for path in fixture.root.rglob("*"))
    for config in (str(fixture.conf), StoreConfig()):
        with pytest.raises(StoreRefusedError, match=r"its log is DLedger's.*spark-mq convert"):
            open_store(fixture.root, config=config, read_only=False)
    config = load_config(str(fixture.root), str(fixture.conf), read_bytes=FILES.read_file)
    with pytest.raises(StoreRefusedError, match=r"its log is DLedger's.*spark-mq convert"):
        refuse_foreign_log(str(fixture.root), config, FILES)
    refusal = log_place(str(fixture.root), config, FILES).refusal
    assert refusal is not None
    assert "DLedger group's log" in " ".join(map(str, refusal))
    assert sorted((path, path.stat().st_mtime_ns) for path in fixture.root.rglob("*")) == before


# Converting


def converted(fixture: Fixture, target: Path) -> Any:
    return convert(str(fixture.root), str(target), config=str(fixture.conf))


def plain_conf(fixture: Fixture) -> StoreConfig:
    text = "".join(line for line in fixture.conf.read_text("utf-8").splitlines(True) if "leger" not in line.lower())
    return parse_config(text.encode())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("peer", PEERS)
def test_a_converted_store_holds_the_same_records_at_other_places(
    name: str, peer: str, group: Groups, tmp_path: Path
) -> None:
    fixture = group(name)[peer]
    made = converted(fixture, tmp_path / "plain")
    with opened(fixture) as store, open_store(tmp_path / "plain", config=plain_conf(fixture)) as plain:
        assert not plain.log.entry_directories
        report = verify(
            *(plain.log, plain.queues, plain.index, read_checkpoint(FILES, str(tmp_path / "plain")), plain.plan),
            delays_ms=plain.config.delay.delays_ms,
        )
        assert report.findings == ()
        assert report.records == made.records
        assert plain.plan.was_clean
        of_group, of_plain = list(records(store.log)), list(records(plain.log))
        moved = {place: new for (place, _), (new, _) in zip(of_group, of_plain, strict=True)}
        assert len(moved) == made.records
        for (_, record), (place, copy) in zip(of_group, of_plain, strict=True):
            expected = bytearray(record)
            expected[28:36] = place.to_bytes(8, "big")
            if half := int.from_bytes(record[76:84], "big"):
                expected[76:84] = moved[half].to_bytes(8, "big")
            assert copy == bytes(expected)
        assert any(int.from_bytes(record[76:84], "big") for _, record in of_group), "one names its half message"
        assert acknowledged(fixture) <= named(read(plain)), "also what no queue of the killed peer knew yet"
    for table in (fixture.root / "config").iterdir():
        assert (tmp_path / "plain" / "config" / table.name).read_bytes() == table.read_bytes()
    assert (made.uncommitted == 0) == (name == "dledger")
    assert not (tmp_path / "plain.converting").exists()


def records(log: CommitLog) -> Iterator[tuple[int, bytes]]:
    for offsets, found in log.walk(log.minimum):
        sizes = found.column("size_bytes").tolist()
        for place, at, size in zip(offsets.tolist(), found.positions.tolist(), sizes, strict=True):
            yield place, found.buffer[at : at + size].tobytes()


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_conversion_changes_nothing_in_the_source(
    has_lock: bool, own: Callable[..., Fixture], tmp_path: Path
) -> None:
    """A copy may have no lock file, and may lie where nothing can be written."""
    fixture = own("dledger-killed", "leader")
    (fixture.root / "lock").unlink(missing_ok=True)
    if has_lock:
        (fixture.root / "lock").write_bytes(b"lock")
        (fixture.root / "lock").chmod(0o400)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in fixture.root.rglob("*")}
    converted(fixture, tmp_path / "plain")
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in fixture.root.rglob("*")} == before


def test_a_broker_that_starts_amid_a_conversion_ends_it(
    own: Callable[..., Fixture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import storage.convert as module

    fixture = own("dledger", "leader")
    (fixture.root / "lock").unlink(missing_ok=True)
    monkeypatch.setattr(module, "reach", lambda name: (fixture.root / "lock").write_bytes(b"lock"))
    with pytest.raises(StoreLockedError):
        converted(fixture, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


@pytest.mark.parametrize("of", ["settings", "files"])
def test_a_store_with_batch_queues_is_not_converted(of: str, own: Callable[..., Fixture], tmp_path: Path) -> None:
    fixture = own("dledger", "leader")
    if of == "files":
        (fixture.root / "batchconsumequeue" / "TopicInner" / "0").mkdir(parents=True)
    else:
        path = fixture.root / "config" / "topics.json"
        table = json.loads(path.read_text("utf-8"))
        table["topicConfigTable"]["TopicInner"] = {"topicName": "TopicInner", "attributes": {"queue.type": "BatchCQ"}}
        path.write_text(json.dumps(table), "utf-8")
    with pytest.raises(StoreRefusedError, match=r"TopicInner.*BatchCQ"):
        converted(fixture, tmp_path / "plain")
    assert not list(tmp_path.glob("plain*"))


def test_a_store_with_queues_of_lite_topics_is_not_converted(own: Callable[..., Fixture], tmp_path: Path) -> None:
    fixture = own("dledger", "leader")
    queue = next(path for path in (fixture.root / "consumequeue").glob("*/*") if any(path.iterdir()))
    shutil.copytree(queue, fixture.root / "consumequeue" / "%LMQ%$T$child" / "0")
    with pytest.raises(StoreRefusedError, match="queues of lite topics"):
        converted(fixture, tmp_path / "plain")
    assert not list(tmp_path.glob("plain*"))


@pytest.mark.filterwarnings("ignore:.*lie in RocksDB:RuntimeWarning")
def test_tables_in_rocksdb_are_not_left_behind_by_a_conversion(own: Callable[..., Fixture], tmp_path: Path) -> None:
    fixture = own("dledger", "leader")
    with fixture.conf.open("a") as conf:
        conf.write("\nstoreType=defaultRocksDB\n")
    (fixture.root / "config" / "consumerOffsets").mkdir(parents=True)
    (fixture.root / "config" / "consumerOffsets" / "CURRENT").touch()
    with pytest.raises(
        StoreRefusedError, match="config/consumerOffsets: its topics, groups and offsets lie in RocksDB"
    ):
        converted(fixture, tmp_path / "plain")
    assert not list(tmp_path.glob("plain*"))


def test_a_plain_log_of_before_is_read_and_converted_with_the_groups(
    group: Groups, tmp_path: Path, pristine_store: Callable[[str], Fixture]
) -> None:
    """A broker that was switched to DLedger goes on behind its old log (dividedCommitlogOffset)."""
    old = pristine_store("roll")
    root = tmp_path / "store"
    copy_store(old.root, root)
    plain_files = sorted((root / "commitlog").iterdir())
    divided = int(plain_files[-1].name) + plain_files[-1].stat().st_size
    with open_store(old.root, config=str(old.conf)) as store:
        before = list(records(store.log))
        end = store.log_end
    last = plain_files[-1]
    with last.open("r+b") as file:
        file.seek(end - int(last.name))
        file.write((divided - end).to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big"))
    moved = shift(log_of(group("dledger")["leader"]), divided, root / "dledger-n0" / "data")
    config = parse_config(b"maxHashSlotNum=50\nmaxIndexNum=100\n")
    with open_store(root, config=config) as store:
        assert [*records(store.log)] == before + moved
        assert store.log.minimum == int(plain_files[0].name)
    made = convert(str(root), str(tmp_path / "plain"), config=config)
    assert made.records == len(before) + len(moved)
    with open_store(tmp_path / "plain", config=config) as plain:
        found = list(records(plain.log))
    assert found[: len(before)] == before
    assert [record[84:] for _, record in found[len(before) :]] == [record[84:] for _, record in moved]


def shift(log: CommitLog, by: int, data: Path) -> list[tuple[int, bytes]]:
    """Write a group's log anew as one that begins at another place; returns its records."""
    data.mkdir(parents=True)
    found = []
    for file in log.files:
        content = bytearray(log.bytes_at(file.start, file.end - file.start))
        for place, head in entries(log):
            if file.start <= place < file.end:
                at = place - file.start
                content[at - 24 : at - 16] = (int(head["place"]) + by).to_bytes(8, "big")
                content[at + 28 : at + 36] = (place + by).to_bytes(8, "big")
                size = int(head["body_size_bytes"])
                found.append((place + by, bytes(content[at : at + size])))
        (data / f"{file.start + by:020d}").write_bytes(content)
    return found


@pytest.mark.parametrize("crash_at", ["converted-copied", "before-converted"])
def test_a_conversion_that_died_leaves_no_target_and_is_repeated(
    crash_at: str, group: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import storage.convert as module

    fixture, target = group("dledger")["follower"], tmp_path / "plain"

    def die(name: str) -> None:
        if name == crash_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "reach", die)
    with pytest.raises(KeyboardInterrupt):
        converted(fixture, target)
    assert not target.exists()
    assert (tmp_path / "plain.converting").exists()
    monkeypatch.undo()
    made = converted(fixture, target)
    assert made.records == 812
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain"]


def test_of_two_conversions_at_once_the_second_one_writes_nothing(
    group: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import storage.convert as module

    fixture, refused = group("dledger")["follower"], []

    def another(name: str) -> None:
        monkeypatch.undo()
        before = picture(tmp_path / "plain.converting")
        with pytest.raises(StoreLockedError, match=r"converting\.lock"):
            converted(fixture, tmp_path / "plain")
        assert picture(tmp_path / "plain.converting") == before
        refused.append(name)

    monkeypatch.setattr(module, "reach", another)
    assert converted(fixture, tmp_path / "plain").records == 812
    assert refused == ["converted-copied"]


def test_what_cannot_be_converted_is_refused_by_name(
    group: Groups, own: Callable[..., Fixture], tmp_path: Path, pristine_store: Callable[[str], Fixture]
) -> None:
    fixture = group("dledger")["leader"]
    with pytest.raises(StoreRefusedError, match="no DLedger log"):
        converted(pristine_store("roll"), tmp_path / "plain")
    with pytest.raises(StoreNotFoundError):
        convert(str(tmp_path / "nowhere"), str(tmp_path / "plain"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_bytes(b"x")
    for target in ("full", "full/file"):
        with pytest.raises(StoreRefusedError, match="something is there"):
            converted(fixture, tmp_path / target)
    with pytest.raises(StoreRefusedError, match="lies in the source"):
        converted(fixture, fixture.root / "plain")
    (tmp_path / "plain.converting").mkdir()
    (tmp_path / "plain.converting" / "mine").write_bytes(b"x")
    with pytest.raises(StoreRefusedError, match="no conversion has made it"):
        converted(fixture, tmp_path / "plain")
    assert (tmp_path / "plain.converting" / "mine").exists()
    locked = own("dledger", "follower")
    with FILES.locked(f"{locked.root}/lock"), pytest.raises(StoreLockedError):
        converted(locked, tmp_path / "other")
    damaged = own("dledger", "leader")
    log = log_of(damaged)
    with Path(log.files[0].path).open("r+b") as file:
        file.seek(200)
        byte = file.read(1)
        file.seek(200)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CorruptRecordError):
        converted(damaged, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_conversion_moves_the_places_that_the_timer_names(own: Callable[..., Fixture], tmp_path: Path) -> None:
    fixture = own("dledger", "leader")
    log = log_of(fixture)
    places = [place for place, _ in entries(log)]
    wanted = [places[3], places[-1], places[400], 10**12]
    units = np.zeros(len(wanted), UNIT)
    units["size_bytes"], units["magic"], units["commitlog_offset"] = UNIT.itemsize, 1, wanted
    content = units.tobytes() + bytes(1_024 - units.nbytes)
    (fixture.root / "timerlog").mkdir()
    (fixture.root / "timerlog" / f"{0:020d}").write_bytes(content)
    (fixture.root / "timerwheel").write_bytes(b"wheel" + bytes(100))
    made = converted(fixture, tmp_path / "plain")
    with open_store(made.target, config=plain_conf(fixture)) as plain:
        moved = [place for place, _ in records(plain.log)]
    copied = (tmp_path / "plain" / "timerlog" / f"{0:020d}").read_bytes()
    found = np.frombuffer(copied, UNIT, len(wanted))
    assert found["commitlog_offset"].tolist() == [moved[3], moved[-1], moved[400], 10**12]
    assert copied[units.nbytes :] == content[units.nbytes :]
    assert (tmp_path / "plain" / "timerwheel").read_bytes() == b"wheel" + bytes(100)
