"""Why Spark says "data source not found", hangs or does not start: hidden causes, each with its cure.

Looks at the environment variables, the current directory and what a Python worker started from here would
import. Starts interpreters, but no JVM and no session. `spark_mq.build_session` sets interpreter and Java
itself, so findings about these concern sessions made otherwise (spark-submit, a notebook's own).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement

from spark_mq import doctor_probe
from spark_mq.java import JVM_FOLDERS, MINIMUM_MAJOR, find_java, inspect_java, java_on_path
from spark_mq.spark_versions import INSTALL
from storage.settings.load import (
    OF_A_BROKERS_PROCESS,
    StoreConfig,
    refuse_for_writing,
    unread_settings,
)

_PACKAGES_ROOT = Path(__file__).resolve().parent.parent
_SHADOWABLE = sys.stdlib_module_names | {
    "pyspark",
    "pyarrow",
    "numpy",
    "pandas",
    "py4j",
    "spark_mq",
    "storage",
    "jobs",
}
_PROBE_TIMEOUT_S = 120


class Severity(StrEnum):
    ERROR = "error"  # Spark will fail
    WARNING = "warning"  # a session that build_session did not make will fail
    NOTE = "note"  # worth knowing


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, the file or variable it was seen in, and what to do."""

    severity: Severity
    what: str
    where: str
    cure: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that is looked at."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path.cwd)  # current directory of the driver, and so of its workers
    interpreter: str = sys.executable  # runs the driver
    jvm_folders: Sequence[str] = JVM_FOLDERS
    ivy_folder: Path = field(default_factory=lambda: Path.home() / ".ivy2.5.2")  # Spark 4 fetches jars to here


class ProbeFailedError(Exception):
    """An interpreter did not answer."""

    def __init__(self, interpreter: str, reason: str) -> None:
        super().__init__(interpreter, reason)
        self.interpreter = interpreter
        self.reason = reason


def diagnose(surroundings: Surroundings | None = None) -> list[Finding]:
    """All findings, errors first; an empty list means that nothing was found. Changes nothing."""
    here = surroundings or Surroundings()
    requirements = _requirements()
    findings = [
        *check_java(here),
        *check_shadowed_modules(here),
        *check_driver(here, requirements),
        *check_worker_interpreter(here, requirements),
        *check_delta_jar(here),
    ]
    order = list(Severity)
    return sorted(dict.fromkeys(findings), key=lambda finding: order.index(finding.severity))


def check_java(here: Surroundings) -> Iterator[Finding]:
    """A JAVA_HOME that names no Java or an old one, an old `java` on the path, none at all."""
    home = here.environ.get("JAVA_HOME")
    found = find_java(here.environ, here.jvm_folders)
    if home:
        named = inspect_java(Path(home, "bin", "java"))
        cure = f"export JAVA_HOME={found.home}" if found else "unset JAVA_HOME"
        if named is None:
            yield Finding(Severity.ERROR, "JAVA_HOME names no Java", f"JAVA_HOME={home}", cure)
        elif not named.is_recent_enough:
            what = f"JAVA_HOME names Java {named.version}, Spark needs {MINIMUM_MAJOR} or newer"
            yield Finding(Severity.ERROR, what, f"JAVA_HOME={home}", cure)
    if found is None:
        yield Finding(
            Severity.ERROR,
            f"no Java {MINIMUM_MAJOR} or newer",
            f"JAVA_HOME, the path, {', '.join(here.jvm_folders)}",
            "apt-get install openjdk-17-jre-headless, or the like of your system",
        )
    elif not home:
        on_path = java_on_path(here.environ)
        if on_path is None or not on_path.is_recent_enough:
            what = f"java on the path is version {on_path.version}" if on_path else "no java on the path"
            yield Finding(Severity.WARNING, what, "PATH", f"export JAVA_HOME={found.home}")


def check_shadowed_modules(here: Surroundings) -> Iterator[Finding]:
    """Files that a worker imports instead of another module, as its path begins with its directory."""
    for folder in dict.fromkeys([here.folder, *_python_path(here.environ)]):
        if not folder.is_dir() or folder.resolve() == _PACKAGES_ROOT:
            continue
        for entry in sorted(folder.iterdir()):
            is_module = entry.suffix == ".py" or (entry / "__init__.py").is_file()
            if is_module and entry.stem in _SHADOWABLE:
                yield Finding(
                    Severity.WARNING if entry.stem == "jobs" else Severity.ERROR,
                    f"hides the module {entry.stem} from every Python that starts there",
                    str(entry),
                    "rename it, or start Spark in another directory",
                )


def check_driver(here: Surroundings, requirements: Sequence[Requirement]) -> Iterator[Finding]:
    """Missing packages, versions that were not tested together and broken `pyspark_*` modules."""
    try:
        seen = _probe(here, here.interpreter, requirements)
    except ProbeFailedError as failure:
        yield Finding(
            Severity.ERROR,
            f"Python does not start here: {failure.reason}",
            f"{failure.interpreter} in {here.folder}",
            "look at that error; a file in this directory or on PYTHONPATH is the usual cause",
        )
        return
    if not requirements:
        yield Finding(
            Severity.NOTE,
            "spark_mq is used without being installed, so versions are not compared",
            str(_PACKAGES_ROOT),
            "pip install it",
        )
    if seen["missing"]:
        what = f"cannot import {', '.join(seen['missing'])}"
        yield Finding(Severity.ERROR, what, here.interpreter, f"{INSTALL} (in a clone: make setup)")
    yield from _wrong_versions(seen, here.interpreter, requirements)
    yield from _broken_sources(seen, here.interpreter)


