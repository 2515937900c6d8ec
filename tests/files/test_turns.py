"""Those that wait for a store's lock get it in the order in which they came, and nobody waits for one that is gone."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

import storage.files.lock
from storage.errors import StoreLockedError, StoreServedError
from storage.files.local_file_system import _LOCK_INTERVAL_S, FILE_MODE, LocalFileSystem
from storage.files.lock import PATIENCE_S, Turn, lock_byte
from tests.support.places import PROJECT
from tests.support.shares import one_in

FILES = LocalFileSystem()


@pytest.fixture
def turns(tmp_path: Path) -> str:
    (tmp_path / "spark_mq").mkdir()
    return str(tmp_path / "spark_mq" / "turns")


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    """The lock's open file, which nobody holds."""
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def turn(path: str, clock_s: list[float] | None = None) -> Turn:
    now = clock_s if clock_s is not None else [0.0]
    return Turn(path, mode=FILE_MODE, clock=lambda: now[0])


@contextmanager
def held(path: str) -> Iterator[None]:
    with FILES.locked(path):
        yield


def has_ticket(path: str) -> bool:
    """Whether somebody waits."""
    if not os.path.exists(path):
        return False
    descriptor = os.open(path, os.O_RDWR)
    try:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1, 0, 0)
        return struct.unpack("hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK
    finally:
        os.close(descriptor)


def wait_for_ticket(path: str) -> None:
    """Returns when somebody waits."""
    given_up_s = time.monotonic() + 10
    while not has_ticket(path):
        assert time.monotonic() < given_up_s, "nobody takes a ticket"
        time.sleep(0.001)


def test_turns_come_in_the_order_of_tickets_and_a_newcomer_waits_behind_all(turns: str, lock: int) -> None:
    with turn(turns) as first, turn(turns) as second, turn(turns) as newcomer:
        first.queue_up()
        second.queue_up()
        first.queue_up()  # keeps the one that it has
        assert [first.has_come(lock), second.has_come(lock), newcomer.has_come(lock)] == [True, False, False]
        first.__exit__(None, None, None)
        assert [second.has_come(lock), newcomer.has_come(lock)] == [True, False]
        newcomer.queue_up()
        second.__exit__(None, None, None)
        assert newcomer.has_come(lock)


def test_nobody_takes_a_ticket_while_another_does(turns: str, lock: int) -> None:
    with turn(turns) as ours, turn(turns) as other:
        door = os.open(turns, os.O_RDWR | os.O_CREAT)
        assert lock_byte(door, 0)
        ours.queue_up()
        assert not has_ticket(turns)
        os.close(door)
        ours.queue_up()
        assert not other.has_come(lock), "with the next look it has one"


def test_the_ticket_is_there_before_the_door_opens(turns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the next one that comes takes another one."""
    open_door, were_there = storage.files.lock._unlock, []

    def opened(descriptor: int, byte: int) -> None:
        were_there.append(has_ticket(turns))
        open_door(descriptor, byte)

    with turn(turns) as ours:
        with monkeypatch.context() as patched:
            patched.setattr(storage.files.lock, "_unlock", opened)
            ours.queue_up()
        assert were_there == [True]


def test_without_anybody_waiting_no_file_is_made(turns: str, tmp_path: Path) -> None:
    with FILES.locked(str(tmp_path / "lock"), turns=turns):
        assert not os.path.exists(turns)


def test_a_queue_is_made_neither_in_a_new_directory_nor_through_a_link(tmp_path: Path, lock: int) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "spark_mq" / "turns", tmp_path / "link" / "turns"):
        with turn(str(path)) as one:
            one.queue_up()
            assert one.has_come(lock)
    assert not (tmp_path / "spark_mq").exists()
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_nobody_waits_for_the_ticket_of_a_process_that_was_killed(turns: str, lock: int) -> None:
    command = (
        "import sys\nfrom storage.files.lock import Turn\nturn = Turn(sys.argv[1], mode=0o660)\n"
        "turn.queue_up()\nprint(flush=True)\nsys.stdin.read()"
    )
    with (
        subprocess.Popen(
            [sys.executable, "-c", command, turns], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as waiter,
        turn(turns) as ours,
    ):
        assert waiter.stdout is not None
        waiter.stdout.readline()
        assert not ours.has_come(lock)
        waiter.send_signal(signal.SIGKILL)
        waiter.wait()
        assert ours.has_come(lock)


def test_one_that_does_not_take_the_free_lock_is_passed_over(turns: str, lock: int, tmp_path: Path) -> None:
    now = [100.0]
    with turn(turns) as stopped, turn(turns, now) as ours:
        stopped.queue_up()
        assert not ours.has_come(lock)
        now[0] += PATIENCE_S * 0.9
        with held(str(tmp_path / "lock")):
            assert not ours.has_come(lock), "it is not free, so nobody could take it"
        now[0] += PATIENCE_S
        assert not ours.has_come(lock), "free since this look"
        now[0] += PATIENCE_S
        assert ours.has_come(lock)


@pytest.mark.parametrize("timeout_ms", [0, 300])
def test_one_that_is_stopped_keeps_nobody_from_a_free_lock(turns: str, tmp_path: Path, timeout_ms: int) -> None:
    with turn(turns) as stopped:
        stopped.queue_up()
        with FILES.locked(str(tmp_path / "lock"), timeout_ms, turns=turns):
            pass


def test_a_child_that_was_forked_while_we_waited_keeps_no_ticket(turns: str, lock: int) -> None:
    with turn(turns) as first:
        first.queue_up()
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        try:
            first.__exit__(None, None, None)
            with turn(turns) as next_one:
                assert next_one.has_come(lock)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_one_that_waits_gets_the_lock_before_one_that_comes_again_at_once(turns: str, tmp_path: Path) -> None:
    """A sink that commits without pause, and a job."""
    lock, order, waits = str(tmp_path / "lock"), [], threading.Event()

    def job() -> None:
        waits.set()
        with FILES.locked(lock, 60_000, turns=turns):
            order.append("job")

    thread = threading.Thread(target=job)
    with FILES.locked(lock, turns=turns):
        order.append("commit")
        thread.start()
        waits.wait()
        wait_for_ticket(turns)
    with FILES.locked(lock, 60_000, turns=turns):
        order.append("commit")
    thread.join()
    assert order == ["commit", "job", "commit"]


def test_a_lock_that_another_has_is_not_got_without_it(turns: str, tmp_path: Path) -> None:
    with (
        held(str(tmp_path / "lock")),
        pytest.raises(StoreLockedError),
        FILES.locked(str(tmp_path / "lock"), 100, turns=turns),
    ):
        pass


def test_who_has_the_lock_has_no_ticket_any_more(turns: str, tmp_path: Path) -> None:
    lock, had = str(tmp_path / "lock"), []

    def job() -> None:
        with FILES.locked(lock, 60_000, turns=turns):
            had.append(has_ticket(turns))

    thread = threading.Thread(target=job)
    with held(lock):
        thread.start()
        wait_for_ticket(turns)
    thread.join()
    assert had == [False]


@pytest.mark.parametrize("kind", one_in(3, ["broker", "own broker", "ours"]))
def test_a_broker_is_not_waited_for_by_one_that_yields_to_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, slept = str(tmp_path / "lock"), []
    hold = "f = open(sys.argv[1], 'a+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1)"
    if kind != "broker":
        holder = "writer" if kind == "ours" else "broker"
        hold = f"held = LocalFileSystem().locked(sys.argv[1], holder={holder!r}); held.__enter__()"
    command = (
        f"import fcntl, sys\nfrom storage.files.local_file_system import LocalFileSystem\n{hold}\n"
        "print(flush=True)\nsys.stdin.read()"
    )
    monkeypatch.setattr("storage.files.local_file_system.time.sleep", slept.append)
    with subprocess.Popen(
        [sys.executable, "-c", command, path], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with (
            pytest.raises(StoreLockedError) as caught,
            FILES.locked(path, 60_000 if kind != "ours" else 100, holder="job"),
        ):
            pass
    assert (caught.value.waited_ms == 100) == (kind == "ours")  # nobody says that it waited for a broker
    assert (_LOCK_INTERVAL_S in slept) == (kind == "ours")  # other threads of the process may sleep too


@pytest.mark.parametrize("kind", ["broker", "writer"])
def test_a_sink_waits_for_all_but_a_broker_of_ours(
    tmp_path: Path, kind: Literal["broker", "writer"], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, slept = str(tmp_path / "lock"), []
    monkeypatch.setattr("storage.files.local_file_system.time.sleep", slept.append)
    with LocalFileSystem().locked(path, holder=kind):
        with pytest.raises(StoreLockedError) as caught, FILES.locked(path, 100, holder="sink"):
            pass
        assert isinstance(caught.value, StoreServedError) == (kind == "broker")
        assert (_LOCK_INTERVAL_S in slept) == (kind == "writer")
    with FILES.locked(path, holder="sink"):
        pass


def test_many_that_wait_at_once_come_in_one_by_one(turns: str, tmp_path: Path) -> None:
    lock, inside, most = str(tmp_path / "lock"), [], []

    def work() -> None:
        with FILES.locked(lock, 60_000, turns=turns):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(12)]
    with held(lock):
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 12
