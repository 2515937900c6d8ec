"""Apache's own store classes open what we recovered: the same messages, every key found, nothing left to mend.

Expected is what Apache's classes said of the store as it lay (golden.jsonl), never what ours say.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from spark_mq.cli.message_lines import dump_queue
from storage import MessageStore, open_store
from storage.files.local_file_system import LocalFileSystem
from tests.oracle.damage import flip, flip_body_in_file, stale
from tests.storage.service.test_next_file import CONF, DIES, SIZE, TINY, log_files
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines
from tests.support.java_broker import DumpRefusedError, Oracle
from tests.support.places import PROJECT
from tests.support.shares import one_in

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Line = dict[str, Any]
Place = tuple[str, int, int]  # topic, queue id, queue offset
LONG_MAX = 2**63 - 1


# Recovered


@pytest.mark.parametrize("name", one_in(4, FIXTURE_NAMES, others=pytest.mark.long))
def test_apache_lists_the_same_messages_of_a_store_that_we_recovered(
    name: str, oracle: Oracle, fixture_store: Callable[[str], Fixture]
) -> None:
    store = fixture_store(name)
    recover(store.root)
    java = dump(oracle, store)
    expected = sound_messages(golden_lines(store.golden, "message"))
    assert by_place(of_type(java, "message")) == expected
    with open_store(store.root) as ours:
        assert by_place(dump_all(ours)) == expected
    assert_no_look_up_lost(java, golden_lines(store.golden))
    assert_nothing_left_to_mend(java)


# Rebuilt


@pytest.mark.parametrize("name", one_in(3, ["crashed", "clean", "expired"], others=pytest.mark.long))
def test_apache_reads_consume_queues_that_we_rebuilt(
    name: str, oracle: Oracle, fixture_store: Callable[[str], Fixture]
) -> None:
    store = fixture_store(name)
    shutil.rmtree(store.root / "consumequeue")
    recover(store.root)
    java = dump(oracle, store)
    assert by_place(of_type(java, "message")) == by_place(golden_lines(store.golden, "message"))
    assert queue_ends(java) == queue_ends(golden_lines(store.golden))


@pytest.mark.parametrize("name", one_in(3, ["clean", "crashed", "expired"], others=pytest.mark.long))
def test_apache_finds_every_key_through_an_index_that_we_rebuilt(
    name: str, oracle: Oracle, fixture_store: Callable[[str], Fixture]
) -> None:
    store = fixture_store(name)
    shutil.rmtree(store.root / "index")
    recover(store.root)
    java = dump(oracle, store)
    assert_no_look_up_lost(java, golden_lines(store.golden))
    holders = places_of_keys(golden_lines(store.golden, "message"))
    asked = [line for line in of_type(java, "query") if (line["begin"], line["end"]) == (0, LONG_MAX)]
    assert len(asked) > 100
    for line in asked:
        expected = holders[line["topic"], line["key"]][-line["maxNum"] :]
        assert line["physicalOffsets"] == expected, f"{line['topic']} {line['key']}"


# Killed


class Kill(NamedTuple):
    """SIGKILL right after the `nth` write, unlink, … (`verb`) of a path that begins with `prefix` under ROOT."""

    verb: str
    prefix: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.nth}. {self.verb} {self.prefix}"


@pytest.mark.parametrize(
    ("name", "kill"),
    one_in(
        5,
        [
            ("torn", Kill("unlink", "commitlog/")),
            ("torn", Kill("write", "consumequeue/")),
            ("torn", Kill("unlink", "index/")),
            ("torn", Kill("create_file", "index/")),
            ("torn", Kill("write", "index/", 2)),
            ("torn", Kill("write", "index/", 3)),
            ("torn", Kill("write", "checkpoint")),
            ("damaged", Kill("write", "commitlog/")),
            ("damaged", Kill("unlink", "index/")),
            ("clean", Kill("rename", "abort")),
        ],
        others=pytest.mark.long,
    ),
    ids=str,
)
def test_apache_and_we_lose_nothing_to_a_recovery_that_was_killed(
    name: str, kill: Kill, oracle: Oracle, fixture_store: Callable[[str], Fixture]
) -> None:
    store = fixture_store(name)
    recover_and_be_killed(store.root, kill)
    expected = by_place(golden_lines(store.golden, "message"))

    java = dump(oracle, store)
    assert by_place(of_type(java, "message")) == expected
    assert_no_look_up_lost(java, golden_lines(store.golden))

    recover(store.root)
    with open_store(store.root) as ours:
        assert by_place(dump_all(ours)) == expected
        assert_keys_are_indexed_once(ours)


def test_apache_and_we_lose_nothing_to_a_rebuild_of_the_queues_that_was_killed(
    oracle: Oracle, fixture_store: Callable[[str], Fixture]
) -> None:
    store = fixture_store("clean")
    shutil.rmtree(store.root / "consumequeue")
    recover_and_be_killed(store.root, Kill("write", "consumequeue/", 5))
    expected = by_place(golden_lines(store.golden, "message"))
    assert by_place(of_type(dump(oracle, store), "message")) == expected
    recover(store.root)
    with open_store(store.root) as ours:
        assert by_place(dump_all(ours)) == expected


def recover_and_be_killed(root: Path, kill: Kill) -> None:
    """Open a store for writing in a process that ends itself at `kill`."""
    process = multiprocessing.get_context("spawn").Process(target=_recover_until_killed, args=(root, kill))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL, f"recovery did nothing such as {kill}"
    assert (root / "abort").exists()


def _recover_until_killed(root: Path, kill: Kill) -> None:
    open_store(root, read_only=False, truncate_damage=True, file_system=MortalFileSystem(root, kill)).close()


class MortalFileSystem(LocalFileSystem):
    """Ends its process as a crash does, at one point."""

    def __init__(self, root: Path, kill: Kill) -> None:
        self._root = root
        self._kill = kill
        self._left = kill.nth

    def create_file(self, path: str, size_bytes: int) -> None:
        super().create_file(path, size_bytes)
        self._done("create_file", path)

    def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
        super().write(path, position, data)
        self._done("write", path)

    def rename(self, path: str, new_path: str) -> None:
        super().rename(path, new_path)
        self._done("rename", new_path)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._done("unlink", path)

    def _done(self, verb: str, path: str) -> None:
        if verb == self._kill.verb and path.startswith(f"{self._root}/{self._kill.prefix}"):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


# Carried on


@pytest.mark.slow
def test_a_broker_carries_on_with_a_store_that_we_recovered(
    oracle: Oracle, fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    store = fixture_store("torn")
    recover(store.root)
    before = by_place(golden_lines(store.golden, "message"))
    sizes = {"maxHashSlotNum": 1000, "maxIndexNum": 2000}
    with (
        oracle.namesrv() as name_server,
        oracle.broker(
            store.root,
            name_server,
            commitlog_file_size_bytes=262_144,
            consume_queue_file_size_bytes=6_000,
            **sizes,
        ) as broker,
    ):
        sent = oracle.send(tmp_path / "sent.jsonl", broker, "TopicTail", queues=2, count=40)
    (tmp_path / "broker.conf").write_text(broker.conf.read_text("utf-8"), "utf-8")
    with open_store(store.root, config=str(tmp_path / "broker.conf")) as ours:
        after = by_place(dump_all(ours))
    assert {place: after[place] for place in before if place in after} == before
    for line in sent:
        place = line["topic"], line["queueId"], line["queueOffset"]
        assert place not in before
        assert after[place]["msgId"] == line["offsetMsgId"]
        assert after[place]["properties"]["UNIQ_KEY"] == line["msgId"]
        assert after[place]["bodySha256"] == line["bodySha256"]
    java = oracle.dump(store.root, broker.conf)
    assert by_place(of_type(java, "message")) == after


@pytest.mark.slow
@pytest.mark.long
def test_a_store_whose_damage_a_broker_has_cut_twice_opens_once_it_has_written_to_it(
    oracle: Oracle, fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    """It cuts what its own checkpoint vouches for, without a word and without a byte erased, and writes over a part of it."""
    store = fixture_store("damaged-unclean")
    sizes = {"maxHashSlotNum": 1000, "maxIndexNum": 2000}
    with oracle.namesrv() as name_server:
        for turn, count in enumerate((12, 2)):
            with oracle.broker(
                store.root, name_server, commitlog_file_size_bytes=262_144, consume_queue_file_size_bytes=6_000, **sizes
            ) as broker:
                oracle.send(tmp_path / f"sent-{turn}.jsonl", broker, "TopicTail", queues=1, count=count)
            if turn == 0:
                flip(store.root, 6)
    (tmp_path / "broker.conf").write_text(broker.conf.read_text("utf-8"), "utf-8")
    java = oracle.dump(store.root, broker.conf, strict=False)
    (summary,) = of_type(java, "summary")
    assert stale(store.root, summary["maxPhyOffset"])["staleRecords"]
    with open_store(store.root, config=str(broker.conf), read_only=False) as ours:
        assert ours.log_end == summary["maxPhyOffset"]
        assert by_place(dump_all(ours)) == sound_messages(of_type(java, "message"))
        assert ours.recovery is not None
        assert ours.recovery.was_clean
        assert ours.recovery.quarantine is None


# What is compared


def recover(root: Path) -> None:
    open_store(root, read_only=False, truncate_damage=True).close()


def dump(oracle: Oracle, store: Fixture) -> list[Line]:
    """Apache's strict dump. Of `ipv6` and `propcrc` it complains of the prepared and rolled back records, which no queue holds."""
    try:
        return oracle.dump(store.root, store.conf)
    except DumpRefusedError as refused:
        if store.name in ("ipv6", "propcrc") and refused.exit_code == 7:
            return refused.lines
        raise


