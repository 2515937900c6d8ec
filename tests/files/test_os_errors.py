"""What an operating system or an object store refuses is told in one sentence, with host, path, user and a cure."""

from __future__ import annotations

import errno
import os
import pickle
import pwd
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.errors import AccessDeniedError, FileFailedError, FileSystemUnavailableError, StorageError
from storage.files.os_errors import from_os_error, from_remote_error
from storage.files.remote import file_system_of

HOST = socket.gethostname()
NOBODY = pwd.getpwnam("nobody").pw_uid
FIRST_LINE = 300


def shown(error: StorageError) -> tuple[str, str]:
    """The sentence, which is short, and the cure."""
    sentence, cure = str(error).split("\n")
    assert len(sentence) <= FIRST_LINE
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return sentence, cure


@contextmanager
def as_nobody() -> Iterator[None]:
    """A user who owns nothing; as root only, another user cannot become one."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter; those of pytest are closed."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path)


def test_a_directory_that_a_user_may_not_enter_is_named_with_its_owner(open_folder: Path) -> None:
    closed = open_folder / "closed"
    (closed / "store" / "commitlog").mkdir(parents=True)
    closed.chmod(0o700)
    with as_nobody(), pytest.raises(PermissionError) as caught:
        os.scandir(closed / "store" / "commitlog")
    with as_nobody():
        error = from_os_error(caught.value)
    assert isinstance(error, AccessDeniedError)
    sentence, cure = shown(error)
    assert sentence == (
        f"user nobody on host {HOST} may not open {closed}/store/commitlog: {closed} is root's with mode drwx------"
    )
    assert "nobody" in cure


@pytest.mark.parametrize("in_the_way", ["the directory", "a directory above", "the file"])
def test_what_may_only_be_read_is_named_with_its_owner_when_it_is_written(open_folder: Path, in_the_way: str) -> None:
    store = open_folder / "store"
    store.mkdir(mode=0o755)
    (store / "lock").write_text("lock", "utf-8")
    match in_the_way:
        case "the directory":
            place, expected = store / "spark_mq", f"{store} is root's with mode drwxr-xr-x"
        case "a directory above":
            place, expected = store / "spark_mq" / "staged" / "x", f"{store} is root's with mode drwxr-xr-x"
        case _:
            place, expected = store / "lock", f"{store}/lock is root's with mode -rw-r--r--"
    with as_nobody():
        error = from_os_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place)))
    sentence, cure = shown(error)
    assert sentence == f"user nobody on host {HOST} may not open {place}: {expected}"
    assert "write" in cure


def test_a_file_that_may_be_written_in_a_directory_that_may_not_is_about_the_directory(open_folder: Path) -> None:
    (open_folder / "notes").write_text("x", "utf-8")
    (open_folder / "notes").chmod(0o666)
    with as_nobody(), pytest.raises(PermissionError) as caught:
        os.rename(open_folder / "notes", open_folder / "other")
    with as_nobody():
        assert f"{open_folder} is root's with mode drwxr-xr-x" in str(from_os_error(caught.value))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EIO, "system's log"),
        (errno.ELOOP, "link"),
        (errno.ENAMETOOLONG, "255 bytes"),
        (errno.ESTALE, "mount"),
        (errno.ENOSPC, "free"),
        (errno.EMFILE, "ulimit"),
        (errno.EISDIR, "directory"),
    ],
)
def test_other_errors_name_host_path_and_reason(number: int, words: str) -> None:
    error = from_os_error(OSError(number, os.strerror(number), "/s/commitlog/0"))
    assert isinstance(error, FileFailedError)
    sentence, cure = shown(error)
    assert sentence == f"/s/commitlog/0 on host {HOST}: {os.strerror(number)}"
    assert words in cure


def test_real_circles_and_long_names_are_told(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in (f"{tmp_path}/circle/x", f"{tmp_path}/{'x' * 300}"):
        with pytest.raises(OSError, match="Errno") as caught:
            os.scandir(path)
        sentence, _ = shown(from_os_error(caught.value))
        assert str(tmp_path)[:40] in sentence


def test_an_error_that_names_no_file_is_told_of_the_store() -> None:
    assert "/s on host" in str(from_os_error(OSError(errno.EIO, os.strerror(errno.EIO)), "/s"))


@pytest.mark.parametrize(
    ("url", "kind", "words", "cures"),
    [
        ("foo://host/x", FileSystemUnavailableError, ["foo://host/x", "Protocol not known: foo"], "s3"),
        ("hdfs://namenode/x", FileSystemUnavailableError, ["hdfs://namenode/x", "Unable to load lib"], "CLASSPATH"),
        ("gs://bucket/x", FileSystemUnavailableError, ["gs://bucket/x", "gcsfs"], "pip install"),
    ],
)
def test_a_scheme_that_nothing_here_can_open_is_refused_by_name(
    url: str, kind: type[StorageError], words: list[str], cures: str
) -> None:
    with pytest.raises(kind) as caught:
        file_system_of(url)
    sentence, cure = shown(caught.value)
    assert [word for word in words if word not in sentence] == []
    assert HOST in sentence
    assert cures in cure


def test_an_object_store_without_credentials_says_which_to_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AccessDeniedError) as caught:
        file_system_of("s3://bucket/x").list_directory("s3://bucket/x")
    sentence, cure = shown(caught.value)
    assert "s3://bucket/x" in sentence
    assert HOST in sentence
    assert "Unable to locate credentials" in sentence
    assert "AWS_ACCESS_KEY_ID" in cure


def test_any_other_failure_of_a_remote_file_system_is_one_short_line() -> None:
    error = from_remote_error(RuntimeError("the first line " + "x" * 5_000 + "\nmore\nlines"), "s3://b/k")
    assert isinstance(error, FileSystemUnavailableError)
    sentence, _ = shown(error)
    assert "the first line" in sentence


def test_missing_objects_stay_what_they_are() -> None:
    files = file_system_of("memory://nothing")
    assert files.list_directory("memory://nothing") == []
    assert files.read_file("memory://nothing/x") is None
    with pytest.raises(FileNotFoundError):
        files.open_file("memory://nothing/x")
