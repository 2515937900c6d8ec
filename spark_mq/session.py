"""The one place that builds a Spark session.

It sets what otherwise has to be set by hand, and when forgotten shows as "data source not found" or as a
query that hangs: the Python workers' interpreter, Java, where workers find this package, Delta's jars.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_mq.java import MINIMUM_MAJOR, find_java
from spark_mq.spark_versions import SparkNotFoundError, delta_artifact, not_installed, release_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES_ROOT = Path(__file__).resolve().parent.parent  # holds spark_mq, storage, pyspark_spark_mq
_LOG_SETTINGS = Path(__file__).resolve().with_name("log4j2.properties")

_APP_NAME = "spark_mq"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAR_PACKAGES = "spark.jars.packages"
_EXTENSIONS = "spark.sql.extensions"

_DELTA_GROUP = "io.delta:delta-spark"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}

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


class JavaNotFoundError(RuntimeError):
    """Spark cannot start: there is no Java, or only one that is too old."""


class DeltaNotFoundError(RuntimeError):
    """Delta Lake was requested where it cannot be had: in a JVM that runs without its jars, or for a Spark that it does not support."""


SESSION_ERRORS = (JavaNotFoundError, DeltaNotFoundError, SparkNotFoundError)


def build_session(
    app_name: str | None = None,
    *,
    master: str | None = None,
    delta: bool = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one in which `format("spark_mq")` works.

    What spark-submit, PYSPARK_SUBMIT_ARGS, spark-defaults.conf, MASTER or SPARK_REMOTE have set stays as it is; where nothing
    names a master, Spark takes `local[*]`. An argument wins over them, and a warning says so of `master`. `config` wins over
    every setting chosen here. With `delta`, Delta Lake's jars come from Maven Central on first use.

    Sets environment variables of this process (`prepare_environment`), because Spark takes the workers' interpreter from nowhere else.
    A JVM that runs already keeps its environment.

    Raises `SparkNotFoundError`, `JavaNotFoundError`, and with `delta` `DeltaNotFoundError`.
    """
    if find_spec("pyspark") is None:
        raise SparkNotFoundError(not_installed(ModuleNotFoundError("No module named 'pyspark'", name="pyspark")))
    requested = dict(config or {}) | {
        name: value for name, value in ((MASTER, master), (APP_NAME, app_name)) if value is not None
    }
    start = _start(os.environ)
    wanted = requested.get(MASTER)
    if wanted is not None:
        _say_what_it_replaces(wanted, start)
        if start.kind is not Kind.SESSION:
            os.environ.pop("SPARK_REMOTE", None)
    given = {name: setting.value for name, setting in start.given.items()}
    remote = None if wanted is not None else requested.get(REMOTE, given.get(REMOTE))
    is_local = (remote or wanted or given.get(MASTER) or "local").startswith("local")
    if start.kind is Kind.NOTHING and (remote is None or is_local):
        prepare_environment(os.environ, local=is_local)
    elif start.kind is Kind.SUBMITTED and is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if start.kind is Kind.SESSION or remote is not None:
        settings = query_settings(requested, given)
    else:
        settings = session_settings(
            requested, given, delta=delta, local=is_local, jvm_runs=start.kind is Kind.SUBMITTED
        )
    for name, value in settings.items():
        builder = builder.config(name, value)
    if delta and remote is None:
        packages = [name for name in settings.get(_JAR_PACKAGES, given.get(_JAR_PACKAGES, "")).split(",") if name]
        if not any(name.startswith(_DELTA_GROUP) for name in packages):
            builder = builder.config(_JAR_PACKAGES, ",".join([_delta(), *packages]))
    session: SparkSession = builder.getOrCreate()
    if delta and remote is None and start.kind is not Kind.NOTHING:
        _refuse_without_delta(session)
    return session


def _delta() -> str:
    """Delta's JVM artifact for the PySpark of this process. Raises DeltaNotFoundError where there is none, or no Python part."""
    from pyspark import __version__

    if find_spec("delta") is None:
        raise DeltaNotFoundError("the Python part of Delta Lake is not installed: pip install 'spark_mq[delta]'")
    try:
        return delta_artifact(release_of(__version__))
    except ValueError as error:
        raise DeltaNotFoundError(str(error)) from None


def _refuse_without_delta(session: Any) -> None:
    """A JVM takes no jars any more once it runs, and PySpark would say `TypeError: 'JavaPackage' object is not callable`."""
    if type(session._jvm.io.delta.tables.DeltaTable).__name__ == "JavaPackage":
        try:
            artifact = delta_artifact(release_of(session.version))
        except ValueError as error:
            raise DeltaNotFoundError(f"this Spark has no Delta Lake: {error}") from None
        raise DeltaNotFoundError(f"this Spark has no Delta Lake: start it with spark-submit --packages {artifact}")


