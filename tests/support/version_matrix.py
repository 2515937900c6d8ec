"""A quick choice of tests with each Python and with the lowest and newest dependencies; writes docs/tables/versions.md.

    python -m tests.support.version_matrix docs/tables/versions.md [3.12 …]

`make test-versions` runs it. A Python that is not there and cannot be had is a row that says so. Rows of Pythons that are not asked for
stay. Needs no Spark. Exit code: 1 if tests failed or the package could not be installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.places import PROJECT

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
QUICK = (
    *("tests/files", "tests/remoting", "tests/test_without_spark.py"),
    *("tests/archive/test_archiver.py", "tests/archive/test_upkeep.py"),
)
SHOWN = ("numpy", "pyarrow", "fsspec", "isal", "lz4", "zstandard", "typer", "rich", "numba", "s3fs", "deltalake")
TIMEOUT_S = 900
_NOT_TRIED, _NOT_INSTALLED, _NOT_ENDED = "not tried: ", "not installed: ", "not ended after "
HEAD = f"""\
# Pythons and dependencies

`make test-versions` installs the package and its extras `fast`, `s3`, `rocksdb`, `archive`, `acl` and `metrics`, without Spark, for
each Python, with the lowest versions that `pyproject.toml` allows and that have a wheel for that Python, and with the newest ones. It
runs these without the slow tests; a test that needs Spark is skipped:
{", ".join(f"`{place}`" for place in QUICK)}.

"""


class Tried(NamedTuple):
    python: str
    bounds: str
    outcome: str
    versions: str

    def line(self) -> str:
        return f"| {' | '.join(self)} |\n"

    @property
    def is_bad(self) -> bool:
        """Whether the package could not be installed, or its tests did not pass. A Python that is not there is no fault."""
        if self.outcome.startswith((_NOT_INSTALLED, _NOT_ENDED)):
            return True
        return not self.outcome.startswith(_NOT_TRIED) and not re.match(r"\d+ passed\b", self.outcome)


def find_python(wanted: str) -> str | None:
    """An interpreter of this version: one that uv finds or can download, or a version manager's; None if there is none."""
    found = subprocess.run(
        [_uv(), "python", "find", "--no-config", wanted], capture_output=True, text=True, check=False
    )
    if found.returncode == 0 and _is(found.stdout.strip(), wanted):
        return found.stdout.strip()
    kept = sorted(Path.home().glob(f".pyenv/versions/{wanted}.*/bin/python"))
    if kept:
        return str(kept[-1])
    done = subprocess.run(
        [_uv(), "python", "install", "--no-config", wanted], capture_output=True, text=True, check=False
    )
    return find_python(wanted) if done.returncode == 0 else None


def _is(python: str, wanted: str) -> bool:
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() == wanted


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv") or "uv"


def try_one(wanted: str, bounds: str) -> Tried:
    python = find_python(wanted)
    if python is None:
        return Tried(wanted, bounds, f"{_NOT_TRIED}no such Python here, and uv could not download it", "")
    with tempfile.TemporaryDirectory(prefix="spark_mq-versions-") as directory:
        env = Path(directory, "env")
        its_python = env / "bin" / "python"
        try:
            _run(_uv(), "venv", "--quiet", "--no-config", "--python", python, env)
            installed = _install(its_python, RESOLUTIONS[bounds])
            if installed.returncode:
                return Tried(wanted, bounds, f"{_NOT_INSTALLED}{_last(installed.stderr)}", "")
            choice = ("-q", "-p", "no:cacheprovider", "-m", "not slow and not long and not spark")
            done = _run(its_python, "-m", "pytest", *choice, *QUICK)
        except subprocess.TimeoutExpired as error:
            return Tried(wanted, bounds, f"{_NOT_ENDED}{TIMEOUT_S} s: {Path(error.cmd[0]).name} {error.cmd[1]}", "")
        if done.returncode:
            print(done.stdout, file=sys.stderr)
        return Tried(wanted, bounds, _last(done.stdout), _versions(its_python))


def _install(python: Path, resolution: str) -> subprocess.CompletedProcess[str]:
    """The package, its extras without Spark, and what tests need, as wheels."""
    how = ("--quiet", "--no-config", "--python", python, "--resolution", resolution)
    built = ("--only-binary", ":all:", "--no-binary", "spark_mq")
    what = ("--group", "pyproject.toml:test", "--editable", ".[fast,s3,rocksdb,archive,acl,metrics]")
    return _run(_uv(), "pip", "install", *how, *built, *what)


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, arguments)), cwd=PROJECT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def _last(text: str) -> str:
    """The last line; pytest's without its time."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r" in [\d.]+s.*", "", lines[-1]).strip("= ").replace("|", "/") if lines else ""


def _versions(python: Path) -> str:
    listed = _run(_uv(), "pip", "freeze", "--no-config", "--python", python).stdout
    found = dict(re.findall(r"^([\w.-]+)==(\S+)$", listed, re.MULTILINE))
    return ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)


def rows_of(page: str) -> list[Tried]:
    """The rows that a page has."""
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in page.splitlines()]
    return [Tried(*row) for row in cells if len(row) == 4 and row[1] in RESOLUTIONS]


def page_of(tried: Iterable[Tried]) -> str:
    rows = sorted(tried, key=lambda one: (_number(one.python), list(RESOLUTIONS).index(one.bounds)))
    head = ("| Python | dependencies | tests | versions |\n", "| --- | --- | --- | --- |\n")
    return HEAD + "".join((*head, *(one.line() for one in rows)))


def _number(python: str) -> list[int]:
    return [int(part) for part in python.split(".")]


def main(arguments: Sequence[str]) -> int:
    name, *pythons = arguments
    page = PROJECT / name
    kept = rows_of(page.read_text("utf-8")) if page.exists() else []
    found = {(one.python, one.bounds): one for one in kept}
    is_bad = False
    for wanted in pythons or PYTHONS:
        for bounds in RESOLUTIONS:
            found[wanted, bounds] = one = try_one(wanted, bounds)
            is_bad |= one.is_bad
            print(one.line(), end="", flush=True)
            page.write_text(page_of(found.values()), encoding="utf-8")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
