"""The pages under docs/ hold: their examples run as they stand, their tables are the code's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import spark_mq
from tests.support.places import PROJECT
from tests.support.python_script import run_script


def examples(page: str) -> list[str]:
    """The Python code of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_package_lists_what_it_gives_before_anything_of_it_is_loaded() -> None:
    shown = [name for name in dir(spark_mq) if not name.startswith("_")]
    assert shown == sorted(name for name in spark_mq.__all__ if not name.startswith("_"))
    assert all(callable(getattr(spark_mq, name)) for name in shown)


@pytest.mark.spark
@pytest.mark.slow
def test_the_recipes_run_one_after_the_other(tmp_path: Path) -> None:
    """Ends with what the recipes leave behind: 1,000 orders once in a table, twice copied, and gauges of every queue."""
    ending = """
print("sum", spark.read.format("delta").load("tables/orders").selectExpr("sum(amount)").first()[0])
import time
until = time.monotonic() + 60
while generate_latest().decode().count("spark_mq_lag_rows{") < 4 and time.monotonic() < until:
    time.sleep(0.1)
print(generate_latest().decode())
server.shutdown()
"""
    ran = run_script("\n".join([*examples("recipes.md"), ending]), tmp_path, timeout_s=600)
    assert ran.returncode == 0, ran.stderr
    for shown in (
        "|       9|  100|",  # the table of the stream: each customer's orders, none twice
        "|customer 9|",  # the backfill
        "|  TopicRetry|",  # the dead letters
        "| all-orders| 1000|",  # foreachBatch
        "|paid-orders| 1000|",
        "sum 249750.0",
        'spark_mq_lag_rows{broker="broker-lab",query="watched",queue="3",topic="TopicA"}',
    ):
        assert shown in ran.stdout, ran.stdout


def test_the_wheel_holds_all_that_the_package_needs(tmp_path: Path) -> None:
    """Built, unpacked and run away from the clone: the example store is in it, and every module."""
    clone, site = tmp_path / "clone", tmp_path / "site"
    packages = ("storage", "spark_mq", "jobs")
    for package in packages:
        shutil.copytree(PROJECT / package, clone / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_spark_mq.py"):
        shutil.copy(PROJECT / name, clone)
    building = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir"]
    subprocess.run([sys.executable, *building, str(tmp_path), str(clone)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    modules = {path.relative_to(PROJECT) for package in packages for path in (PROJECT / package).rglob("*.py")}
    assert modules <= {path.relative_to(site) for path in site.rglob("*.py")}
    assert (site / "pyspark_spark_mq.py").is_file()
    script = """
import sys, spark_mq
from spark_mq.cli import main
print(spark_mq.__file__)
sys.argv[1:] = ["topics", spark_mq.unpack_example_store("example")]
main()
"""
    ran = run_script(script, tmp_path, packages=site)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(site))
    assert "TopicA" in ran.stdout