class Kind(Enum):
    """The state before a session is requested."""

    NOTHING = "nothing"  # the session's JVM will be started
    SUBMITTED = "spark-submit"  # it has started the JVM, which has started this program
    SESSION = "the running session"


class _Start(NamedTuple):
    kind: Kind
    given: Mapping[str, Setting]


def _start(environ: Mapping[str, str]) -> _Start:
    session = _running_session()
    if session is not None:
        kind, settings = Kind.SESSION, dict(session.conf.getAll)
    elif "PYSPARK_GATEWAY_PORT" in environ:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        kind, settings = Kind.SUBMITTED, dict(SparkConf().getAll())
    else:
        return _Start(Kind.NOTHING, given_settings(environ))
    return _Start(kind, {name: Setting(value, kind.value) for name, value in settings.items()})


def _running_session() -> SparkSession | None:
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _say_what_it_replaces(master: str, start: _Start) -> None:
    given = start.given.get(REMOTE) or start.given.get(MASTER)
    if given is None or given.value == master:
        return
    if start.kind is Kind.SESSION:
        text = f"a session runs already on {given.value}: master {master} has no effect"
    else:
        text = f"build_session runs on {master}, as its argument says, and not on {given.value}, as {given.origin} says"
    warnings.warn(text, stacklevel=3)


def prepare_environment(environ: MutableMapping[str, str], *, local: bool) -> None:
    """Set what Spark's launcher and its Python workers take from the environment.

    On one machine (`local`) workers run this very interpreter; on a cluster the interpreter is another
    machine's matter, and what is set there stays. Raises `JavaNotFoundError`.
    """
    java = find_java(environ)
    if java is None:
        raise JavaNotFoundError(
            f"no Java {MINIMUM_MAJOR} or newer: not in JAVA_HOME ({environ.get('JAVA_HOME') or 'not set'}), "
            "on the path or where packages put it; Debian, Ubuntu: apt-get install openjdk-17-jre-headless"
        )
    environ["JAVA_HOME"] = str(java.home)
    if local:
        environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(_PACKAGES_ROOT) not in entries and _PACKAGES_ROOT.name not in ("site-packages", "dist-packages"):
        environ["PYTHONPATH"] = os.pathsep.join([*entries, str(_PACKAGES_ROOT)])


def query_settings(requested: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The settings that a running session can change; `given` ones stay, `requested` ones win."""
    ours = {
        "spark.sql.session.timeZone": "UTC",  # RocketMQ's timestamps are milliseconds of UTC
        "spark.sql.python.filterPushdown.enabled": "true",  # off by default: each filter a full scan
    }
    return {name: value for name, value in ours.items() if name not in given} | dict(requested)


def session_settings(
    requested: Mapping[str, str], given: Mapping[str, str], *, delta: bool, local: bool = True, jvm_runs: bool = False
) -> dict[str, str]:
    """Every Spark setting of a new session that is not `given` already. Lists of options and extensions are joined with theirs."""
    ours = {"spark.ui.showConsoleProgress": "false"}  # it writes over output lines
    if APP_NAME not in given:
        ours[APP_NAME] = _APP_NAME
    if local:
        ours["spark.ui.enabled"] = "false"
    if delta:
        ours |= _DELTA_CATALOG
    settings = {name: value for name, value in ours.items() if name not in given} | query_settings(requested, given)
    theirs = {**given, **requested}
    if not jvm_runs:  # Java reads its options when it starts
        log_settings = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
        settings[_JAVA_OPTIONS] = _joined(log_settings, theirs.get(_JAVA_OPTIONS), separator=" ")
    if delta:
        settings[_EXTENSIONS] = _joined(_DELTA_EXTENSION, theirs.get(_EXTENSIONS), separator=",")
    return settings


def _joined(ours: str, theirs: str | None, *, separator: str) -> str:
    return f"{ours}{separator}{theirs}" if theirs else ours


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and what gave it."""

    value: str
    origin: str


def given_settings(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Settings by name that a session which is started with this environment will have. Reads files, changes nothing.

    Spark's order (SparkSubmitArguments): the command line of spark-submit or PYSPARK_SUBMIT_ARGS, then the file of properties, then the
    variable MASTER, then `local[*]`. Read here because the interpreter of the workers has to be known before the JVM starts.
    """
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
    """The Spark directory of an installed pyspark: its package directory."""
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
