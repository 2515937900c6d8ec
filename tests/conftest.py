"""What every test may use: the shared Spark session, and Hypothesis without a stopwatch."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from spark_mq import build_session
from tests.support.spark_cluster import SHORT_LIFE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.support.fixture_stores"]
SPARK_TESTS = "tests/spark/"
STARTED_SLOWLY = "Python worker failed to connect back"
"""Spark gives a Python process 10 seconds to start, which no setting changes; several test processes on two cores may take them all."""

# A slow machine is no failure.
hypothesis.settings.register_profile("untimed", deadline=None, print_blob=True)
hypothesis.settings.load_profile("untimed")

# Who is started in the background by a script ignores interrupts, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark's own scripts read these, and say nothing of it; they hold for each JVM that a test or one of its processes starts.
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIFE)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIFE)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: the garbage collector need not go through them, while they are collected or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process is left alone with one of them in the end.

    A test of Spark is run again where Spark has given up a Python process. If all tests might run again, each would cost 40 ms:
    pytest-rerunfailures asks the process of xdist about every such test.
    """
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.get_closest_marker("spark") or "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=STARTED_SLOWLY))
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "spark")))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Without the slow tests one process has all that share a Spark session: a second JVM would cost more than it saves."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class OneSession(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return SPARK_TESTS if scope.startswith(SPARK_TESTS) else scope

    return OneSession(config, log) if "not slow" in config.option.markexpr else None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session on two cores for the whole run; tests leave its settings as they found them."""
    session = build_session(
        "spark_mq tests",
        master="local[2]",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "1g",
        },
    )
    yield session
    session.stop()
