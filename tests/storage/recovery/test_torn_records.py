"""A follower cuts what a machine that died may have left of a record; of what a process that died has left, an unfinished end alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.pending import PutStatus
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService

NULS = "\0" * 1_100
"""Always all of one sector."""


def _killed(life: Path, root: Path, *, is_vouched: bool = False) -> int:
    """What a killed process leaves: five messages, the second of which has a property of NULs; the log's end behind the first."""
    store = open_store(life, config=StoreConfig.tiny(), read_only=False, create=True)
    with PutService(store, starts_duties=False) as service:
        ends = []
        for number in range(5):
            properties = {"k": NULS} if number == 1 else {}
            message = InnerMessage(topic="T", queue_id=0, body=b"%d" % number, properties=properties)
            assert service.put_inner([message]).status is PutStatus.PUT_OK
            ends.append(service.log_end)
        if is_vouched:
            store.writer.checkpoint()
        shutil.copytree(life, root)
    return ends[0]


def _restarted(root: Path) -> None:
    name, token, boot = (root / "abort").read_text("ascii").split(" ", 2)
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    (root / "abort").write_text(f"{name} {token} another")


def _left(root: Path) -> int:
    with open_store(root, config=StoreConfig.tiny(), read_only=False, holder="follower", writes_as="follower") as store:
        return store.log_end


def test_a_killed_process_leaves_whole_records(tmp_path: Path) -> None:
    _killed(tmp_path / "life", tmp_path / "store")
    assert _left(tmp_path / "store") > 1_500


def test_a_killed_process_may_leave_the_last_record_without_its_end(tmp_path: Path) -> None:
    root = tmp_path / "store"
    _killed(tmp_path / "life", root)
    end = _left_end(root)
    log = next((root / "commitlog").iterdir())
    content = bytearray(log.read_bytes())
    content[end - 3 : end] = bytes(3)
    log.write_bytes(content)
    shutil.copytree(root, tmp_path / "known")
    shutil.rmtree(root / "consumequeue")
    assert _left(root) < end
    assert _left(tmp_path / "known") == end, "queues know of what is whole"


@pytest.mark.parametrize("change", [_restarted, lambda root: (root / "abort").write_bytes(b"4711")])
def test_who_follows_gets_again_what_a_machine_that_died_may_have_torn(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    torn = _killed(tmp_path / "life", tmp_path / "store")
    change(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "owned")
    assert _left(tmp_path / "store") == torn
    with open_store(tmp_path / "owned", config=StoreConfig.tiny(), read_only=False) as store:
        assert store.log_end > torn  # it may be the only copy


def test_what_a_checkpoint_vouches_for_is_not_torn(tmp_path: Path) -> None:
    _killed(tmp_path / "life", tmp_path / "store", is_vouched=True)
    end = _left_end(tmp_path / "store")
    _restarted(tmp_path / "store")
    assert _left(tmp_path / "store") == end


def test_after_a_start_of_the_machine_that_was_recovered_from_a_killed_process_leaves_whole_records_again(
    tmp_path: Path,
) -> None:
    root, left = tmp_path / "store", tmp_path / "left"
    _killed(tmp_path / "life", root)
    _restarted(root)
    with open_store(root, config=StoreConfig.tiny(), read_only=False) as store:
        store.put("T", b"more", queue_id=0, properties={"k": NULS})
        end = store.writer.log_end
        shutil.copytree(root, left)
    assert _left(left) == end


def _left_end(root: Path) -> int:
    with open_store(root, config=StoreConfig.tiny()) as store:
        return store.log_end
