"""A controlled broker's store shows what is confirmed, by whatever right it is opened."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from spark_mq.broker_server.controllers import Controllers
from spark_mq.broker_server.opening import ControllerMode, opened_service, opened_store
from spark_mq.broker_server.settings import Configuration, read_configuration
from storage.batch.intent import Intent, save_intent
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import EpochEntry
from storage.ha.epochs import EpochFile
from storage.ha.replicas import Role, Term
from storage.service.put_service import PutService
from storage.store import MessageStore
from tests.crash.sink_store import SETTINGS, SinkStore, assert_holds_exactly, rows_of
from tests.support.dying import killed_at


def configured(root: Path, role: str) -> Configuration:
    text = f"storePathRootDir={root}\nenableControllerMode=true\ncontrollerAddr=127.0.0.1:1\nnamesrvAddr=127.0.0.1:1\n"
    text += "allAckInSyncStateSet=true\nmappedFileSizeCommitLog=65536\nflushDiskType=SYNC_FLUSH\n"
    text += "messageIndexEnable=false\nmappedFileSizeConsumeQueue=2000\n"
    found = read_configuration(text.encode(), None, {})
    return replace(found, store=replace(found.store, mode=replace(found.store.mode, broker_role=role)))


def killed(tmp_path: Path) -> Path:
    """What a master leaves of which one message is confirmed and one is not."""
    life, root = tmp_path / "life", tmp_path / "store"
    with PutService(opened_store(configured(life, "SYNC_MASTER"), "controlled"), starts_duties=False) as service:
        with service.exclusive() as store:
            store.put("T", b"seen", queue_id=0)
        service.acks.set_members([])
        service.confirm_turn()
        service.acks.set_members(["id:2"])
        with service.exclusive() as store:
            store.put("T", b"not confirmed", queue_id=0)
        service.queue_turn()
        shutil.copytree(life, root)
    return root


def shown(store: MessageStore) -> int:
    with store:
        return store.max_offset("T", 0)


def test_a_broker_that_has_no_role_yet_shows_no_more_than_it_did(tmp_path: Path) -> None:
    root = killed(tmp_path)
    assert shown(opened_store(configured(root, "SYNC_MASTER"), "candidate")) == 1
    assert shown(opened_store(configured(root, "SYNC_MASTER"), "controlled")) == 1


def test_a_slave_shows_nothing_for_the_sake_of_a_batch_that_it_will_not_finish(tmp_path: Path) -> None:
    root = killed(tmp_path)
    save_intent(LocalFileSystem(), str(root), Intent("sink", "query", 1, 0, ()))
    assert shown(opened_store(configured(root, "SLAVE"), "candidate")) == 1
    assert shown(opened_store(configured(root, "SLAVE"), "controlled")) == 1


@pytest.mark.parametrize("point", ["after-intent", "before-end"])
def test_a_masters_epoch_begins_before_the_batch_that_it_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    store = SinkStore(SinkStore.make_place(tmp_path))
    store.commit(rows_of(0))

    with killed_at(point):
        store.commit(rows_of(1))
    end = store.log_end
    text = f"{SETTINGS}storePathRootDir={store.root}\nenableControllerMode=true\ncontrollerAddr=127.0.0.1:1\n"
    found = read_configuration(f"{text}namesrvAddr=127.0.0.1:1\n".encode(), None, {})
    configuration = replace(
        found, store=replace(found.store, mode=replace(found.store.mode, broker_role="SYNC_MASTER"))
    )
    epochs = EpochFile(store.file_system, store.root)
    role = Role(1, Term(3, 1, "127.0.0.1:1", frozenset({1})))
    mode = ControllerMode(role, epochs, mock.create_autospec(Controllers), lambda: None, lambda agreed, confirmed: None)
    with opened_service(configuration, mode) as service:
        assert service.store.finished_batches == 1
    assert epochs.entries == (EpochEntry(3, end),)
    assert store.log_end > end
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1)])