def dump_all(store: MessageStore) -> Iterable[Line]:
    for topic in store.topics():
        for queue_id in store.queue_ids(topic):
            yield from dump_queue(store, topic, queue_id)


def of_type(lines: Iterable[Line], type_: str) -> list[Line]:
    return [line for line in lines if line["type"] == type_]


def by_place(messages: Iterable[Line]) -> dict[Place, Line]:
    return {(line["cqTopic"], line["cqQueueId"], line["cqOffset"]): line for line in messages}


def sound_messages(messages: Iterable[Line]) -> dict[Place, Line]:
    """Without the stale queue entries that Apache takes up again (`revived`): their records are others, or none."""
    return {
        place: line
        for place, line in by_place(messages).items()
        if "error" not in line
        and place == (line["topic"], line["queueId"], line["queueOffset"])
        and (line["cqPhysicalOffset"], line["cqSize"]) == (line["physicalOffset"], line["storeSize"])
    }


def untyped(lines: Iterable[Line]) -> list[Line]:
    return [{name: value for name, value in line.items() if name != "type"} for line in lines]


def queue_ends(lines: Iterable[Line]) -> dict[tuple[str, int], tuple[int, int]]:
    return {
        (line["topic"], line["queueId"]): (line["minOffset"], line["maxOffset"])
        for line in of_type(lines, "queue")
        if line["minOffset"] < line["maxOffset"]
    }


