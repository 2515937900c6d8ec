"""Faults planted into kernels, one line each: the comparison with the exact path notices every one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import Phase, settings

from storage.compiler import cached_in
from storage.format.kernels.compiled import DECODE, ENCODE, KernelModule
from tests.format.kernels import test_encode, test_lay_out, test_many_rows
from tests.support.kernels import ON, kernels, need_kernels
from tests.support.shares import one_in


class Fault(NamedTuple):
    """A line of a kernel, what it becomes, and the test that must fail then."""

    module: KernelModule
    kernel: str
    right: str
    wrong: str
    judge: Callable[[], None]


RECORDS, TEXTS = test_encode.test_records_are_the_same, test_encode.test_hashes_of_texts_are_the_same
STRINGS, KEYS = test_encode.test_property_strings_are_the_same, test_encode.test_keys_are_the_same
PIECES = test_encode.test_pieces_are_the_records_in_whole_ones
UNIQUE = test_encode.test_unique_keys_are_the_same
WINDOWS, OVERLAPS = test_lay_out.test_each_range_stands_in_its_window, test_lay_out.test_ranges_may_overlap
RUNS = test_lay_out.test_one_window_has_the_runs_that_are_read_at_once


def many(made: Callable[[], list[Any]]) -> Callable[[], None]:
    """More rows than 16 bits count."""
    return partial(test_many_rows.test_rows_beyond_16_bits_are_the_same, made)


FAULTS = (
    Fault(ENCODE, "join_records", "put_be16(out, at, end - begin)", "put_be16(out, at, end - begin + 2)", RECORDS),
    Fault(ENCODE, "join_records", "row * header_size, header_size", "0, header_size", RECORDS),
    Fault(ENCODE, "join_records", "names.data, name, ", "names.data, 0, ", RECORDS),
    Fault(ENCODE, "join_records", "body_end - body) & _CRC_MASK", "body_end - body)", RECORDS),
    Fault(ENCODE, "join_records", "range(first, count)", "range(count)", PIECES),
    Fault(ENCODE, "lay_column", "values.data, begin, size", "values.data, 0, size", STRINGS),
    Fault(ENCODE, "lay_column", "move(out, at, around.after, 0, after)", "pass", STRINGS),
    Fault(ENCODE, "hash_strings", "seen |= byte", "pass", TEXTS),
    Fault(ENCODE, "hash_strings", "if _is_there(valid, row):", "if _is_there(valid, 0):", TEXTS),
    Fault(ENCODE, "hash_keys", "is_new &= found[place] != key", "pass", KEYS),
    Fault(ENCODE, "hash_keys", "range(first, total)", "range(first + 1, total)", KEYS),
    Fault(ENCODE, "hash_keys", "seen |= byte", "pass", KEYS),
    Fault(ENCODE, "hash_keys", "if position > begin:", "if position >= begin:", KEYS),
    Fault(ENCODE, "write_unique_keys", "rank = first_rank + row", "rank = first_rank + (row & 15)", UNIQUE),
    Fault(ENCODE, "hash_unique_keys", " * _POWER_OF_PREFIX", "", UNIQUE),
    Fault(ENCODE, "hash_unique_keys", "_UNIQUE_KEY_SIZE + digit", "_UNIQUE_KEY_SIZE + _PREFIX_SIZE", UNIQUE),
    Fault(
        ENCODE, "write_unique_keys", "first_rank + row", "first_rank + (row & 0xFFFF)", many(test_many_rows.unique_keys)
    ),
    Fault(
        ENCODE,
        "hash_unique_keys",
        "row * _UNIQUE_KEY_SIZE",
        "(row & 0xFFFF) * _UNIQUE_KEY_SIZE",
        many(test_many_rows.unique_keys),
    ),
    Fault(ENCODE, "hash_strings", "hashes[row] = ", "hashes[row & 0xFFFF] = ", many(test_many_rows.hashes_of_keys)),
    Fault(
        ENCODE,
        "hash_keys",
        "prefixes[0 if len(prefixes) == 1 else row]",
        "prefixes[0] + (row >> 16)",
        many(test_many_rows.hashes_of_keys),
    ),
    Fault(
        ENCODE,
        "join_records",
        "row * header_size, header_size",
        "(row & 0xFFFF) * header_size, header_size",
        many(test_many_rows.records),
    ),
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
