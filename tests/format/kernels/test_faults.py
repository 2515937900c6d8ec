"""Faults planted into kernels, one line each: the comparison with the exact path notices every one."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import Phase, settings

from storage.compiler import cached_in
from tests.format.kernels import test_encode, test_lay_out
from tests.support.kernels import loaded
from tests.support.shares import one_in


class Fault(NamedTuple):
    """A line of a kernel, what it becomes, and the test that must fail then."""

    kernel: str
    right: str
    wrong: str
    judge: Callable[[], None]


WINDOWS, OVERLAPS = test_lay_out.test_each_range_stands_in_its_window, test_lay_out.test_ranges_may_overlap
RUNS = test_lay_out.test_one_window_has_the_runs_that_are_read_at_once

RECORDS, HASHES = (
    test_encode.test_the_kernel_joins_what_the_exact_path_joins,
    test_encode.test_hashes_of_texts_are_the_same,
)
LAID = partial(test_encode.test_the_kernel_lays_texts_itself, single=True)
LEFT = test_encode.test_parts_that_do_not_lie_in_their_data_are_not_joined


FAULTS = (
    Fault("join_records", " & CRC_MASK", "", RECORDS),
    Fault("join_records", "properties_size >> 8", "0", RECORDS),
    Fault("join_records", "bool(at == len(out))", "True", LEFT),
    Fault("lay", "places[row] = at + size", "pass", LAID),
    Fault("lay", "np.int64(0) if is_single else row", "row", LAID),
    Fault("hash_texts", "bool(seen < 0x80)", "True", HASHES),
    Fault("lay_out", "joins, first = False,", "first =", WINDOWS),
    Fault("lay_out", "end - (reach if joins else begin)", "end - reach", WINDOWS),
    Fault("lay_out", "if not limits.keep:", "if True:", WINDOWS),
    Fault("lay_out", "1] = run + 1\n", "1] = run\n", WINDOWS),
    Fault("lay_out", "reach + limits.gap_bytes", "reach", RUNS),
    Fault("lay_out", "min(begin + sizes[row], limits.file_bytes)", "begin + sizes[row]", RUNS),
    Fault("lay_out", "laid.runs[run, 1] = end - laid.runs[run, 0]", "laid.runs[run, 1] += end - begin", OVERLAPS),
    Fault("lay_out", "laid.runs[run, 2] + begin - laid.runs[run, 0]", "at - (end - begin)", OVERLAPS),
)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    loaded()


def faulty(module: ModuleType, fault: Fault) -> Any:
    """The kernel, compiled anew with the fault."""
    function = getattr(module, fault.kernel).py_func
    source = textwrap.dedent(inspect.getsource(function))
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
def test_a_fault_in_a_kernel_is_noticed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    module = loaded()
    with mock.patch.object(module, fault.kernel, faulty(module, fault)), pytest.raises(AssertionError):
        judge()


@pytest.mark.slow  # they are compiled first
def test_the_faults_are_where_they_are_looked_for() -> None:
    for fault in FAULTS:
        module = loaded()
        assert inspect.getsource(getattr(module, fault.kernel).py_func).count(fault.right) == 1, fault
