"""A quick choice of tests with each Python and with the lowest and newest dependencies; writes docs/tables/versions.md.

    python -m tests.support.version_matrix docs/tables/versions.md [3.12 …]

`make test-versions` runs it. A Python that is not there and cannot be had is a row that says so. Needs no Spark.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.places import PROJECT

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
QUICK = ("tests/files", "tests/remoting", "tests/test_without_spark.py")
SHOWN = ("numpy", "pyarrow", "fsspec", "isal", "lz4", "zstandard", "typer", "rich", "numba", "s3fs", "deltalake")
TIMEOUT_S = 900
HEAD = f"""\
# Pythons and dependencies

`make test-versions` installs the package and its extras `fast`, `s3`, `rocksdb`, `archive`, `acl` and `metrics`, without Spark, for each
Python, with the lowest versions that `pyproject.toml` allows and that have a wheel for that Python, and with the newest ones. It runs these
without the slow tests:
{", ".join(f"`{place}`" for place in QUICK)}.

"""


class Tried(NamedTuple):
    python: str
    bounds: str
    outcome: str
    versions: str

    def line(self) -> str:
        return f"| {' | '.join(self)} |\n"


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
        return Tried(wanted, bounds, "not tried: no such Python here, and uv could not download it", "")
    with tempfile.TemporaryDirectory(prefix="spark_mq-versions-") as directory:
        env = Path(directory, "env")
        its_python = env / "bin" / "python"
        _run(_uv(), "venv", "--quiet", "--no-config", "--python", python, env)
        installed = _run(
            *(
                _uv(),
                "pip",
                "install",
                "--quiet",
                "--no-config",
                "--python",
                its_python,
                "--resolution",
                RESOLUTIONS[bounds],
            ),
            *(
                "--only-binary",
                ":all:",
                "--no-binary",
                "spark_mq",
                "--group",
                "pyproject.toml:test",
                "--editable",
                ".[fast,s3,rocksdb,archive,acl,metrics]",
            ),
        )
        if installed.returncode:
            return Tried(wanted, bounds, f"not installed: {_last(installed.stderr)}", "")
        try:
            done = _run(
                its_python,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                "not slow and not long and not spark",
                *QUICK,
            )
        except subprocess.TimeoutExpired:
            return Tried(wanted, bounds, f"not ended after {TIMEOUT_S} s", "")
        return Tried(wanted, bounds, _last(done.stdout), _versions(its_python))


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, arguments)), cwd=PROJECT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def _last(text: str) -> str:
    """The last line; pytest's without its time."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r" in [\d.]+s.*", "", lines[-1]) if lines else ""


def _versions(python: Path) -> str:
    listed = _run(_uv(), "pip", "freeze", "--no-config", "--python", python).stdout
    found = dict(re.findall(r"^([\w.-]+)==(\S+)$", listed, re.MULTILINE))
    return ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)


def _page(tried: Sequence[Tried]) -> str:
    rows = sorted(tried, key=lambda one: (one.python, list(RESOLUTIONS).index(one.bounds)))
    head = ("| Python | dependencies | tests | versions |\n", "| --- | --- | --- | --- |\n")
    return HEAD + "".join((*head, *(one.line() for one in rows)))


def main(arguments: Sequence[str]) -> int:
    page, *pythons = arguments
    tried = []
    for wanted in pythons or PYTHONS:
        for bounds in RESOLUTIONS:
            tried.append(try_one(wanted, bounds))
            print(tried[-1].line(), end="", flush=True)
            (PROJECT / page).write_text(_page(tried), encoding="utf-8")
    return int(any("failed" in one.outcome or "error" in one.outcome for one in tried))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
