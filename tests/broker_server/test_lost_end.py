"""A master that may have lost the end of its log, and a controller that takes nobody for alive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

from spark_mq.broker_server import controlled
from spark_mq.broker_server.controlled import ControlledBroker
from spark_mq.broker_server.controllers import Position
from spark_mq.broker_server.settings import read_configuration
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.ha.epochs import note_epoch
from storage.ha.replicas import Term

EPOCH = 3


class StartedAnewController:
    """It knows the group from its journal, and has heard no heartbeat since: 1003 names no master then, 1004 does."""

    def __init__(self) -> None:
        self.epoch = EPOCH
        self.elections: list[int] = []

    def register(self, broker_id: int) -> Term:
        return Term(0)

    def term(self) -> Term:
        return Term(self.epoch, 1 if self.epoch == EPOCH else None, "127.0.0.1:1", frozenset({1}), 1)

    def elect(self, broker_id: int) -> Term:
        self.elections.append(self.epoch)
        return Term(self.epoch)

    def heartbeat(self, broker_id: int, position: Position) -> None:
        """Nobody heeds it."""


def test_it_asks_for_no_election_in_its_old_epoch(tmp_path: Path) -> None:
    """The controller would say that the old master is still there."""
    configuration = read_configuration(
        f"storePathRootDir={tmp_path}\nenableControllerMode=true\ncontrollerAddr=127.0.0.1:1\n".encode(), None, {}
    )
    open_store(tmp_path, read_only=False, create=True).close()
    files = LocalFileSystem()
    note_epoch(files, str(tmp_path), EPOCH)
    note = tmp_path / "spark_mq" / "master.json"
    note.write_text(note.read_text().replace(files.boot_id(), "before the power failed"))
    controller = StartedAnewController()

    async def made() -> ControlledBroker:
        return ControlledBroker(configuration)

    with patch.object(controlled, "Controllers", lambda *_: controller):
        broker = asyncio.run(made())
    with patch.object(broker._identity, "broker_id", lambda: 1):
        broker._look()
        assert (controller.elections, broker.running) == ([], None)
        broker._look()
        assert controller.elections == []
        controller.epoch += 1
        broker._look()
    assert controller.elections == [EPOCH + 1]
