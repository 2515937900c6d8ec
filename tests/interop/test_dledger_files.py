"""A member's files beside those of DLedger's own file store: the same bytes, and each reads what the other has written."""

from __future__ import annotations

import shutil
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import LedgerEntry, make_entry
from spark_mq.dledger.state import Restored
from storage.format.dledger import ENTRY_HEAD_SIZE, Vote, place_of_next
from tests.support.java_broker import Oracle

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FILE_BYTES, INDEX_BYTES = 8_192, 640


def opened(base: Path) -> MemberFiles:
    return MemberFiles(str(base / "dledger-n0"), file_size_bytes=FILE_BYTES, index_file_size_bytes=INDEX_BYTES)


def made() -> list[LedgerEntry]:
    """Entries of four terms; one body is empty, some files end with a filler of eight bytes."""
    random, entries, end = Random(5), list[LedgerEntry](), 0
    for index in range(60):
        left = FILE_BYTES - end % FILE_BYTES
        fits = left - ENTRY_HEAD_SIZE - 8
        body = random.randbytes(fits if index % 9 == 8 and fits > 0 else random.choice((0, 1, 300, 900)))
        end = place_of_next(end, ENTRY_HEAD_SIZE + len(body), FILE_BYTES)
        entries.append(make_entry(index, 1 + index // 15, end, body))
        end += entries[-1].size_bytes
    return entries


def write(base: Path, entries: Sequence[LedgerEntry]) -> None:
    files = opened(base)
    for at in range(0, len(entries), 7):
        files.append(entries[at : at + 7])
    files.save_vote(Vote(4, "n0"))
    files.sync()
    files.save_checkpoint(entries[-1].index)
    files.close()


def log_of(base: Path) -> tuple[Restored, list[LedgerEntry]]:
    files = opened(base)
    found = files.restored()
    entries = [files.entry(index) for index in range(found.begin_index, found.end_index + 1)]
    files.close()
    return found, entries


def java(oracle: Oracle, base: Path, *written: Path) -> tuple[list[str], list[LedgerEntry]]:
    """What DLedger's own classes find, after they have written some lines: ends, committed index, term, vote; and the entries."""
    lines = oracle.java("DLedgerLog", base, FILE_BYTES, INDEX_BYTES, *written).splitlines()
    (ends,) = [line.split()[1:] for line in lines if line.startswith("log ")]
    entries = [line.split(" ")[1:] for line in lines if line.startswith("entry ")]
    return ends, [make_entry(int(row[0]), int(row[1]), int(row[2]), b64decode(row[4])) for row in entries]


def contents(base: Path, *folders: str) -> dict[str, bytes]:
    place = base / "dledger-n0"
    return {f"{folder}/{path.name}": path.read_bytes() for folder in folders for path in (place / folder).iterdir()}


def test_both_write_the_same_bytes_and_read_each_others(oracle: Oracle, tmp_path: Path) -> None:
    entries, ours, theirs = made(), tmp_path / "ours", tmp_path / "theirs"
    write(ours, entries)
    rows = [f"{each.term} {b64encode(each.body or b'').decode()}" for each in entries]
    (tmp_path / "written").write_text("\n".join([*rows, "4"]))
    ends, found = java(oracle, theirs, tmp_path / "written")
    assert found == entries
    assert contents(ours, "data", "index") == contents(theirs, "data", "index")
    for name in ("currterm", "checkpoint"):
        ours_text, theirs_text = ((base / "dledger-n0" / name).read_text() for base in (ours, theirs))
        assert sorted(theirs_text.split()) == sorted(ours_text.removeprefix("#spark_mq\n").split()), name
    shutil.copytree(ours, tmp_path / "copy")
    assert java(oracle, tmp_path / "copy") == (ends, entries)
    restored, read = log_of(theirs)
    assert read == entries
    assert restored == Restored(Vote(4, "n0"), 0, 59, 4, entries[-1].place + entries[-1].size_bytes, 59)


def test_a_log_that_was_cut_and_trimmed_here_goes_on_there_and_back(oracle: Oracle, tmp_path: Path) -> None:
    entries = made()
    write(tmp_path, entries)
    files = opened(tmp_path)
    files.save_checkpoint(40)
    files.cut(40)
    begin = files.trim(20)
    files.close()
    assert 0 < begin <= 20
    (tmp_path / "written").write_text("\n".join(f"7 {b64encode(b'later').decode()}" for _ in range(5)))
    ends, found = java(oracle, tmp_path, tmp_path / "written")
    assert ends[:3] == [str(begin), "45", "7"]
    assert found[: 41 - begin] == entries[begin:41]
    restored, read = log_of(tmp_path)
    assert read == found
    assert (restored.begin_index, restored.end_index, restored.committed_index) == (begin, 45, 45)


def test_an_index_that_is_not_synced_is_made_anew_there_too(oracle: Oracle, tmp_path: Path) -> None:
    entries = made()[:12]
    write(tmp_path, entries)
    for path in (tmp_path / "dledger-n0" / "index").iterdir():
        path.write_bytes(bytes(INDEX_BYTES))
    assert java(oracle, tmp_path)[1] == entries
    assert log_of(tmp_path)[1] == entries
