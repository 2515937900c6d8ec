"""Every job's command line behaves alike: once or again and again, beside other writers, until somebody ends it."""

from __future__ import annotations

import errno
import json
import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from jobs.run import SLEEP_SLICE_S, JobReport, Shared, StorePath, open_to_write, run_job
from spark_mq.client.errors import NameServerUnreachableError
from spark_mq.conditions import ConvertedError, OptionError
from spark_mq.session import JavaNotFoundError
from storage import StoreConfig, open_store
from storage.errors import StoreDamagedError, StoreLockedError, StoreNotWritableError
from storage.files.os_errors import from_os_error
from storage.settings.load import ConfigurationWarning
from storage.tables.put_statistics import PutStatistics


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

    def run(self, path: StorePath, shared: Shared) -> JobReport:
        number = len(self.started)
        self.started.append(self.time.now)
        if number + 1 == len(self.durations):
            self.on_last()
        self.time.now += self.durations[number]
        if number in self.endings:
            raise self.endings[number]
        self.finished += 1
        return JobReport([f"run {number} of {path}"], exit_code=number)

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


def test_of_repeated_runs_that_did_nothing_the_first_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    time = Time()
    job = Job(time, [0] * 8, {5: StoreLockedError("/store/lock")})
    idle = [True, True, False, True, True, False, True, True]

    def run(path: StorePath, shared: Shared) -> JobReport:
        is_idle = idle[len(job.started)]
        return replace(job.run(path, shared), is_idle=is_idle)

    run_job(run, ["/store", "--every", "1s"], clock=time.clock, sleep=time.sleep)
    said = capsys.readouterr().out.splitlines()
    assert [line.removesuffix(" of /store") for line in said if line.startswith("run")] == [
        *("run 0", "run 2", "run 3", "run 6")
    ]
    assert said[3].startswith("nothing done"), "behind which an idle run is told once more"


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN], ids=["as usual", "in the background"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_run_finish_and_ends_the_job_then(number: signal.Signals, inherited: signal.Handlers) -> None:
    """A shell starts what runs in the background with its signals ignored."""
    before = signal.signal(number, inherited)
    try:
        job = Job(Time(), [1, 5], on_last=lambda: os.kill(os.getpid(), number))
        assert job.main("--every", "1m") == 1
        assert signal.getsignal(number) == inherited
    finally:
        signal.signal(number, before)
    assert job.finished == 2
    assert job.time.now == pytest.approx(1_065)


def test_a_signal_ends_a_job_that_sleeps() -> None:
    job = Job(Time(), [1, 1])
    slices = iter(range(4))

    def sleep(seconds: float) -> None:
        if next(slices) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    assert run_job(job.run, ["/store", "--every", "1h"], clock=job.time.clock, sleep=sleep) == 0
    assert job.finished == 1


def test_a_second_signal_ends_the_run_itself(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    job = Job(Time(), [1], on_last=interrupt_twice)
    assert job.main("--every", "1m") == 130
    assert job.finished == 0
    assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_of_a_job_that_runs_once_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(Time(), [1], on_last=lambda: os.kill(os.getpid(), signal.SIGINT))
    assert job.main() == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(("options", "code"), [((), 75), (("--busy-ok",), 0)])
def test_a_store_that_another_writer_has_is_left_alone_and_a_scheduler_hears_of_it(
    options: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """EX_TEMPFAIL: the same command may succeed later."""
    job = Job(Time(), [1, 1], {0: StoreLockedError("/store/lock")}, on_last=lambda: None)
    assert job.main(*options) == code
    said = capsys.readouterr()
    assert said.out == "nothing done: store /store/lock is locked by another writer\n"
    assert said.err == ""


def test_a_run_is_told_as_one_line_of_json_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    put = PutStatistics()
    put.put("T", 0, 3, 300)

    def run(path: StorePath, shared: Shared) -> JobReport:
        return JobReport(["some", "lines"], exit_code=1, figures={"ended": 3}, put=put)

    assert run_job(run, ["/store", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found.pop("took_ms") >= 0
    expected = {
        "job": "test_run",
        "store": "/store",
        "exit_code": 1,
        "put": {"T": {"messages": 3, "bytes": 300}},
        "ended": 3,
    }
    assert found == expected
    assert run_job(run, ["/store"]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == ["some", "lines"]
    assert last.startswith("put 3 messages of 300 bytes: T 3; ")


def test_a_locked_store_is_told_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(Time(), [1], {0: StoreLockedError("/store/lock")}, on_last=lambda: None)
    assert job.main("--json") == 75
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["nothing_done"]) == (75, "store /store/lock is locked by another writer")


@pytest.mark.parametrize(("exit_code", "options", "code"), [(0, (), 75), (0, ("--busy-ok",), 0), (1, (), 1)])
def test_a_run_that_left_a_part_to_the_next_one_is_busy_too(
    exit_code: int, options: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `check_transactions` does with answers, and `replay_dead_letters` with letters, where a broker has come between."""

    def run(path: StorePath, shared: Shared) -> JobReport:
        return JobReport(["3 left"], exit_code, is_busy=True)

    assert run_job(run, ["/store", "--json", *options]) == code
    assert json.loads(capsys.readouterr().out)["exit_code"] == code


@pytest.mark.parametrize(
    ("error", "code", "text", "hint"),
    [
        (StoreDamagedError("/store/commitlog/0", 88, "body crc", 3, 88), 1, "/store/commitlog/0", "spark-mq repair"),
        (OptionError("--where", "is odd"), 2, "--where: is odd", ""),
        (PermissionError(13, "Permission denied", "/store"), 1, "/store", ""),
        (JavaNotFoundError("no Java 17 or newer"), 1, "no Java 17 or newer", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_told_as_json_too(
    error: Exception, code: int, text: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(Time(), [1], {0: error}, on_last=lambda: None)
    assert job.main("--json") == code
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["job"], found["store"], found["exit_code"]) == ("test_run", "/store", code)
    assert text in found["error"]
    assert hint in (found["hint"] or "")
    assert told.err.startswith(f"error: {found['error']}")


def test_a_command_line_that_is_not_right_is_told_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(Time(), [1])
    assert job.main("--json", "--every", "soon") == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["job"]) == (2, "test_run")
    assert "--every" in found["error"]


@pytest.mark.parametrize(
    "error",
    [
        StoreLockedError("/store/lock"),
        StoreNotWritableError("/store", "disk full"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        NameServerUnreachableError([("n:9876", "Connection refused")]),
        ConvertedError("SPARK_MQ_BROKER_UNREACHABLE", "of a task", retriable=True),
    ],
    ids=["locked", "not writable", "ENOSPC", "EDQUOT", "no name server", "a task's broker"],
)
def test_what_may_pass_is_tried_again_at_the_next_turn(error: Exception) -> None:
    job = Job(Time(), [1, 1, 1], {0: error, 1: error})
    assert job.main("--every", "30s") == 2
    assert [start - 1_000 for start in job.started] == pytest.approx([0, 30, 60])


@pytest.mark.parametrize(
    "error",
    [
        StoreDamagedError("/store/commitlog/0", 88, "body crc", 3, 88),
        OptionError("--every", "is odd"),
        ConvertedError("SPARK_MQ_BROKER_REFUSED", "of a task"),
        PermissionError(13, "Permission denied", "/store"),
        JavaNotFoundError("no Java 17 or newer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_somebody_must_see_to_ends_a_repeated_job(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(Time(), [1, 1], {0: error}, on_last=lambda: None)
    assert job.main("--every", "30s") == (2 if isinstance(error, OptionError) else 1)
    assert len(job.started) == 1
    told = from_os_error(error) if isinstance(error, OSError) else error
    assert capsys.readouterr().err == f"error: {told}\n"


def test_a_warning_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(
        Time(), [1], on_last=lambda: warnings.warn("broker.conf, line 3: odd", ConfigurationWarning, stacklevel=1)
    )
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert job.main() == 0
    assert capsys.readouterr().err == "warning: broker.conf, line 3: odd\n"
    assert warnings.showwarning is before


def test_an_error_of_the_job_itself_is_not_hidden() -> None:
    job = Job(Time(), [1], {0: ZeroDivisionError()}, on_last=lambda: None)
    with pytest.raises(ZeroDivisionError):
        job.main("--every", "30s")


@pytest.mark.parametrize("text", ["0s", "soon", "-5s", ""])
def test_an_interval_is_a_time(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(Time(), [1])
    assert job.main("--every", text) == 2
    assert job.started == []
    assert "--every" in capsys.readouterr().err


def test_a_store_is_left_as_it_was_found(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    abort = tmp_path / "store" / "abort"
    (tmp_path / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in StoreConfig.tiny().settings.items()))
    open_store(path, create=True, read_only=False).close()
    with open_to_write(path) as store:
        assert abort.exists()
        store.put("TopicA", b"body")
    assert not abort.exists(), "closed cleanly before"
    open_store(path, read_only=False).release()
    with open_to_write(path):
        pass
    assert abort.exists(), "kept open before"
