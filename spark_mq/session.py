"""The one place that builds a Spark session.

It sets what otherwise has to be set by hand, and when forgotten shows as "data source not found" or as a
query that hangs: the Python workers' interpreter, Java, where workers find this package, Delta's jars.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_mq.java import MINIMUM_MAJOR, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES_ROOT = Path(__file__).resolve().parent.parent  # holds spark_mq, storage, pyspark_spark_mq
_LOG_SETTINGS = Path(__file__).resolve().with_name("log4j2.properties")

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAR_PACKAGES = "spark.jars.packages"
_EXTENSIONS = "spark.sql.extensions"

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}


class JavaNotFoundError(RuntimeError):
    """Spark cannot start: there is no Java, or only one that is too old."""


def build_session(
    app_name: str = "spark_mq",
    *,
    master: str = "local[*]",
    delta: bool = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one in which `format("spark_mq")` works.

    Sets environment variables of this process (`prepare_environment`), because Spark takes the workers'
    interpreter from nowhere else. With `delta`, Delta Lake's jars come from Maven Central on first use.
    `config` wins over every setting chosen here. A JVM that runs already keeps its environment.

    Raises `JavaNotFoundError`.
    """
    prepare_environment(os.environ, local=master.startswith("local"))
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)

    from pyspark.sql import SparkSession

    settings = session_settings(master, config or {}, delta=delta)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if delta:
        from delta import configure_spark_with_delta_pip

        packages = [name for name in settings.get(_JAR_PACKAGES, "").split(",") if name]
        builder = configure_spark_with_delta_pip(builder, extra_packages=packages)
    session: SparkSession = builder.getOrCreate()
    return session


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


def session_settings(master: str, config: Mapping[str, str], *, delta: bool) -> dict[str, str]:
    """Every Spark setting of a session; lists of options and extensions are joined with those in `config`."""
    settings = {
        "spark.sql.session.timeZone": "UTC",  # RocketMQ's timestamps are milliseconds of UTC
        "spark.sql.python.filterPushdown.enabled": "true",  # off by default: each filter a full scan
        "spark.ui.showConsoleProgress": "false",  # writes over output lines
    }
    if master.startswith("local"):
        settings["spark.ui.enabled"] = "false"
    if delta:
        settings |= _DELTA_CATALOG
    settings |= config
    settings[_JAVA_OPTIONS] = _joined(
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}", config.get(_JAVA_OPTIONS), separator=" "
    )
    if delta:
        settings[_EXTENSIONS] = _joined(_DELTA_EXTENSION, config.get(_EXTENSIONS), separator=",")
    return settings


def _joined(ours: str, theirs: str | None, *, separator: str) -> str:
    return f"{ours}{separator}{theirs}" if theirs else ours
