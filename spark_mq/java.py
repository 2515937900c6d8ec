"""The Java that Spark will run on.

Looked for in this order: `JAVA_HOME`, `java` on the path, then the folders where packages put it (there the
oldest that is new enough first: nearest to what Spark was tested with). What is too old is passed over.
The installation runs this before anything is installed, so it imports the standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MINIMUM_MAJOR = 17  # Spark 4

JVM_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)

_PROBE_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java: `bin/java` lies under `home`."""

    home: Path
    version: str  # as Java spells it: 1.8.0_402, 17.0.15, 25

    @property
    def major(self) -> int:
        """The feature release: 8 for 1.8.0_402, 17 for 17.0.15, 26 for 26-ea."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]

    @property
    def is_recent_enough(self) -> bool:
        return self.major >= MINIMUM_MAJOR


def find_java(environ: Mapping[str, str] = os.environ, jvm_folders: Sequence[str] = JVM_FOLDERS) -> Java | None:
    """The first Java that Spark can run on, None if there is none. Changes nothing."""
    return next((java for java in _installed(environ, jvm_folders) if java.is_recent_enough), None)


def java_on_path(environ: Mapping[str, str]) -> Java | None:
    """The Java that `java` runs in a shell with this environment."""
    executable = shutil.which("java", path=environ.get("PATH", ""))
    return None if executable is None else inspect_java(Path(executable))


def inspect_java(executable: Path) -> Java | None:
    """The Java behind an executable, None if it is not there or does not run.

    Reads the `release` file in the executable's home. A launcher elsewhere (a version manager's, macOS's) is run
    instead, which costs a Java start.
    """
    if not os.access(executable, os.X_OK) or executable.is_dir():
        return None
    home = executable.resolve().parent.parent
    version = _released_version(home)
    if version is not None and executable.resolve() == home / "bin" / "java":
        return Java(home, version)
    return _run_launcher(executable)


def _installed(environ: Mapping[str, str], jvm_folders: Sequence[str]) -> Iterator[Java]:
    if environ.get("JAVA_HOME"):
        named = inspect_java(Path(environ["JAVA_HOME"], "bin", "java"))
        if named is not None:
            yield named
    on_path = java_on_path(environ)
    if on_path is not None:
        yield on_path
    executables = [home / "bin" / "java" for pattern in jvm_folders for home in _matching(pattern)]
    packaged = (inspect_java(executable) for executable in executables)
    yield from sorted((java for java in packaged if java is not None), key=lambda java: (java.major, java.home))


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _released_version(home: Path) -> str | None:
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="(\d[^"]*)"', text, re.MULTILINE)
    return match and match[1]


def _run_launcher(executable: Path) -> Java | None:
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    home = re.search(r"^\s*java\.home = (.+?)\s*$", answer.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (\d\S*)", answer.stderr, re.MULTILINE)
    return Java(Path(home[1]), version[1]) if home and version else None


def main() -> int:
    """Print the home that was found; exit code 1 if there is none."""
    java = find_java()
    if java is None:
        print(f"no Java {MINIMUM_MAJOR} or newer found", file=sys.stderr)
        return 1
    print(java.home)
    return 0
