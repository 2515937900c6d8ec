"""What Spark is told from outside of the program, before there is a session: by spark-submit, variables and files.

Spark's order (SparkSubmitArguments): the command line of spark-submit or PYSPARK_SUBMIT_ARGS, then the file of properties, then the
variable MASTER, then `local[*]`. Read here because the interpreter of the workers has to be known before the JVM starts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

MASTER = "spark.master"
REMOTE = "spark.remote"
APP_NAME = "spark.app.name"

SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_FLAGS = {
    "--master": MASTER,
    "--name": APP_NAME,
    "--packages": "spark.jars.packages",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-memory": "spark.driver.memory",
}
_CONF_FLAGS = ("--conf", "-c")
_PROPERTIES_FLAG = "--properties-file"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and what gave it."""

    value: str
    origin: str


def given_settings(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Settings by name that a session which is started with this environment will have. Reads files, changes nothing."""
    found: dict[str, Setting] = {}
    if environ.get("MASTER"):
        found[MASTER] = Setting(environ["MASTER"], "MASTER")
    arguments, properties = _of_command_line(environ.get(SUBMIT_ARGUMENTS, ""))
    file = Path(properties) if properties else _defaults_file(environ)
    if file is not None:
        found |= {name: Setting(value, str(file)) for name, value in _properties(file)}
    found |= {name: Setting(value, SUBMIT_ARGUMENTS) for name, value in arguments.items()}
    if environ.get("SPARK_REMOTE"):
        found[REMOTE] = Setting(environ["SPARK_REMOTE"], "SPARK_REMOTE")
    return found


def _of_command_line(text: str) -> tuple[dict[str, str], str | None]:
    """Settings, and the file of properties that is named. What else stands there is Spark's business."""
    settings: dict[str, str] = {}
    properties = None
    words = iter(shlex.split(text))
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in (*_FLAGS, *_CONF_FLAGS, _PROPERTIES_FLAG):
            continue
        if not equals:
            value = next(words, "")
        if flag in _CONF_FLAGS:
            name, _, value = value.partition("=")
            settings[name] = value
        elif flag == _PROPERTIES_FLAG:
            properties = value
        else:
            settings[_FLAGS[flag]] = value
    return settings, properties


def _defaults_file(environ: Mapping[str, str]) -> Path | None:
    folder = environ.get("SPARK_CONF_DIR")
    if not folder:
        home = environ.get("SPARK_HOME") or _packaged_home()
        folder = home and os.path.join(home, "conf")
    return Path(folder, "spark-defaults.conf") if folder else None


def _packaged_home() -> str | None:
    """Where an installed pyspark keeps Spark: beside itself."""
    spec = find_spec("pyspark")
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def _properties(file: Path) -> Iterator[tuple[str, str]]:
    """The lines `name value` or `name=value` of a file; none where there is none that can be read (Spark says so itself)."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for line in text.splitlines():
        setting = re.fullmatch(r"\s*([^#!\s=:][^\s=:]*)\s*[\s=:]\s*(.*?)\s*", line)
        if setting:
            yield setting[1], setting[2]
