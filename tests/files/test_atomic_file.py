"""State files are replaced whole, and read from their .bak by Java's rules (ConfigManager.load)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.errors import StateFileError
from storage.files.local_file_system import read_with_backup, write_with_backup
from storage.format import fastjson

GOOD = '{"a":1}'
OLDER = '{"a":0}'
BAD = '{"a":'


@pytest.mark.parametrize(
    ("main", "backup", "value", "has_problem"),
    [
        (GOOD, None, {"a": 1}, False),
        (GOOD, OLDER, {"a": 1}, False),
        (GOOD, BAD, {"a": 1}, False),
        (None, OLDER, {"a": 0}, False),
        ("", OLDER, {"a": 0}, True),
        (BAD, OLDER, {"a": 0}, True),
        (None, None, None, False),
        (None, "", None, False),
        ("", None, None, True),
        ("", "", None, True),
        (BAD, None, None, True),
        (BAD, "", None, True),
    ],
)
def test_which_file_counts(
    tmp_path: Path, main: str | None, backup: str | None, value: object, has_problem: bool
) -> None:
    path = str(tmp_path / "topics.json")
    for name, content in ((path, main), (path + ".bak", backup)):
        if content is not None:
            Path(name).write_text(content)
    loaded = read_with_backup(path, fastjson.parse)
    assert loaded.value == value
    assert loaded.path == {1: path, 0: path + ".bak", None: None}[value["a"] if isinstance(value, dict) else None]
    assert (loaded.problem is not None) == has_problem
    if loaded.problem is not None:
        assert loaded.problem.file == path


@pytest.mark.parametrize("main", [None, "", BAD])
def test_an_unparsable_backup_that_is_needed_is_an_error(tmp_path: Path, main: str | None) -> None:
    path = tmp_path / "topics.json"
    if main is not None:
        path.write_text(main)
    (tmp_path / "topics.json.bak").write_text(BAD)
    with pytest.raises(StateFileError) as caught:
        read_with_backup(str(path), fastjson.parse)
    assert caught.value.file == str(path) + ".bak"


def test_files_can_come_from_anywhere() -> None:
    files = {"s3://b/topics.json.bak": OLDER.encode()}
    loaded = read_with_backup("s3://b/topics.json", fastjson.parse, read_bytes=files.get)
    assert (loaded.value, loaded.path) == ({"a": 0}, "s3://b/topics.json.bak")


def test_malformed_utf8_is_replaced_as_java_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b'{"a":"\xff\xe6\xb6\x88"}')
    assert read_with_backup(str(path), fastjson.parse).value == {"a": "\ufffd\u6d88"}


def test_a_write_makes_directory_and_file_and_the_next_keeps_the_old_content_beside_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store" / "config" / "topics.json"
    write_with_backup(str(path), OLDER)
    assert sorted(os.listdir(path.parent)) == ["topics.json"]
    write_with_backup(str(path), '{"a":"\u6d88"}')
    assert path.read_text(encoding="utf-8") == '{"a":"\u6d88"}'
    assert path.with_suffix(".json.bak").read_text() == OLDER
    assert sorted(os.listdir(path.parent)) == ["topics.json", "topics.json.bak"]


TABLE = b'{\n\t"dataVersion":{"counter":7},\n\t"offsetTable":{"T@G":{0:12,1:13}}\n}\n'
"""As fastjson writes it."""


@pytest.mark.parametrize(
    "bad",
    [TABLE[:cut] for cut in range(len(TABLE.rstrip()))]
    + [
        b" \n\t",
        b"\0" * len(TABLE),
        TABLE[:30] + bytes(20) + TABLE[50:],
        b"[]",
        b"7",
        b'"text"',
        b"\xff\xfe{}",
        b"[" * 100_000,
        b"{}{}",
    ],
)
def test_what_is_no_table_does_not_replace_a_good_backup(tmp_path: Path, bad: bytes) -> None:
    """Cut at each byte, empty, zeros, garbage. What Java would have copied over the .bak (MixAll.string2File)."""
    path, backup = tmp_path / "consumerOffset.json", tmp_path / "consumerOffset.json.bak"
    path.write_bytes(bad)
    backup.write_bytes(TABLE)
    write_with_backup(str(path), GOOD)
    assert (path.read_text(), backup.read_bytes()) == (GOOD, TABLE)
    aside = tmp_path / "consumerOffset.json.bad"
    assert (aside.read_bytes() if aside.exists() else b"").strip() == bad.strip()


@pytest.mark.parametrize("good", [TABLE, TABLE.rstrip(), b"{}", b"\xef\xbb\xbf" + TABLE, b"{'a':'\xff'}"])
def test_what_a_broker_reads_as_a_table_is_kept_beside_the_next(tmp_path: Path, good: bytes) -> None:
    path, backup = tmp_path / "consumerOffset.json", tmp_path / "consumerOffset.json.bak"
    path.write_bytes(good)
    backup.write_text(OLDER)
    write_with_backup(str(path), GOOD)
    assert (path.read_text(), backup.read_bytes()) == (GOOD, good)
    assert sorted(os.listdir(tmp_path)) == [path.name, backup.name]


def test_left_over_temporary_files_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text(OLDER)
    (tmp_path / "topics.json.tmp").write_text("half of a longer file that a crash left")
    (tmp_path / "topics.json.bak.tmp").write_text("another")
    write_with_backup(str(path), GOOD)
    assert sorted(os.listdir(tmp_path)) == ["topics.json", "topics.json.bak"]
    assert path.read_text() == GOOD


def test_every_byte_is_synced_before_its_rename_and_the_directory_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of docstring `Write:`. A crash at any point of it leaves one whole version."""
    path = tmp_path / "topics.json"
    path.write_text(OLDER)
    steps: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append(f"sync {'directory' if name == tmp_path.name else name}")
        real_sync(descriptor)

    def rename(source: str, target: str) -> None:
        steps.append(f"rename {os.path.basename(source)} {os.path.basename(target)}")
        real_replace(source, target)
        assert path.read_text() in (OLDER, GOOD)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    write_with_backup(str(path), GOOD)
    assert steps == [
        "sync topics.json.bak.tmp",
        "rename topics.json.bak.tmp topics.json.bak",
        "sync directory",
        "sync topics.json.tmp",
        "rename topics.json.tmp topics.json",
        "sync directory",
    ]


def test_an_error_of_the_disk_is_the_callers_and_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "topics.json"
    path.write_text(OLDER)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_with_backup(str(path), GOOD)
    assert path.read_text() == OLDER