def check_worker_interpreter(here: Surroundings, requirements: Sequence[Requirement]) -> Iterator[Finding]:
    """The Python that Spark starts workers with by default: PYSPARK_PYTHON, else `python3` on the path."""
    chosen = here.environ.get("PYSPARK_PYTHON")
    severity = Severity.ERROR if chosen else Severity.WARNING
    name = f"PYSPARK_PYTHON={chosen}" if chosen else "PYSPARK_PYTHON is not set: python3 on the path"
    cure = f"export PYSPARK_PYTHON={here.interpreter}, or build sessions with spark_mq.build_session"
    worker = shutil.which(chosen or "python3", path=here.environ.get("PATH", ""))
    if worker is None:
        yield Finding(severity, "the workers' Python does not exist", name, cure)
        return
    if worker == here.interpreter:
        return
    where = name if chosen else f"{name} ({worker})"
    try:
        seen = _probe(here, worker, requirements)
    except ProbeFailedError as failure:
        yield Finding(severity, f"the workers' Python does not start: {failure.reason}", where, cure)
        return
    if seen["missing"]:
        yield Finding(severity, f"the workers' Python cannot import {', '.join(seen['missing'])}", where, cure)
    if seen["version"][:2] != list(sys.version_info[:2]):
        theirs, ours = (".".join(map(str, version[:2])) for version in (seen["version"], sys.version_info))
        yield Finding(severity, f"the workers' Python is {theirs}, the driver's {ours}", where, cure)
    if not seen["missing"]:
        yield from _wrong_versions(seen, worker, requirements)
        yield from _broken_sources(seen, worker)


def check_delta_jar(here: Surroundings) -> Iterator[Finding]:
    """Whether the first session with Delta will have to fetch its jars."""
    jars = here.ivy_folder / "jars"
    if not any(jars.glob("io.delta_delta-spark*.jar")):
        yield Finding(
            Severity.NOTE,
            "Delta's jars are not here yet: the first session with Delta fetches them from Maven Central",
            str(jars),
            "nothing to do with access to the internet; else copy this folder from a machine that has it",
        )


def check_settings(config: StoreConfig) -> Iterator[Finding]:
    """Findings about a broker.conf: what keeps a store from being written, what takes no effect here; none where no file is.

    Values are not shown: one may be a password.
    """
    where = config.file or ""
    for reason in refuse_for_writing(config):
        yield Finding(Severity.WARNING, f"the store cannot be written: {reason}", where, "let its broker write")
    for text in config.warnings:
        yield Finding(Severity.WARNING, text, where, "correct the line")
    for name in unread_settings(config.settings):
        if name in OF_A_BROKERS_PROCESS:
            what, cure = "says where a broker's process is; spark_mq starts none", "nothing to do"
        else:
            what, cure = "takes no effect: a broker follows it, spark_mq does not", "do not rely on it here"
        yield Finding(Severity.NOTE, f"{name} {what}", where, cure)


def _wrong_versions(
    seen: Mapping[str, Any], interpreter: str, requirements: Sequence[Requirement]
) -> Iterator[Finding]:
    for requirement in requirements:
        version = seen["versions"][requirement.name]
        if version is not None and not requirement.specifier.contains(version, prereleases=True):
            what = f"{requirement.name} {version} is installed, spark_mq needs {requirement.specifier}"
            cure = f"{interpreter} -m pip install '{requirement.name}{requirement.specifier}'"
            yield Finding(Severity.ERROR, what, interpreter, cure)


def _broken_sources(seen: Mapping[str, Any], interpreter: str) -> Iterator[Finding]:
    if "pyspark" in seen["missing"]:
        return
    for source in seen["sources"]:
        if source["error"] is None:
            continue
        if source["format"] is None:
            what = f"{source['module']} hides every Python data source from Spark: {source['error']}"
            cure = "repair or uninstall it"
        else:
            what = f"format {source['format']} is there but cannot be used: {source['error']}"
            cure = "install what is missing (make setup)"
        yield Finding(Severity.ERROR, what, source["file"] or source["module"], cure)
    if all(source["module"] != "pyspark_spark_mq" for source in seen["sources"]):
        yield Finding(
            Severity.WARNING,
            'Spark does not find format("spark_mq") by itself: pyspark_spark_mq is not on the path of',
            interpreter,
            "install spark_mq there, set PYTHONPATH, or call spark_mq.register(spark)",
        )


def _probe(here: Surroundings, interpreter: str, requirements: Sequence[Requirement]) -> dict[str, Any]:
    """The report of a worker started in these surroundings. Raises `ProbeFailedError`."""
    script = Path(doctor_probe.__file__).read_text(encoding="utf-8")
    names = [requirement.name for requirement in requirements]
    try:
        answer = subprocess.run(
            [interpreter, "-c", script, *names],
            cwd=here.folder,
            env=dict(here.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise ProbeFailedError(interpreter, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise ProbeFailedError(interpreter, f"no answer in {_PROBE_TIMEOUT_S} s") from error
    for line in reversed(answer.stdout.splitlines()):
        if line.startswith(doctor_probe.MARKER):
            seen: dict[str, Any] = json.loads(line.removeprefix(doctor_probe.MARKER))
            return seen
    last_words = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
    raise ProbeFailedError(interpreter, last_words[0])


def _requirements() -> list[Requirement]:
    """The requirements of spark_mq for Spark, from its installed metadata; empty if it is not installed."""
    try:
        texts = importlib.metadata.requires("spark_mq") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    requirements = [Requirement(text) for text in texts]
    return [each for each in requirements if each.marker is None or _is_for_spark(each.marker)]


def _is_for_spark(marker: Marker) -> bool:
    return any(marker.evaluate({"extra": extra}) for extra in ("", "spark"))


def _python_path(environ: Mapping[str, str]) -> list[Path]:
    return [Path(entry) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
