"""A machine that can be started again, and a broker that runs on a sink's store while no sink does."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.crash.sink_store import SinkStore
from tests.support.stage_rows import BatchRows, blocks
from tests.support.unsynced_files import UnsyncedFileSystem


class Machine(UnsyncedFileSystem):
    """What is lost by a start of the machine is what a test takes away, so syncs are not done."""

    starts = 0

    def boot_id(self) -> str:
        return f"boot {self.starts}"

    def start_again(self) -> None:
        self.starts += 1


def run_broker(store: SinkStore, rows: BatchRows, *, is_killed: bool = False, days: int = 0) -> None:
    """A broker starts, recovers the store if its last user has not closed it, stores these rows, and ends.

    It knows nothing of what sinks keep in ROOT/spark_mq. `days` is how much later than the sink's its clock goes.
    """
    own, aside = Path(store.root, "spark_mq"), Path(store.root).with_name("aside")
    own.rename(aside)
    broker = SinkStore(Path(store.root), store.file_system, days=days)
    with broker.open() as opened:
        for block in blocks(store.file_system, store.root, store.config, rows, 0):
            opened.writer.append([block])
        opened.flush()
        if is_killed:
            opened.release()
    if is_killed:
        Path(store.root, "abort").write_bytes(b"4711")
    shutil.rmtree(own, ignore_errors=True)
    aside.rename(own)
