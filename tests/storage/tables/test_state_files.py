"""Every table of a broker is read from its .bak where the file itself is bad, and no write spoils a good .bak.

The tables are those that an Apache broker wrote. Java: ConfigManager.load; what it writes in place, a crash leaves cut anywhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import MessageStore, open_store
from storage.delay.timer_store import TimerMetrics
from storage.dispatch.writer import load_hint
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.index.store import IndexTrust, load_index_trust, save_index_trust
from storage.rules.half_messages import HALF_TOPIC
from storage.tables.consumer_groups import ConsumerOffsets, SubscriptionGroupTable
from storage.tables.masters import DelayOffsets
from storage.tables.topics import TopicQueueMappingTable, TopicTable
from storage.transaction.progress import TransactionCounts
from tests.support.fixture_stores import Fixture

TABLES: dict[str, Any] = {
    "topics.json": TopicTable,
    "subscriptionGroup.json": SubscriptionGroupTable,
    "consumerOffset.json": ConsumerOffsets,
    "delayOffset.json": DelayOffsets,
    "transactionMetrics": TransactionCounts,
    "timermetrics": TimerMetrics,
    "topicQueueMapping.json": TopicQueueMappingTable,
}
MAPPINGS = """{
	"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1700000000000},
	"topicQueueMappingInfoMap":{"Static":{"topic":"Static","bname":"broker-lab","totalQueues":1,"epoch":1,"hostedQueues":{0:[
		{"gen":0,"queueId":0,"bname":"broker-lab","logicOffset":0,"startOffset":0,"endOffset":-1,"timeOfStart":-1,"timeOfEnd":-1}]}}}
}"""
"""topicQueueMapping.json: no client makes a broker write one without a second broker."""
MOST_CUTS = 120


@pytest.fixture(scope="module")
def store(pristine_store: Callable[[str], Fixture], tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """Open for writing, with a table of each kind."""
    root = tmp_path_factory.mktemp("tables-") / "store"
    timer = pristine_store("timer").root
    with open_store(
        root, read_only=False, create=True
    ) as opened:  # tables of another log: opening would lower their offsets
        shutil.copytree(pristine_store("clean").root / "config", root / "config", dirs_exist_ok=True)
        shutil.copy(timer / "config" / "timermetrics", root / "config")
        (root / "config" / "topicQueueMapping.json").write_text(MAPPINGS)
        yield opened


def bad_contents(good: bytes) -> list[bytes]:
    whole = len(good.rstrip())
    step = max(1, whole // MOST_CUTS)
    cuts = [good[:cut] for cut in sorted({*range(0, whole, step), *range(max(0, whole - 30), whole)})]
    return [*cuts, b" \n", b"\0" * whole, b"garbage", b"[1]", b"\xff\xfe" + good]


@pytest.mark.parametrize("name", TABLES)
def test_a_bad_table_is_read_from_its_backup_which_the_next_write_leaves(store: MessageStore, name: str) -> None:
    main, backup = (Path(store.root, "config", name + end) for end in ("", ".bak"))
    table = TABLES[name]
    good = main.read_bytes()
    wanted = table.load(good.decode(), name)
    contents = bad_contents(good)
    for number, bad in enumerate(contents):
        main.write_bytes(bad)
        backup.write_bytes(good)
        assert store.state(name, table.load) == wanted, bad[-20:]
        if number % 40 == 0 or number > len(contents) - 6:
            store.save_state(name, wanted.to_text())
            assert table.load(main.read_text("utf-8"), name) == wanted
            assert backup.read_bytes() == good
    main.write_bytes(good)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_which_neither_file_is_good_is_named_and_not_taken_for_an_empty_one(
    store: MessageStore, name: str
) -> None:
    main, backup = (Path(store.root, "config", name + end) for end in ("", ".bak"))
    good = main.read_bytes()
    backup.unlink(missing_ok=True)
    for bad in (b"", good[:-20], b"garbage"):
        for of_backup in (None, b"", b"{"):
            main.write_bytes(bad)
            backup.unlink(missing_ok=True)
            if of_backup is not None:
                backup.write_bytes(of_backup)
            with pytest.raises(StateFileError, match=name):
                store.state(name, TABLES[name].load)
    main.write_bytes(good)
    backup.write_bytes(good)


def test_a_table_that_was_never_written_is_none(store: MessageStore) -> None:
    assert store.state("consumerFilter.json.none", TopicTable.load) is None


def test_what_the_broker_wrote_says_something(store: MessageStore) -> None:
    """So that the tables above are no empty ones."""
    topics = store.state("topics.json", TopicTable.load)
    delays = store.state("delayOffset.json", DelayOffsets.load)
    offsets = store.state("consumerOffset.json", ConsumerOffsets.load)
    assert topics is not None
    assert delays is not None
    assert offsets is not None
    assert ("TopicA" in topics.topics, delays.offsets[1]) == (True, 5)
    assert (offsets.get(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0) or 0) > 0


# Our own


def test_half_a_hint_is_none(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        store.put("T", b"body")
        store.release()
    path, files = tmp_path / "store" / "spark_mq" / "hint.json", LocalFileSystem()
    whole = path.read_bytes()
    assert load_hint(files, str(tmp_path / "store")) is not None
    for bad in [*(whole[:cut] for cut in range(0, len(whole), 5)), b"garbage", whole.replace(b"1", b"2"), b"\0" * 80]:
        path.write_bytes(bad)
        assert load_hint(files, str(tmp_path / "store")) is None


def test_half_a_note_of_what_is_synced_vouches_for_nothing(tmp_path: Path) -> None:
    files, root = LocalFileSystem(), str(tmp_path)
    save_index_trust(files, root, 77)
    path = tmp_path / "spark_mq" / "index_synced.json"
    whole = path.read_bytes()
    assert load_index_trust(files, root, 100).synced_until_ms == 77
    for bad in [*(whole[:cut] for cut in range(len(whole))), b"garbage", b"[]", b"\0" * len(whole)]:
        path.write_bytes(bad)
        assert load_index_trust(files, root, 100) == IndexTrust(0, 0)