def assert_no_look_up_lost(java: Iterable[Line], golden: Iterable[Line]) -> None:
    """Every look-up of the golden lines finds at least the same places; ours may find what Apache's own index lost."""
    found = {question(line): set(line["physicalOffsets"]) for line in of_type(java, "query")}
    lost = {
        question(line): missing
        for line in of_type(golden, "query")
        if (missing := set(line["physicalOffsets"]) - found.get(question(line), set()))
    }
    assert not lost


def assert_nothing_left_to_mend(java: Iterable[Line]) -> None:
    """Apache cuts nothing of the log and leaves queues and index files as they were when it opens the store."""
    java = list(java)
    (config,), (summary,) = of_type(java, "config"), of_type(java, "summary")
    assert not config["abortFile"]
    assert summary["truncatedBytes"] == 0
    assert untyped(of_type(java, "cqAfter")) == untyped(of_type(java, "cqBefore"))
    assert untyped(of_type(java, "indexAfter")) == untyped(of_type(java, "indexBefore"))


def question(line: Line) -> tuple[str, str, int, int, int]:
    return line["topic"], line["key"], line["maxNum"], line["begin"], line["end"]


def places_of_keys(messages: Iterable[Line]) -> dict[tuple[str, str], list[int]]:
    """By topic and key, unique key included: where in the log the messages lie that have it, ascending."""
    places = defaultdict(set)
    for line in messages:
        properties = line["properties"]
        for key in [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]:
            if key:
                places[line["topic"], key].add(line["physicalOffset"])
    return defaultdict(list, {key: sorted(offsets) for key, offsets in places.items()})


def assert_keys_are_indexed_once(store: MessageStore) -> None:
    """No record's key stands in two index files. Within one file Apache's own writing doubles some."""
    seen: set[tuple[int, int]] = set()
    for file in store.index.files():
        items = file.items()
        keys = set(zip(items["key_hash"].tolist(), items["commitlog_offset"].tolist(), strict=True))
        assert not seen & keys, f"{len(seen & keys)} of {len(keys)} keys stand in a file before {file.name} already"
        seen |= keys


@pytest.mark.parametrize(("file", "is_cut"), [(1, False), (2, False), (3, True)])
def test_a_wrong_body_ends_the_log_in_the_last_file_alone(
    file: int, is_cut: bool, oracle: Oracle, tmp_path: Path
) -> None:
    """A clean start compares bodies from the log file on in which the queues end, and none before it."""
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(oracle.broker_conf(store, "127.0.0.1:1", 10_911, commitlog_file_size_bytes=65_536), "utf-8")
    with open_store(store, config=str(conf), read_only=False, create=True) as ours:
        while len(ours.log.files) < 4:
            ours.put("T", bytes(5_000), queue_id=0)
        ours.put("T", bytes(5_000), queue_id=0)
        log_end = ours.log_end
    flip_body_in_file(store, file)
    lines = oracle.dump(store, conf, strict=False)
    (summary,) = (line for line in lines if line["type"] == "summary")
    assert (summary["afterLoadMaxPhy"] < log_end) == is_cut


def test_apache_recovers_a_store_whose_last_log_file_is_empty(oracle: Oracle, tmp_path: Path) -> None:
    """A writer died with the log's next file made ahead."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(CONF)
    died = subprocess.run([sys.executable, "-c", DIES, str(root)], cwd=PROJECT, check=False)
    assert died.returncode == -signal.SIGKILL
    assert [size for _, size in log_files(root)] == [SIZE, SIZE]
    lines = oracle.dump(root, conf)
    messages = [line for line in lines if line["type"] == "message"]
    assert [(line["topic"], line["queueOffset"]) for line in messages] == [("T", 0)]
    with open_store(root, config=TINY, read_only=False) as store:
        assert store.max_offset("T", 0) == 1
