"""Faults planted into decode kernels: the comparison with the exact path notices each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from storage.format.arrays import Memory
from tests.format.kernels import fuzz_decode
from tests.support.kernels import loaded
from tests.support.shares import one_in

pytestmark = pytest.mark.slow  # each is compiled

SEEDS = 40
"""How many seeds' windows a fault may survive."""


class Fault(NamedTuple):
    """Other text in a kernel's source."""

    kernel: str
    was: str
    becomes: str


FAULTS = {
    "another queue's record is taken": Fault("check", " or be_i32(rows.buffer, begin + _QUEUE_ID) != queue_id", ""),
    "a record of another place is taken": Fault("check", "!= rows.places[row]", "< 0"),
    "another topic of that length is taken": Fault("check", "topic, np.int64(0), topic_size)", "topic, np.int64(0), np.int64(0))"),
    "IPv6 hosts are taken for IPv4": Fault("walk", "& HOST_FLAGS", "& 0"),
    "any magic number is taken": Fault("walk", "magic != MAGIC_V1 and", "False and"),
    "lengths need not add up": Fault("walk", "!= begin + size:", "> begin + size:"),
    "a walk goes on behind what is no record": Fault("walk", "if topic_end < 0:", "if size < 0:"),
    "a walk's properties begin early": Fault("walk", "  properties[row] = topic_end + 2", "  properties[row] = topic_end + 1"),
    "the last topic is each record's": Fault("number_topics", "if ends[code] - begins[code] == size and", "if True or"),
    "a body begins a byte late": Fault("bodies", "begin + HEADER_SIZE, size)", "begin + HEADER_SIZE + 1, size)"),
    "a field is of the row before": Fault("fields", "wanted.longs[i, row] =", "wanted.longs[i, first] ="),
    "of equal names the first wins": Fault(
        "properties", "entries[column] = i\n", "entries[column] = max(entries[column], i * (entries[column] < 0))\n"
    ),
    "equal names stay in the map": Fault("properties", "                is_kept = False\n", "                is_kept = True\n"),
    "a name is known by eight bytes": Fault("properties", "begin + _WORD) & words[word + 3]) ^ words[word + 4]", "begin) & 0)"),
    "the end of a long name is not looked at": Fault("properties", "if size > 2 * _WORD and other == 0:", "if False:"),
    "separators behind a row are its own": Fault("properties", "mask &= inside", "mask &= mask"),
    "an empty value is a value": Fault("properties", " | (found[i + 2] == equals + 1)", ""),
    "surrogates are text": Fault("properties", "0x9F if lead == 0xED", "0xBF if lead == 0xED"),
    "a missing property is an empty one": Fault("properties", "texts.valid[column, row] = 0", "texts.valid[column, row] = 1"),
    "64 properties are too many": Fault("properties", "if count > 2 * MAX_ENTRIES:", "if count > 2 * MAX_ENTRIES - 2:"),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return loaded()


def planted(fault: Fault, kernels: ModuleType) -> Any:
    """The kernels with one of them compiled from other text."""
    module = sys.modules[getattr(kernels, fault.kernel).py_func.__module__]
    from storage.format.kernels import ground

    def of_one(*signatures: Any) -> Callable[[Any], Any]:
        compiled = compile_all(*signatures)
        return lambda function: compiled(function) if function.__name__ == fault.kernel else function

    compile_all, ground.kernel = ground.kernel, of_one
    try:
        names = names_of(module, fault.was, fault.becomes)
    finally:
        ground.kernel = compile_all
    return SimpleNamespace(**vars(kernels) | {fault.kernel: names[fault.kernel]})


def names_of(module: ModuleType, was: str = "", becomes: str = "") -> dict[str, Any]:
    """What the module's source defines where other text stands once in it; classes are those of the module."""
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        source = file.read()
    if was:
        assert source.count(was) == 1, "the fault's place is not found"
        source = source.replace(was, becomes)
    names = {
        "__name__": module.__name__,
        "__file__": module.__file__,
        "_as_it_was": lambda found: vars(module)[found.__name__],
    }
    exec(compile(source.replace("\nclass ", "\n@_as_it_was\nclass "), module.__file__, "exec"), names)
    return names


@pytest.mark.parametrize("what", one_in(6, FAULTS, others=pytest.mark.long))
def test_a_fault_in_a_kernel_is_noticed(what: str, kernels: ModuleType) -> None:
    faulty, memory = planted(FAULTS[what], kernels), Memory()
    for seed in count(1):
        assert seed <= SEEDS, "nobody noticed"
        try:
            fuzz_decode.play(faulty, seed, memory)
        except AssertionError:
            return


def test_the_kernels_as_they_are_pass(kernels: ModuleType) -> None:
    assert sum(fuzz_decode.play(kernels, seed, Memory()) for seed in range(1, 4)) > 60
