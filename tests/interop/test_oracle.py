"""The judge itself: Apache's store classes, run through the oracle, say again what golden.jsonl holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.java_broker import RELEASE, DumpRefusedError, Oracle, free_ports
from tests.support.shares import one_in

pytestmark = pytest.mark.interop

GOLDEN_OF = {"5.3.3": ["crashed", "clean"]}
"""Stores whose golden lines a release has said, where they are not those that its broker has left."""


@pytest.mark.parametrize("name", one_in(2, GOLDEN_OF.get(RELEASE, [f"v{RELEASE}-killed", f"v{RELEASE}"])))
def test_a_dump_says_what_the_golden_lines_say(
    name: str, oracle: Oracle, pristine_store: Callable[[str], Fixture]
) -> None:
    store = pristine_store(name)
    dumped = oracle.dump(store.root, store.conf)
    expected = list(golden_lines(store.golden))
    assert [timeless(line) for line in dumped] == [timeless(line) for line in expected]


@pytest.mark.slow
def test_a_dump_changes_no_byte_of_the_store(oracle: Oracle, fixture_store: Callable[[str], Fixture]) -> None:
    store = fixture_store("crashed")
    before = content(store.root)
    oracle.dump(store.root, store.conf)
    assert content(store.root) == before


@pytest.mark.slow
def test_a_store_that_the_apache_classes_do_not_load_is_refused(
    oracle: Oracle, fixture_store: Callable[[str], Fixture]
) -> None:
    store = fixture_store("clean")
    last = max((store.root / "commitlog").iterdir())
    with last.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(DumpRefusedError) as refused:
        oracle.dump(store.root, store.conf)
    assert refused.value.exit_code == 3


@pytest.mark.long
@pytest.mark.slow
def test_a_broker_takes_messages_and_leaves_a_clean_store(oracle: Oracle, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with oracle.namesrv() as name_server, oracle.broker(store, name_server) as broker:
        sent = oracle.send(tmp_path / "sent.jsonl", broker, "TopicA", queues=2, count=20)
        assert (store / "abort").exists()
    assert not (store / "abort").exists()
    lines = oracle.dump(store, broker.conf)
    stored = {line["msgId"] for line in lines if line["type"] == "message" and line["topic"] == "TopicA"}
    assert stored == {line["offsetMsgId"] for line in sent}


@pytest.mark.slow
def test_a_killed_broker_leaves_its_abort_file(oracle: Oracle, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with oracle.namesrv() as name_server, oracle.broker(store, name_server) as broker:
        broker.kill()
        assert not Path(f"/proc/{broker.pid}/exe").exists()
    assert (store / "abort").exists()


def test_free_ports_leave_room_for_the_three_of_a_broker() -> None:
    port = free_ports()
    assert port - 2 >= 20_000
    assert port + 1 < 32_768


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    """The line without the name of an index file that was rebuilt for the dump: the time of its rebuild; a dump leaves byte 40 of a
    checkpoint out if it is 0.
    """
    if checkpoint := line.get("checkpoint"):
        line = {**line, "checkpoint": {"logicsPhysicalOffset": 0, **checkpoint}}
    named_by_time = line["type"] == "indexAfter"
    return {name: value for name, value in line.items() if not (named_by_time and name == "file")}


def content(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
