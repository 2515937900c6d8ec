"""The socket under ROOT/spark_mq: where it is bound, whose it is, and what frames it takes."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import (
    SOCKET_NAME,
    FrameError,
    broker_note,
    connect,
    is_own_user,
    listen,
    peer_user,
    receive_frame,
    remove,
    send_frame,
)
from storage.files.local_file_system import LocalFileSystem, save_loose

HOST = "127.0.0.1:10911"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield one, two


def long_root(tmp_path: Path) -> Path:
    """A path that no address of a Unix socket can hold."""
    root = tmp_path / ("d" * 200) / ("e" * 200)
    root.mkdir(parents=True)
    return root


@pytest.mark.parametrize("length", ["short", "long"])
def test_it_is_its_users_alone_and_reached_under_a_path_of_any_length(tmp_path: Path, length: str) -> None:
    root = str(long_root(tmp_path) if length == "long" else tmp_path)
    with listen(root, HOST) as listener:
        found = os.stat(f"{root}/spark_mq/{SOCKET_NAME}")
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        with connect(root, 5) as client, listener.accept()[0] as served:
            send_frame(client, {"said": "é"}, 100)
            assert receive_frame(served, 100, 5) == {"said": "é"}
            assert peer_user(client) == peer_user(served) == os.geteuid()
        remove(root)
    assert os.listdir(f"{root}/spark_mq") == []


def test_a_mask_of_the_process_does_not_open_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with listen(str(tmp_path), HOST):
            assert stat.S_IMODE(os.stat(tmp_path / "spark_mq" / SOCKET_NAME).st_mode) == 0o600
    finally:
        os.umask(before)


def test_what_a_dead_broker_left_is_refused_to_clients_and_taken_by_the_next(tmp_path: Path) -> None:
    listen(str(tmp_path), HOST).close()
    with pytest.raises(ConnectionRefusedError):
        connect(str(tmp_path), 5)
    with listen(str(tmp_path), HOST), connect(str(tmp_path), 5):
        pass


def test_without_a_broker_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connect(str(tmp_path), 5)
    (tmp_path / "spark_mq").mkdir()
    with pytest.raises(FileNotFoundError):
        connect(str(tmp_path), 5)
    assert broker_note(str(tmp_path)) is None


def test_what_is_no_socket_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "spark_mq").mkdir()
    file = tmp_path / "spark_mq" / SOCKET_NAME
    file.write_text("somebody's")
    with pytest.raises(FileExistsError, match="is no socket"):
        listen(str(tmp_path), HOST)
    assert file.read_text() == "somebody's"


def test_a_link_in_the_directorys_place_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "spark_mq").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        listen(str(tmp_path / "root"), HOST)
    assert os.listdir(tmp_path / "other") == []


def test_in_another_users_directory_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(local_socket.os, "geteuid", lambda: own + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {own}, and this process to user {own + 1}"):
        listen(str(tmp_path), HOST)


def test_a_batch_is_handed_over_between_processes_of_one_user() -> None:
    assert is_own_user(os.geteuid())
    assert not is_own_user(os.geteuid() + 1)


def test_the_note_says_whose_it_is(tmp_path: Path) -> None:
    with listen(str(tmp_path), HOST):
        note = broker_note(str(tmp_path))
    assert note is not None
    assert note == (socket.gethostname(), LocalFileSystem().boot_id(), os.getpid(), HOST)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"[]", b'{"host": 1}', b'{"host": "h", "boot_id": "b", "pid": "7", "store_host": "s"}']
)
def test_a_note_that_says_nothing_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spark_mq").mkdir()
    save_loose(LocalFileSystem(), str(tmp_path / "spark_mq" / "broker.json"), content)
    assert broker_note(str(tmp_path)) is None
    (tmp_path / "spark_mq" / "broker.json").write_bytes(content)
    assert broker_note(str(tmp_path)) is None


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (struct.pack(">I", 0xFFFFFFFF), "4294967295 bytes is too large, 1000 is the most"),
        (b"GET / HTTP/1.1\r\n\r\n", "too large"),
        (framed(b"\xff" * 20), "no JSON"),
        (framed(b"[" * 1_000), "no JSON"),
        (framed(b"[1]"), "a JSON object, found list"),
        (framed(b""), "no JSON"),
    ],
    ids=["huge", "http", "bytes", "deep", "list", "empty"],
)
def test_what_is_no_frame_is_refused(pair: tuple[socket.socket, socket.socket], sent: bytes, says: str) -> None:
    pair[0].sendall(sent)
    with pytest.raises(FrameError, match=says):
        receive_frame(pair[1], 1_000, 5)


def test_a_frame_comes_whole_however_it_is_cut(pair: tuple[socket.socket, socket.socket]) -> None:
    for byte in framed(json.dumps({"a": 1}).encode()):
        pair[0].sendall(bytes([byte]))
    assert receive_frame(pair[1], 1_000, 5) == {"a": 1}
    pair[0].close()
    assert receive_frame(pair[1], 1_000, 5) is None


@pytest.mark.parametrize("sent", [b"\0", framed(b"{}")[:-1]])
def test_who_hangs_up_amid_a_frame_is_gone(pair: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    pair[0].sendall(sent)
    pair[0].close()
    with pytest.raises(ConnectionResetError, match="amid a frame"):
        receive_frame(pair[1], 1_000, 5)


def test_who_says_nothing_is_left_in_time(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"\0\0")
    with pytest.raises(TimeoutError):
        receive_frame(pair[1], 1_000, 0.01)


def test_a_frame_that_is_too_large_is_not_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(FrameError, match="too large, 10 is the most"):
        send_frame(pair[0], {"text": "x" * 10}, 10)
    pair[0].close()
    assert receive_frame(pair[1], 1_000, 5) is None
