"""Compiled code is used only where it may lie safely, where it pays, and where it works; elsewhere everything works without it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import zlib
from pathlib import Path
from unittest import mock

import pytest

from storage import compiler
from storage.compiler import (
    COMPILED,
    ENVIRONMENT,
    ROWS_BETWEEN_LOOKS,
    ROWS_THAT_PAY,
    ROWS_WITHOUT_KERNELS,
    Kernels,
    Unusable,
    begin_attempt,
    cache_home,
    mode_of_environment,
    own_directory,
)
from tests.support.places import PROJECT

KEY_CRC = zlib.crc32(b"key") & 0x7FFFFFFF


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("value", "mode"),
    [(None, "auto"), ("", "auto"), ("off", "off"), (" ON ", "on"), ("check", "check"), ("yes", "off")],
)
def test_the_environment_says_which_mode(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str | None, mode: str
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    if value is not None:
        monkeypatch.setenv(ENVIRONMENT, value)
    assert mode_of_environment() == mode
    assert len(caplog.records) == (value == "yes")


def test_a_cache_is_made_for_the_user_alone(cache: Path) -> None:
    made = own_directory(cache_home() / "kernels-1")
    assert made == cache / "spark_mq" / "kernels-1"
    assert [path.stat().st_mode & 0o777 for path in (made, made.parent)] == [0o700, 0o700]
    assert own_directory(made) == made


@pytest.mark.parametrize("place", ["", "kernels-1"])
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_cache_that_others_may_write_is_none(cache: Path, place: str, mode: int) -> None:
    """Who writes there runs code in this process."""
    made = own_directory(cache_home() / "kernels-1")
    (cache_home() / place).chmod(mode)
    with pytest.raises(Unusable, match="others may write there"):
        own_directory(made)


def test_nor_is_one_that_others_may_replace(cache: Path) -> None:
    own_directory(cache_home() / "kernels-1")
    cache.chmod(0o777)
    with pytest.raises(Unusable, match="can be changed by other users"):
        own_directory(cache_home() / "kernels-1")
    cache.chmod(0o1777)  # as /tmp: only its owner may replace a directory there
    own_directory(cache_home() / "kernels-1")


def test_nor_is_another_user_s(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_directory(cache_home() / "kernels-1")
    monkeypatch.setattr(compiler.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unusable, match="is another user's"):
        own_directory(cache_home() / "kernels-1")


def test_nor_is_a_link_to_one(cache: Path, tmp_path: Path) -> None:
    own_directory(cache_home() / "kernels-1")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    (cache_home() / "kernels-2").symlink_to(theirs)
    with pytest.raises(Unusable):
        own_directory(cache_home() / "kernels-2")


def test_nor_is_a_file(cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(Unusable, match="no place for compiled code"):
        own_directory(cache_home() / "kernels-1")


def test_with_any_umask_a_user_s_first_cache_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    before = os.umask(0o002)
    try:
        made = own_directory(cache_home() / "kernels-1")
    finally:
        os.umask(before)
    assert {
        place.stat().st_mode & 0o777 for place in (made, *made.parents) if place.is_relative_to(tmp_path / "home")
    } == {0o700}


def test_one_process_begins_to_compile_and_another_after_a_while(tmp_path: Path) -> None:
    assert begin_attempt(tmp_path)
    assert not begin_attempt(tmp_path)
    os.utime(tmp_path / "attempt", (1, 1))
    assert begin_attempt(tmp_path)


def test_without_numba_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "storage.kernels")
    without = Kernels(COMPILED.name, "auto")
    with mock.patch.object(compiler.importlib.util, "find_spec", return_value=None):
        assert [without.load() for _ in range(3)] == [None] * 3
    assert [record.message for record in caplog.records] == [
        "no compiled kernels: Numba is not installed: pip install 'spark_mq[fast]' makes reading faster"
    ]
    assert without.is_refused


def test_without_a_safe_cache_nobody_compiles(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("numba")
    cache.write_text("")
    caplog.set_level(logging.INFO, "storage.kernels")
    without = Kernels(COMPILED.name, "auto")
    with mock.patch.object(compiler.subprocess, "Popen", side_effect=AssertionError):
        assert without.load() is None
    assert "no place for compiled code" in (without.refusal or "")
    assert len(caplog.records) == 1


def test_a_spoilt_cache_or_compiler_is_none(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("numba")
    broken = Kernels(COMPILED.name, "on")
    with mock.patch.object(compiler, "import_module", side_effect=RuntimeError("spoilt")):
        assert broken.load() is None
    assert broken.refusal == "they cannot be loaded: RuntimeError: spoilt"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_who_finds_a_spoilt_cache_leaves_none(cache: Path) -> None:
    """Else nobody would have kernels until somebody deletes it; and they are not compiled again and again."""
    pytest.importorskip("numba")
    broken = Kernels(COMPILED.name, "auto")
    directory = broken.directory()
    (directory / "code").mkdir()
    for name in ("complete", "attempt", "code/one.nbi"):
        (directory / name).touch()
    with mock.patch.object(compiler, "import_module", side_effect=EOFError):
        assert broken.load() is None
    assert broken.is_refused
    assert [path.name for path in directory.rglob("*")] == ["attempt"]


@pytest.mark.parametrize("setting", ["DISABLE_JIT", "CPU_NAME", "CPU_FEATURES"])
def test_where_numba_is_told_otherwise_there_are_none(
    cache: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Functions that are not compiled do not work; code for another processor ends the process."""
    config = pytest.importorskip("numba").config
    monkeypatch.setattr(config, setting, "1")
    told = Kernels(COMPILED.name, "on")
    with mock.patch.object(compiler, "import_module", side_effect=AssertionError):
        assert told.load() is None
    assert f"NUMBA_{setting} is set" in (told.refusal or "")


