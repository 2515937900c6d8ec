"""An intent is there whole or not at all, and a file that is none is named."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest

from storage.batch.intent import (
    DeadLetterFile,
    Intent,
    drop_intent,
    intent_directory,
    load_intents,
    remove_undecided,
    save_intent,
)
from storage.batch.staged_segment import StagedSegment, sink_digest
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem

FILES = LocalFileSystem()
SINK = sink_digest("sink", "query").hex()
SEGMENT = StagedSegment(f"{SINK}/3-0-9.segment", 10, 1_000, 200, 123, 2**32 - 1, "A", "B")


def intent(batch_id: int = 3, *, sink_id: str = "sink", query_id: str = "query", lower_bound: int = 4_096) -> Intent:
    return Intent(
        sink_id,
        query_id,
        batch_id,
        lower_bound,
        (SEGMENT, SEGMENT._replace(rows=5)),
        (DeadLetterFile.of("/dead ä", sink_digest(sink_id, query_id).hex(), batch_id, 0, "9-a"),),
        mirrored=False,
        refused=2,
    )


def only_file(root: Path) -> Path:
    (path,) = Path(intent_directory(str(root))).iterdir()
    return path


def test_what_is_saved_is_loaded_until_it_is_dropped(tmp_path: Path) -> None:
    assert load_intents(FILES, str(tmp_path)) == []
    saved = intent()
    save_intent(FILES, str(tmp_path), saved)
    assert load_intents(FILES, str(tmp_path)) == [saved]
    assert saved.row_count == 15
    save_intent(FILES, str(tmp_path), saved)
    assert load_intents(FILES, str(tmp_path)) == [saved]
    drop_intent(FILES, str(tmp_path), saved)
    assert load_intents(FILES, str(tmp_path)) == []
    assert os.listdir(intent_directory(str(tmp_path))) == []


def test_intents_of_several_sinks_and_batches_come_in_the_order_of_decision(tmp_path: Path) -> None:
    saved = [
        intent(9, lower_bound=100),
        intent(9, query_id="other", lower_bound=200),
        intent(10, lower_bound=300),
        intent(2, sink_id="a", lower_bound=300 + 10**9),
    ]
    for one in reversed(saved):
        save_intent(FILES, str(tmp_path), one)
    assert load_intents(FILES, str(tmp_path)) == saved


def test_what_was_not_decided_is_ignored_and_removed(tmp_path: Path) -> None:
    save_intent(FILES, str(tmp_path), intent())
    temporary = Path(f"{only_file(tmp_path)}.tmp")
    temporary.write_bytes(b'{"sink')
    assert load_intents(FILES, str(tmp_path)) == [intent()]
    remove_undecided(FILES, str(tmp_path))
    assert not temporary.exists()
    assert load_intents(FILES, str(tmp_path)) == [intent()]


def test_a_crash_at_any_step_of_saving_leaves_the_intent_or_none(tmp_path: Path) -> None:
    class Crash(Exception):
        pass

    class Crashing(LocalFileSystem):
        def __init__(self, steps: int) -> None:
            self.steps = steps

        def _step(self) -> None:
            self.steps -= 1
            if self.steps < 0:
                raise Crash

        def write(self, path: str, position: int, data: object) -> None:
            half = memoryview(data)[: len(memoryview(data)) // 2]  # type: ignore[arg-type]
            super().write(path, position, half)
            self._step()
            super().write(path, position, data)  # type: ignore[arg-type]

        def sync(self, path: str) -> None:
            self._step()
            super().sync(path)

        def rename(self, path: str, new_path: str) -> None:
            self._step()
            super().rename(path, new_path)

    found = []
    for steps in range(50):
        root = tmp_path / str(steps)
        (root / "spark_mq").mkdir(parents=True)
        try:
            save_intent(Crashing(steps), str(root), intent())
        except Crash:
            found.append(load_intents(FILES, str(root)))
        else:
            break
    assert [intent()] in found, "a crash behind the rename"
    assert all(intents in ([], [intent()]) for intents in found)
    assert found == sorted(found, key=len)


def test_a_file_that_was_changed_anywhere_is_named(tmp_path: Path) -> None:
    save_intent(FILES, str(tmp_path), intent())
    path = only_file(tmp_path)
    sound = path.read_bytes()
    changed = [sound[:end] for end in range(len(sound))]
    changed += [sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in range(len(sound))]
    for content in changed:
        path.write_bytes(content)
        with pytest.raises(StateFileError) as caught:
            load_intents(FILES, str(tmp_path))
        assert caught.value.file == str(path)


@pytest.mark.parametrize("name", ["notes.txt", "0123456789abcdef-1.json.bak", "-1.json"])
def test_a_foreign_file_is_named(tmp_path: Path, name: str) -> None:
    save_intent(FILES, str(tmp_path), intent())
    foreign = only_file(tmp_path).with_name(name)
    foreign.write_bytes(only_file(tmp_path).read_bytes())
    with pytest.raises(StateFileError, match="nothing else belongs here") as caught:
        load_intents(FILES, str(tmp_path))
    assert caught.value.file == str(foreign)


def test_an_intent_under_another_ones_name_is_not_taken(tmp_path: Path) -> None:
    save_intent(FILES, str(tmp_path), intent(3))
    path = only_file(tmp_path)
    path.rename(path.with_name(path.name.replace("-3", "-4")))
    with pytest.raises(StateFileError, match=r"it holds the intent of .*-3\.json"):
        load_intents(FILES, str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"segments": [["../x", 1, 1, 1, 1, 1, "", ""]]},
        {"segments": None},
        {"dead_letters": [["only one"]]},
        {"dead_letters": [["/etc/passwd", "/home/passwd"]]},
        {"dead_letters": [[f"/d/.{SINK}-3-0-a.staged", "/d/b.parquet"]]},
        {"dead_letters": [[f"/d/.{SINK}-3-0-a.staged", f"/e/{SINK}-3-0.parquet"]]},
        {"dead_letters": [[f"/d/.{SINK}-3-0-a.staged", f"/d/{SINK}-3-1.parquet"]]},
        {"dead_letters": [[f"/d/.{SINK}-4-0-a.staged", f"/d/{SINK}-4-0.parquet"]]},
        {"dead_letters": [[f"/d/.{SINK}-3-0-a/../x.staged", f"/d/.{SINK}-3-0-a/../{SINK}-3-0.parquet"]]},
        {"dead_letters": [[f"/d/.{'0' * 16}-3-0-a.staged", f"/d/{'0' * 16}-3-0.parquet"]]},
        {"new_field": 1},
        {"batch_id": None},
        {"lower_bound": "0"},
        {"mirrored": 1},
        {"decided_ms": 1e999},
    ],
    ids=str,
)
def test_a_sound_checksum_over_another_versions_intent_is_not_enough(tmp_path: Path, change: dict[str, object]) -> None:
    save_intent(FILES, str(tmp_path), intent())
    path = only_file(tmp_path)
    document = json.loads(path.read_bytes().splitlines()[0])
    line = json.dumps({**document, **change}).encode()
    path.write_bytes(line + f"\n{zlib.crc32(line):08x}\n".encode())
    with pytest.raises(StateFileError, match=r"no intent of this version|it holds the intent of") as caught:
        load_intents(FILES, str(tmp_path))
    assert caught.value.file == str(path)
