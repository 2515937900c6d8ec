"""Errors with a name leave a worker without a traceback; others, and other processes, keep theirs."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from spark_mq.conditions import ConvertedError, OptionError, expect_hang_up, named_for_spark
from storage.errors import StoreNotFoundError

HIDES = "SPARK_HIDE_TRACEBACK"


@pytest.fixture
def main_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A main module in place of pytest's, in a process whose tracebacks are shown."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setenv(HIDES, "")
    return module


def as_worker(module: ModuleType) -> None:
    module.__spec__ = ModuleSpec("pyspark.daemon", None)


def test_a_workers_named_error_hides_its_traceback(main_module: ModuleType) -> None:
    as_worker(main_module)
    with pytest.raises(OptionError), named_for_spark():
        raise OptionError("topic", "is empty")
    assert os.environ[HIDES]


def test_a_storage_error_becomes_a_condition_without_a_cause(main_module: ModuleType) -> None:
    as_worker(main_module)
    with pytest.raises(ConvertedError) as caught, named_for_spark():
        raise StoreNotFoundError("/s")
    assert caught.value.__suppress_context__
    assert isinstance(caught.value.__context__, StoreNotFoundError)
    assert os.environ[HIDES]


def test_a_fault_of_ours_keeps_its_traceback(main_module: ModuleType) -> None:
    as_worker(main_module)
    with pytest.raises(ZeroDivisionError), named_for_spark():
        _ = 1 // 0
    assert not os.environ[HIDES]


@pytest.mark.parametrize("spec", [None, ModuleSpec("pytest", None)])
def test_another_process_is_left_as_it_is(main_module: ModuleType, spec: ModuleSpec | None) -> None:
    main_module.__spec__ = spec
    with pytest.raises(OptionError), named_for_spark():
        raise OptionError("topic", "is empty")
    assert not os.environ[HIDES]


@pytest.mark.parametrize(("error", "printed"), [(BrokenPipeError(32, "Broken pipe"), False), (OSError("other"), True)])
def test_a_worker_that_read_for_us_does_not_print_that_spark_hung_up(
    main_module: ModuleType, capsys: pytest.CaptureFixture[str], error: Exception, printed: bool
) -> None:
    as_worker(main_module)
    vars(main_module)["traceback"] = traceback
    expect_hang_up()
    expect_hang_up()
    try:
        raise error
    except OSError:
        vars(main_module)["traceback"].print_exc()
    assert bool(capsys.readouterr().err) is printed
    assert vars(main_module)["traceback"].format_exc is traceback.format_exc


def test_the_daemon_prints_by_the_name_that_is_replaced() -> None:
    # Were it otherwise, a query that ends early would print a traceback again.
    import pyspark.daemon

    assert pyspark.daemon.traceback is traceback


def test_the_main_module_of_another_process_keeps_its_names(main_module: ModuleType) -> None:
    vars(main_module)["traceback"] = traceback
    expect_hang_up()
    assert vars(main_module)["traceback"] is traceback
