"""Faults planted into kernels, one line each: the comparison with the exact path notices every one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import Phase, settings

from storage.compiler import cached_in
from storage.format.kernels.compiled import DECODE, KernelModule
from tests.format.kernels import test_lay_out
from tests.support.kernels import ON, kernels, need_kernels
from tests.support.shares import one_in


class Fault(NamedTuple):
    """A line of a kernel, what it becomes, and the test that must fail then."""

    module: KernelModule
    kernel: str
    right: str
    wrong: str
    judge: Callable[[], None]


WINDOWS, OVERLAPS = test_lay_out.test_each_range_stands_in_its_window, test_lay_out.test_ranges_may_overlap
RUNS = test_lay_out.test_one_window_has_the_runs_that_are_read_at_once


FAULTS = (
    Fault(DECODE, "lay_out", "joins, first = False,", "first =", WINDOWS),
    Fault(DECODE, "lay_out", "end - (reach if joins else begin)", "end - reach", WINDOWS),
    Fault(DECODE, "lay_out", "if not limits.keep:", "if True:", WINDOWS),
    Fault(DECODE, "lay_out", "1] = run + 1\n", "1] = run\n", WINDOWS),
    Fault(DECODE, "lay_out", "reach + limits.gap_bytes", "reach", RUNS),
    Fault(DECODE, "lay_out", "min(begin + sizes[row], limits.file_bytes)", "begin + sizes[row]", RUNS),
    Fault(
        DECODE, "lay_out", "laid.runs[run, 1] = end - laid.runs[run, 0]", "laid.runs[run, 1] += end - begin", OVERLAPS
    ),
    Fault(DECODE, "lay_out", "laid.runs[run, 2] + begin - laid.runs[run, 0]", "at - (end - begin)", OVERLAPS),
)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    need_kernels()


def faulty(module: ModuleType, fault: Fault) -> Any:
    """The kernel, compiled anew with the fault."""
    function = getattr(module, fault.kernel).py_func
    source = inspect.getsource(function)
    assert source.count(fault.right) == 1, f"{fault.kernel} has not one {fault.right!r}"
    namespace = dict(vars(sys.modules[function.__module__]))
    with cached_in(None):
        exec(source.replace(fault.right, fault.wrong), namespace)
    return namespace[fault.kernel]


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    one_in(6, range(len(FAULTS)), others=pytest.mark.long),
    ids=lambda number: f"{number} {FAULTS[number].kernel}",
)
def test_a_fault_in_a_kernel_is_noticed(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fault = FAULTS[number]
    judge: Any = fault.judge
    if hasattr(judge, "_hypothesis_internal_use_settings"):
        quick = settings(
            judge._hypothesis_internal_use_settings,
            max_examples=200,
            report_multiple_bugs=False,
            phases=(Phase.generate,),
            database=None,
        )
        monkeypatch.setattr(judge, "_hypothesis_internal_use_settings", quick)
    with kernels(ON):
        module = fault.module.for_rows()
    assert module is not None
    needs = "tmp_path_factory" in inspect.signature(judge).parameters
    given = {"tmp_path_factory": tmp_path_factory} if needs else {}
    with mock.patch.object(module, fault.kernel, faulty(module, fault)), pytest.raises(AssertionError):
        judge(**given)


@pytest.mark.slow  # they are compiled first
def test_the_faults_are_where_they_are_looked_for() -> None:
    with kernels(ON):
        for fault in FAULTS:
            module = fault.module.for_rows()
            assert inspect.getsource(getattr(module, fault.kernel).py_func).count(fault.right) == 1, fault
