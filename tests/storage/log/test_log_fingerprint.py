"""A log is told from another one at the same path, whatever was appended to it or has expired of it since."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.log.commit_log import CommitLog, LogFile
from storage.log.fingerprint import FileMark, LogFingerprint, RecordHead, difference, record_head, take_fingerprint
from tests.support.store_builder import START_MS, StoreBuilder

SIZE = 4 << 10
HOST, OTHER_HOST = b"\x7f\0\0\1\0\0\x2a\x9f", b"\x0a\0\0\7\0\0\x2a\x9f"


def head(place: int, store_time_ms: int | None = None, host: bytes = HOST, text: str = "") -> RecordHead:
    return RecordHead(place, place if store_time_ms is None else store_time_ms, host, f"{place} {text}".encode())


def mark(start: int, directory: str = "/log") -> FileMark:
    return FileMark(directory, start, head(start))


def files(*starts: int, directory: str = "/log") -> list[LogFile]:
    return [LogFile(start, start + SIZE, f"{directory}/{start:020d}") for start in starts]


SEEN = LogFingerprint((mark(3 * SIZE),), head(3 * SIZE + 500))
SAME = {SIZE * number: head(SIZE * number) for number in range(9)} | {3 * SIZE + 500: head(3 * SIZE + 500)}


@pytest.mark.parametrize(
    ("found", "heads", "expected"),
    [
        pytest.param(files(0, SIZE, 2 * SIZE, 3 * SIZE), {}, None, id="the same"),
        pytest.param(files(3 * SIZE, 4 * SIZE, 5 * SIZE), {}, None, id="older ones expired, newer ones came"),
        pytest.param(files(5 * SIZE, 6 * SIZE), {}, None, id="all that was seen has expired"),
        pytest.param([], {}, "/log is not there, or empty", id="no file"),
        pytest.param(files(0, SIZE, 2 * SIZE), {}, "is missing, though older files", id="an older copy"),
        pytest.param(files(SIZE, 5 * SIZE), {}, "is missing, though older files", id="a hole"),
        pytest.param(
            files(2 * SIZE, 3 * SIZE),
            {3 * SIZE: head(3 * SIZE, text="x"), 3 * SIZE + 500: head(3 * SIZE + 500, text="x")},
            "begins with another record",
            id="another store's",
        ),
        pytest.param(
            files(3 * SIZE), dict.fromkeys(SAME), "begins with another record", id="a file that is only reserved"
        ),
        pytest.param(
            files(3 * SIZE),
            {3 * SIZE + 500: None},
            "does not hold the last record",
            id="a copy of before the last record",
        ),
        pytest.param(
            files(5 * SIZE),
            {5 * SIZE: head(5 * SIZE, store_time_ms=3 * SIZE)},
            "cannot have followed it",
            id="another store's, further on, but its oldest record is older",
        ),
        pytest.param(
            files(5 * SIZE),
            {5 * SIZE: head(5 * SIZE, host=OTHER_HOST)},
            "cannot have followed it",
            id="another broker's",
        ),
        pytest.param(files(5 * SIZE), {5 * SIZE: None}, "cannot have followed it", id="newer, without a record"),
        pytest.param(
            [LogFile(7_000, 7_000 + SIZE, "/log/x")],
            {7_000: head(7_000, 10**6)},
            "though older files|cannot have followed",
            id="files of other places",
        ),
    ],
)
def test_a_log_is_the_same_or_it_is_said_why_not(
    found: list[LogFile], heads: dict[int, RecordHead | None], expected: str | None
) -> None:
    reason = difference(SEEN, found, (SAME | heads).get)
    if expected is None:
        assert reason is None
    else:
        assert reason is not None
        assert any(words in reason for words in expected.split("|")), reason


def test_each_directory_of_a_log_must_be_there() -> None:
    seen = LogFingerprint((mark(2 * SIZE, "/old"), mark(3 * SIZE, "/new")), head(3 * SIZE + 500))
    new, old = files(3 * SIZE, directory="/new"), files(0, 2 * SIZE, directory="/old")
    assert difference(seen, [*old, *new], SAME.get) is None
    reason = difference(seen, new, SAME.get)
    assert reason is not None
    assert "/old is not there, or empty" in reason, "old files that are not mounted look as if they had expired"
    gone_on = [*files(3 * SIZE, directory="/new"), *files(4 * SIZE, directory="/old")]
    assert difference(seen, gone_on, SAME.get) is None, "its file of then has expired"


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "a" / "broker-a", log_file_size_bytes=SIZE)


def fingerprint(root: Path) -> LogFingerprint:
    with open_store(root) as opened:
        taken = opened.fingerprint()
    assert taken is not None
    return taken


def compare(seen: LogFingerprint, root: Path) -> str | None:
    """With the log at ROOT, as if it lay where the fingerprint was taken."""
    log = CommitLog(LocalFileSystem(), (f"{root}/commitlog",))
    try:
        seen = seen._replace(files=tuple(each._replace(directory=f"{root}/commitlog") for each in seen.files))
        return difference(seen, log.files, lambda place: record_head(log, place))
    finally:
        log.close()


def test_a_log_that_grows_and_loses_its_oldest_files_stays_the_same(store: StoreBuilder) -> None:
    store.send_many("Topic", 3)
    seen = fingerprint(store.root)
    assert seen.files[0].first.store_time_ms == START_MS + 1_000
    assert seen.last is not None
    while len(store.log_files) < 4:
        store.send_many("Topic", 10)
        assert compare(seen, store.root) is None
    for _ in range(3):
        store.delete_oldest_log_file()
        assert compare(seen, store.root) is None


def test_a_copy_is_the_same_until_the_original_has_more(store: StoreBuilder, tmp_path: Path) -> None:
    store.send_many("Topic", 3)
    copy = tmp_path / "copy"
    shutil.copytree(store.root, copy)
    assert compare(fingerprint(store.root), copy) is None
    store.send("Topic", "one more")
    assert "older copy" in (compare(fingerprint(store.root), copy) or "")
    assert compare(fingerprint(copy), store.root) is None


def test_another_store_of_the_same_messages_is_another_one(store: StoreBuilder, tmp_path: Path) -> None:
    store.send_many("Topic", 3)
    other = StoreBuilder(tmp_path / "other", log_file_size_bytes=SIZE)
    other.send("Topic", "Topic/0/0", store_time_ms=START_MS)
    assert "begins with another record" in (compare(fingerprint(store.root), other.root) or "")


def test_an_empty_log_and_files_that_are_only_reserved_have_no_fingerprint(store: StoreBuilder) -> None:
    log = CommitLog(LocalFileSystem(), (f"{store.root}/commitlog",))
    assert take_fingerprint(log, 0, None) is None
    (store.root / "commitlog" / f"{0:020d}").write_bytes(bytes(SIZE))
    log.list_files()
    assert take_fingerprint(log, 0, None) is None
    assert record_head(log, 0) is None


def test_a_file_that_is_reserved_ahead_is_not_the_newest(store: StoreBuilder) -> None:
    store.send_many("Topic", 3)
    (store.root / "commitlog" / f"{SIZE:020d}").write_bytes(bytes(SIZE))
    assert fingerprint(store.root).files[0].start == 0
