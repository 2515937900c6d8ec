"""What becomes of a failure of a task of `job archive`: Spark hands on its text alone, and a repeated job goes on where it may pass."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

import jobs.archive
from spark_mq.client.errors import AccessDeniedError, BrokerUnreachableError, ResponseError, WaitedInVainError
from spark_mq.conditions import ConvertedError, DataLossError, SparkMqError, may_pass, named_for_spark
from storage.errors import StateFileError
from storage.rules.response_codes import ResponseCode


class FakeSpark:
    """Runs tasks here, and fails by their text, as Spark does."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.job: Callable[[], list[Any]] = list

    def parallelize(self, tasks: Iterable[Any], slices: int) -> FakeSpark:
        self.tasks = list(tasks)
        return self

    def map(self, run: Callable[[Any], Any]) -> Any:
        return SimpleNamespace(collect=lambda: self.collect(run))

    def collect(self, run: Callable[[Any], Any]) -> list[Any]:
        try:
            return [run(each) for each in self.tasks]
        except Exception:
            text = f"Job aborted due to stage failure: Task 0 failed 4 times\n{traceback.format_exc()}\n\tat java.lang.Thread.run\n"
            raise RuntimeError(text) from None


def failure_of(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """What a job is told where its task raises this in a reader."""
    monkeypatch.setattr("spark_mq.session.build_session", lambda *names, **options: FakeSpark())

    def fail(task: object) -> None:
        with named_for_spark():
            raise error

    with pytest.raises(Exception) as found:  # noqa: PT011
        jobs.archive._with_spark(fail, None)([1])
    return found.value


UNREACHABLE = BrokerUnreachableError("broker-a:10911", "Connection refused")
BUSY = ResponseError(ResponseCode.SYSTEM_BUSY, "too many", "broker-a:10911", "pull", None, None)


@pytest.mark.parametrize(
    "error",
    [
        UNREACHABLE,
        BUSY,
        WaitedInVainError(UNREACHABLE, "messages of queue T/broker-a/0", 120_000),
        WaitedInVainError(BUSY, "messages of queue T/broker-a/0", 120_000),
    ],
    ids=["unreachable", "busy", "waited for an address", "waited for an answer"],
)
def test_a_task_that_a_broker_left_without_an_answer_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = failure_of(error, monkeypatch)
    assert isinstance(found, ConvertedError)
    assert found.condition == error.condition  # type: ignore[attr-defined]
    assert "broker-a:10911" in found.describe()
    assert may_pass(found)


def test_a_task_that_somebody_must_see_to_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = AccessDeniedError(ResponseCode.NO_PERMISSION, "no permission", "broker-a:10911", "pull", None, None)
    for error in (denied, StateFileError("/store/config/topics.json", 1, 1, "it is no JSON")):
        found = failure_of(error, monkeypatch)
        assert isinstance(found, SparkMqError)
        assert not may_pass(found)


def test_a_loss_in_a_task_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    found = failure_of(DataLossError("queue T/broker-a/0: gone"), monkeypatch)
    assert isinstance(found, DataLossError)
    assert found.describe().startswith("queue T/broker-a/0: gone")


def test_a_full_disk_of_a_task_may_pass_and_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_mq.session.build_session", lambda *names, **options: FakeSpark())

    def fill(task: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SparkMqError, match="No space left on device") as found:
        jobs.archive._with_spark(fill, None)([1])
    assert may_pass(found.value)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        jobs.archive._with_spark(lambda task: task / 0, None)([1.0])


def test_a_lost_executor_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: FakeSpark, run: object) -> list[object]:
        raise RuntimeError(
            "Job aborted: Lost task 0.3: ExecutorLostFailure (executor 2 exited caused by one of the tasks)"
        )

    monkeypatch.setattr("spark_mq.session.build_session", lambda *names, **options: FakeSpark())
    monkeypatch.setattr(FakeSpark, "collect", lose)
    with pytest.raises(SparkMqError, match="ExecutorLostFailure") as found:
        jobs.archive._with_spark(lambda task: task, None)([1])
    assert may_pass(found.value)
