"""The power fails while the log's next file is made beside the puts, and while the first record goes into it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from storage.service.put_service import PutService
from tests.crash.stories.life import Life, bodies, put
from tests.crash.stories.of_services import ask
from tests.support.crash_file_system import CrashFileSystem
from tests.support.rebuilt_store import differences_from_rebuild

pytestmark = [pytest.mark.crash, pytest.mark.slow]

BODIES = [b"first" * 500, b"second" * 400]
"""Both do not fit the first log file."""


def test_what_was_acknowledged_outlives_a_power_loss_at_any_moment(tmp_path: Path) -> None:
    life = Life(tmp_path, sync_flush=True)
    with PutService(life.open(), starts_duties=False) as service:
        for body in BODIES:
            ask(service, body)
            service.sync_turn()
            life.disk.mark("acknowledged")
            service.next_file_turn()
        assert [file.start for file in service.store.log.files][:2] == [0, 4096]
    left = [
        (f"behind operation {number}, {extreme or 'torn'}", count, disk.after_power_loss(Random(number), extreme))
        for number, marks, disk in life.disk.states()
        if (count := marks.count("acknowledged"))
        for extreme in ("lost", "")
    ]
    assert {count for _, count, _ in left} == {1, 2}
    for moment, count, disk in left:
        files = CrashFileSystem(str(life.root), disk, boot=2)
        with life.open(files=files) as store:
            found = bodies(store)
            assert found == BODIES[: max(count, len(found))], moment
            put(store, 0, 1)
            assert len(bodies(store)) == len(found) + 1, moment
    assert differences_from_rebuild(life.root, life.config) == []