def test_where_nothing_is_compiled_another_process_does_it(cache: Path) -> None:
    """Once, and this one goes on without."""
    pytest.importorskip("numba")
    waiting = Kernels(COMPILED.name, "auto")
    with mock.patch.object(compiler.subprocess, "Popen") as helper:
        helper.return_value.poll.return_value = None
        assert [waiting.load(), waiting.load(), Kernels(COMPILED.name, "auto").load()] == [None] * 3
    assert helper.call_count == 1
    asked = helper.call_args.kwargs
    assert asked["process_group"] == 0, "Ctrl-C is not meant for it"
    assert not asked.get("start_new_session"), "niceness counts among the processes of a session (sched_autogroup)"
    assert not waiting.is_refused
    (directory,) = cache_home().iterdir()
    (directory / "complete").touch()
    with mock.patch.object(compiler, "import_module", return_value=compiler):
        assert waiting.load() is compiler


def test_kernels_wait_until_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Kernels(COMPILED.name, "auto")
    loads: list[None] = []
    monkeypatch.setattr(waiting, "load", lambda: loads.append(None))
    for _ in range(ROWS_THAT_PAY // 1_000 - 1):
        assert waiting.for_rows(1_000) is None
    for _ in range(1_000):  # a server's reads
        assert waiting.for_rows(ROWS_WITHOUT_KERNELS - 1) is None
    assert not loads
    waiting.for_rows(1_000)
    waiting.for_rows(ROWS_BETWEEN_LOOKS - 1)
    assert len(loads) == 1
    waiting.for_rows(ROWS_WITHOUT_KERNELS)
    assert len(loads) == 2


def test_a_child_of_a_process_that_is_loading_goes_without() -> None:
    parent = Kernels(COMPILED.name, "on")
    parent.after_fork()
    assert not parent.is_refused
    parent._is_loading = True
    parent.after_fork()
    assert parent.is_refused


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_who_imports_the_engine_imports_no_compiler() -> None:
    """PySpark's daemon and every small job."""
    code = "import sys, storage, spark_mq.source, spark_mq.sink; print(*{'numba', 'llvmlite'} & set(sys.modules))"
    assert run("-c", code).stdout == "\n"


@pytest.mark.slow
def test_a_process_compiles_for_those_that_come_later(cache: Path) -> None:
    pytest.importorskip("numba")
    ended = run("-m", "storage.format.kernels", **{ENVIRONMENT: "on"})
    assert (ended.returncode, ended.stderr) == (0, "")
    code = (
        "from storage.compiler import COMPILED, ROWS_THAT_PAY\n"
        "module = COMPILED.for_rows(ROWS_THAT_PAY)\n"
        "stats = module.bodies.stats\n"
        "import numpy, numba\n"
        "from storage.format.arrays import body_crc, crcs_between\n"
        "print(*crcs_between(numpy.frombuffer(b'key', 'u1'), numpy.array([0]), numpy.array([3])), body_crc(b'key'))\n"
        "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))\n"
        "print(numba.njit(lambda numbers: len([2 * number for number in numbers]))((1, 2, 3)))"
    )
    assert run("-c", code, **{ENVIRONMENT: "auto"}).stdout == f"{KEY_CRC} {KEY_CRC}\n1 0\n3\n"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_code_is_neither_taken_from_nor_kept_in_another_place(cache: Path, tmp_path: Path, when: str) -> None:
    """Numba has places of its own, among them the sources' directory; its variables lead there, also one that is set later."""
    pytest.importorskip("numba")
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "two.py").write_text(
        "import os\n"
        "from storage.format.kernels import ground as g\n"
        "@g.kernel(g.types.int64(g.types.int64))\n"
        "def one(number): return number + 1\n"
        "os.environ['NUMBA_OPT'] = '2'\n"
        "@g.kernel(g.types.int64(g.types.int64))\n"
        "def two(number): return number + 2\n"
        "@g.kernel(g.types.int64(g.types.int64))\n"
        "def three(number): return number + 3\n"
    )
    code = "from storage.compiler import Kernels; two = Kernels('two'); print(two.load(), two.refusal)"
    places = {"NUMBA_CACHE_LOCATOR_CLASSES": "InTreeCacheLocator"} if when == "before" else {}
    ended = run("-c", code, PYTHONPATH=os.pathsep.join([str(PROJECT), str(sources)]), **{ENVIRONMENT: "on"}, **places)
    assert ended.stdout.startswith("None Numba keeps compiled code in"), ended
    assert not list(sources.rglob("*.nb?"))


@pytest.mark.slow
def test_kernels_stay_within_their_arrays_whatever_rows_come() -> None:
    """Every load and store is held against its bounds."""
    pytest.importorskip("numba")
    ended = run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        "not slow",
        "tests/format/kernels",
        **{ENVIRONMENT: "check"},
    )
    assert ended.returncode == 0, ended.stdout[-3_000:]


@pytest.mark.slow
def test_a_kernel_that_leaves_its_arrays_is_noticed_by_the_checks() -> None:
    pytest.importorskip("numba")
    code = (
        "import numpy as np\n"
        "from storage.compiler import cached_in\n"
        "with cached_in(None):\n"
        "    from storage.format.kernels import ground as g\n"
        "    @g.kernel(g.types.int64(g.READ, g.types.int64))\n"
        "    def outside(array, position): return g.le_i64(array, position)\n"
        "array = np.zeros(16, np.uint8); array.flags.writeable = False\n"
        "print(outside(array, 8))\n"
        "for position in (9, 16, -1, 2**63 - 1):\n"
        "    try: outside(array, position)\n"
        "    except IndexError as error: print(error)\n"
    )
    assert run("-c", code, **{ENVIRONMENT: "check"}).stdout == "0\n" + 4 * "argument 0 is left\n"
