"""Every job's command line behaves alike: once or again and again, beside other writers, until somebody ends it."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from jobs.run import SLEEP_SLICE_S, JobReport, run_job
from spark_mq.conditions import OptionError
from storage.errors import StoreDamagedError, StoreLockedError, StoreNotWritableError


@dataclass
class Time:
    """Time that passes only while somebody sleeps or works."""

    now: float = 1_000.0
    sleeps: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@dataclass
class Job:
    """A job of which each run takes so many seconds, and ends as told; SIGTERM comes in the middle of the last one."""

    time: Time
    durations: list[float]
    endings: dict[int, Exception] = field(default_factory=dict)
    started: list[float] = field(default_factory=list)
    finished: int = 0
    on_last: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)

    def run(self, options: argparse.Namespace) -> JobReport:
        number = len(self.started)
        self.started.append(self.time.now)
        if number + 1 == len(self.durations):
            self.on_last()
        self.time.now += self.durations[number]
        if number in self.endings:
            raise self.endings[number]
        self.finished += 1
        return JobReport([f"run {number} of {options.path}"], exit_code=number)

    def main(self, *arguments: str) -> int:
        return run_job(self.run, ["/store", *arguments], clock=self.time.clock, sleep=self.time.sleep)


def test_a_job_runs_once_and_ends_with_its_reports_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(Time(), [1, 1], on_last=lambda: None)
    assert job.main() == 0
    assert (job.finished, capsys.readouterr().out) == (1, "run 0 of /store\n")
    assert job.main() == 1
    assert job.time.sleeps == []


def test_runs_begin_an_interval_apart_and_a_long_one_is_followed_at_once() -> None:
    job = Job(Time(), [1, 0, 25, 9.75, 0])
    job.main("--every", "10s")
    assert [start - 1_000 for start in job.started] == pytest.approx([0, 10, 20, 45, 55])
    assert max(job.time.sleeps) <= SLEEP_SLICE_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_run_finish_and_ends_the_job_then(number: signal.Signals) -> None:
    job = Job(Time(), [1, 5], on_last=lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    assert job.main("--every", "1m") == 1
    assert job.finished == 2
    assert job.time.now == pytest.approx(1_065)
    assert signal.getsignal(number) == before


def test_a_signal_ends_a_job_that_sleeps() -> None:
    job = Job(Time(), [1, 1])
    slices = iter(range(4))

    def sleep(seconds: float) -> None:
        if next(slices) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    assert run_job(job.run, ["/store", "--every", "1h"], clock=job.time.clock, sleep=sleep) == 0
    assert job.finished == 1


def test_a_second_signal_ends_the_run_itself() -> None:
    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    job = Job(Time(), [1], on_last=interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        job.main("--every", "1m")
    assert job.finished == 0


def test_a_store_that_another_writer_has_is_left_alone_and_that_is_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Job(Time(), [1, 1], {0: StoreLockedError("/store/lock")}, on_last=lambda: None)
    assert job.main() == 0
    said = capsys.readouterr()
    assert said.out == "nothing done: store /store/lock is locked by another writer\n"
    assert said.err == ""


def test_a_repeated_job_tries_a_locked_store_again_at_the_next_turn() -> None:
    locked = StoreLockedError("/store/lock")
    job = Job(Time(), [1, 1, 1], {0: locked, 1: locked})
    assert job.main("--every", "30s") == 2
    assert [start - 1_000 for start in job.started] == pytest.approx([0, 30, 60])


def test_what_may_pass_is_tried_again_too() -> None:
    job = Job(Time(), [1, 1], {0: StoreNotWritableError("/store", "disk full")})
    assert job.main("--every", "30s") == 1
    assert job.finished == 1


@pytest.mark.parametrize(
    "error",
    [
        StoreDamagedError("/store/commitlog/0", 88, "body crc", 3, 88),
        OptionError("--every", "is odd"),
        PermissionError(13, "Permission denied", "/store"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_somebody_must_see_to_ends_a_repeated_job(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(Time(), [1, 1], {0: error}, on_last=lambda: None)
    assert job.main("--every", "30s") == 1
    assert len(job.started) == 1
    assert capsys.readouterr().err == f"error: {error}\n"


def test_an_error_of_the_job_itself_is_not_hidden() -> None:
    job = Job(Time(), [1], {0: ZeroDivisionError()}, on_last=lambda: None)
    with pytest.raises(ZeroDivisionError):
        job.main("--every", "30s")


@pytest.mark.parametrize("text", ["0s", "soon", "-5s", ""])
def test_an_interval_is_a_time(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(Time(), [1])
    with pytest.raises(SystemExit) as ending:
        job.main("--every", text)
    assert (ending.value.code, job.started) == (2, [])
    assert "--every" in capsys.readouterr().err
