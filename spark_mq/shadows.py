"""Whether a file of somebody else's stands where our own top-level packages should be found.

Python looks in the directory of the script, or the current one, first: a `storage.py` there hides ours from every module here.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def refuse_shadows() -> None:
    """Raises ImportError where `storage` is not ours, without which nothing here works; warns of `jobs`. Imports neither."""
    storage, jobs = _stranger("storage"), _stranger("jobs")
    if storage is not None:
        raise ImportError(
            f"{storage} hides the package storage that belongs to spark_mq: rename it, or start Python in another directory"
        )
    if jobs is not None:
        warnings.warn(
            f"{jobs} hides the package jobs that belongs to spark_mq: `spark-mq job` and `python -m jobs.…` need another directory",
            stacklevel=3,
        )


def _stranger(name: str) -> str | None:
    """Where `import name` leads; None if that is our own package, or nowhere."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module that was put into sys.modules by hand
        return None
    if spec is None:
        return None
    found = spec.origin or next(iter(spec.submodule_search_locations or []), None)
    if found is None or Path(found).resolve().is_relative_to(_ROOT / name):
        return None
    return found
