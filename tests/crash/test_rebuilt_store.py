"""The independent rebuild: what Apache's broker has built of its logs is what it says, and each way to be something else is seen."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import load_config
from tests.support.fixture_stores import Fixture
from tests.support.rebuilt_store import differences_from_rebuild

TINY = StoreConfig.tiny()


def _config(fixture: Fixture) -> StoreConfig:
    return load_config(str(fixture.root), str(fixture.conf), read_bytes=LocalFileSystem().read_file)


@pytest.mark.parametrize("name", ["roll", "expired", "preblank", "ipv6"])
def test_a_broker_has_built_the_same(pristine_store: Callable[[str], Fixture], name: str) -> None:
    """Delayed, retried and transactional messages, expired files, several keys a message, IPv6 hosts."""
    fixture = pristine_store(name)
    assert differences_from_rebuild(fixture.root, _config(fixture)) == []


@pytest.mark.parametrize("name", ["crashed", "revived"])
def test_a_crashed_broker_has_not_and_recovery_makes_it_so(fixture_store: Callable[[str], Fixture], name: str) -> None:
    """Its queues and index lag behind the log, or reach beyond a log that its own recovery has cut."""
    fixture = fixture_store(name)
    assert differences_from_rebuild(fixture.root, _config(fixture)) != []
    open_store(fixture.root, config=_config(fixture), read_only=False).close()
    assert differences_from_rebuild(fixture.root, _config(fixture)) == []


def _written(root: Path) -> Path:
    with open_store(root, config=TINY, read_only=False, create=True) as store:
        for number in range(45):
            store.put("T", bytes(number), keys=[f"k{number}", "all"], tags="ab"[number % 2], queue_id=0)
    assert differences_from_rebuild(root) == []
    return root


def _change(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def _queue_file(root: Path, first: int) -> Path:
    return root / "consumequeue" / "T" / "0" / f"{first * 20:020}"


def _first_index(root: Path) -> Path:
    return min((root / "index").iterdir())


def _rename_queue(root: Path) -> None:
    queue = root / "consumequeue" / "T" / "0"
    queue.rename(queue.with_name("1"))


def _cut_log(root: Path) -> None:
    max((root / "commitlog").iterdir()).write_bytes(bytes(4096))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "T queue 0 lacks 23": lambda root: _change(_queue_file(root, 20), 3 * 20, bytes(20)),
    "T queue 0 has another 23": lambda root: _change(_queue_file(root, 20), 3 * 20, struct.pack(">q", 100)),
    "T queue 0 has another 24": lambda root: _change(_queue_file(root, 20), 4 * 20 + 12, struct.pack(">q", 99)),
    "T queue 0 has, and the log has not, 45": lambda root: _change(
        _queue_file(root, 40), 5 * 20, struct.pack(">qiq", 99_000, 100, 97)
    ),
    "T queue 1 has, and the log has not, 0": _rename_queue,
    "T queue 0 lacks 0": lambda root: _queue_file(root, 0).unlink(),
    "index lacks": lambda root: _change(_first_index(root), 40, bytes(4 * 10)),  # its slots
    "index has, and the log has not,": lambda root: _change(_first_index(root), 464, struct.pack(">q", 77)),  # item 19
    "index has, and the log has not, (": _cut_log,
}


@pytest.mark.parametrize("difference", DAMAGES)
def test_what_differs_is_told(tmp_path: Path, difference: str) -> None:
    root = _written(tmp_path / "store")
    DAMAGES[difference](root)
    assert any(text.startswith(difference) for text in differences_from_rebuild(root))
