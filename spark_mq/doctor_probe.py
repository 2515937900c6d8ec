"""Report of a Python worker's environment; `doctor` runs this text in the worker's interpreter and reads the answer.

Arguments: names of distributions whose versions to print. Written for any Python 3.8 or newer and
without this package, since the interpreter may be the wrong one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import pkgutil
import sys
from typing import Any

MARKER = "spark_mq_probe "
MODULES = ("pyspark", "pyarrow", "numpy", "spark_mq")


def report(distributions: list[str]) -> dict[str, Any]:
    """Interpreter, versions and the outcome of Spark's search for data sources."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    return {
        "prefix": sys.prefix,
        "version": list(sys.version_info[:3]),
        "missing": missing,
        "versions": {name: _version(name) for name in distributions},
        "sources": [] if "pyspark" in missing else [_source(info) for info in _candidates()],
    }


def _candidates() -> list[pkgutil.ModuleInfo]:
    return [info for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _source(info: pkgutil.ModuleInfo) -> dict[str, str | None]:
    """The same steps as Spark's look-up takes with one module; `error` is what it would hide."""
    from pyspark.sql.datasource import DataSource

    found: dict[str, str | None] = {"module": info.name, "file": None, "format": None, "error": None}
    try:
        spec = importlib.util.find_spec(info.name)
        found["file"] = spec.origin if spec else None
        module = importlib.import_module(info.name)
        if hasattr(module, "DefaultSource") and issubclass(module.DefaultSource, DataSource):
            found["format"] = module.DefaultSource.name()
            found["error"] = getattr(module.DefaultSource, "import_error", None)
    except BaseException as error:  # a module may even call sys.exit, and Spark's look-up ends there
        found["error"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    print("\n" + MARKER + json.dumps(report(sys.argv[1:])))
