"""What a session needs from its surroundings is found and set by itself."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from spark_mq import session
from spark_mq.java import Java, find_java, inspect_java
from tests.support.fake_java import make_java
from tests.support.places import PROJECT


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_402", 8), ("11.0.22", 11), ("17", 17), ("17.0.15", 17), ("21.0.2+13", 21), ("26-ea", 26)],
)
def test_a_java_version_has_a_feature_release(version: str, major: int) -> None:
    assert Java(Path("/java"), version).major == major


@pytest.mark.parametrize("release", [True, False], ids=["release file", "asked"])
def test_java_home_is_taken_first(tmp_path: Path, release: bool) -> None:
    named = make_java(tmp_path / "named", "21.0.2", release=release)
    on_path = make_java(tmp_path / "on path", "17.0.15")
    environ = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert find_java(environ, []) == Java(named, "21.0.2")


def test_a_wrong_or_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.22")
    good = make_java(tmp_path / "good", "17.0.15")
    for home in (old, tmp_path / "nowhere"):
        assert find_java({"JAVA_HOME": str(home), "PATH": str(good / "bin")}, []) == Java(good, "17.0.15")


def test_java_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.15")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(folder)}, []) == Java(home, "17.0.15")


def test_a_launcher_that_lies_elsewhere_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.15", release=False)
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    assert find_java({"PATH": f"{shim.parent}:/bin"}, []) == Java(home, "17.0.15")


def test_of_the_packaged_ones_the_oldest_new_enough_serves(tmp_path: Path) -> None:
    for version in ("25.0.1", "11.0.22", "17.0.15", "9"):
        make_java(tmp_path / f"java-{version}", version)
    (tmp_path / "no-java").mkdir()
    assert find_java({"PATH": ""}, [f"{tmp_path}/*"]) == Java(tmp_path / "java-17.0.15", "17.0.15")


def test_no_java_is_none(tmp_path: Path) -> None:
    make_java(tmp_path / "old", "1.8.0_402")
    assert find_java({"PATH": str(tmp_path / "old" / "bin")}, [f"{tmp_path}/*"]) is None
    assert inspect_java(tmp_path) is None
    assert inspect_java(tmp_path / "missing") is None


def test_local_workers_run_this_interpreter_whatever_was_set() -> None:
    environ = {
        "PYSPARK_PYTHON": "/usr/bin/python2",
        "PYSPARK_DRIVER_PYTHON": "ipython",
        "PATH": os.environ["PATH"],
    }
    session.prepare_environment(environ, local=True)
    assert environ["PYSPARK_PYTHON"] == environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert Path(environ["JAVA_HOME"], "bin", "java").exists()


def test_a_clusters_interpreter_and_address_are_left_alone() -> None:
    environ = {"PYSPARK_PYTHON": "/opt/env/bin/python", "PATH": os.environ["PATH"]}
    session.prepare_environment(environ, local=False)
    assert environ["PYSPARK_PYTHON"] == "/opt/env/bin/python"
    assert "SPARK_LOCAL_IP" not in environ


def test_the_packages_are_put_on_the_workers_path_once() -> None:
    environ = {"PYTHONPATH": "/theirs", "PATH": os.environ["PATH"]}
    session.prepare_environment(environ, local=True)
    session.prepare_environment(environ, local=True)
    assert environ["PYTHONPATH"].split(os.pathsep) == ["/theirs", str(PROJECT)]


def test_without_java_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_java", lambda environ: None)
    with pytest.raises(session.JavaNotFoundError, match=r"JAVA_HOME \(/gone\).*openjdk-17-jre-headless"):
        session.prepare_environment({"JAVA_HOME": "/gone"}, local=True)


def test_settings_of_the_caller_win() -> None:
    config = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.ui.enabled": "true", "spark.x": "y"}
    assert config.items() <= session.session_settings(config, {}, delta=False).items()


def test_what_is_given_already_stays_unless_the_caller_says_otherwise() -> None:
    given = {
        "spark.master": "yarn",
        "spark.app.name": "theirs",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.ui.enabled": "true",
        "spark.driver.extraJavaOptions": "-Da=b",
    }
    settings = session.session_settings({}, given, delta=False)
    assert set(settings) & set(given) == {"spark.driver.extraJavaOptions"}
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Da=b")
    assert session.session_settings({"spark.master": "local"}, given, delta=False)["spark.master"] == "local"


def test_a_jvm_that_runs_already_is_given_no_options() -> None:
    assert "spark.driver.extraJavaOptions" not in session.session_settings({}, {}, delta=False, jvm_runs=True)


def test_a_running_session_is_given_what_can_still_be_set() -> None:
    assert session.query_settings({"spark.x": "y"}, {"spark.sql.session.timeZone": "Asia/Tokyo"}) == {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.x": "y",
    }


def test_lists_of_the_caller_are_joined_with_ours() -> None:
    config = {"spark.driver.extraJavaOptions": "-Xss4m", "spark.sql.extensions": "a.B"}
    settings = session.session_settings(config, {}, delta=True)
    assert settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,a.B"
    log_settings, theirs = settings["spark.driver.extraJavaOptions"].split(" ")
    assert theirs == "-Xss4m"
    assert Path(log_settings.removeprefix("-Dlog4j2.configurationFile=file://")).is_file()


def test_delta_is_configured_only_when_asked() -> None:
    assert not any("delta" in value for value in session.session_settings({}, {}, delta=False).values())


def run_python(code: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True, check=True
    )


def test_importing_the_package_loads_neither_spark_nor_arrow(tmp_path: Path) -> None:
    code = "import spark_mq, sys; print(sorted({'pyspark', 'pyarrow', 'numpy', 'storage'} & set(sys.modules)))"
    assert run_python(code, tmp_path, PYTHONPATH=str(PROJECT)).stdout == "[]\n"


IMPORTS = """
import sys, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    try:
        import spark_mq
    except ImportError as error:
        print(f"ImportError: {error}")
for warning in said:
    print(f"warning: {warning.message}")
import pyspark_spark_mq
print(getattr(pyspark_spark_mq.DefaultSource, "import_error", "found"))
"""


@pytest.mark.parametrize("name", ["storage.py", "storage/__init__.py"])
def test_a_storage_of_somebody_elses_in_the_way_is_named_with_the_cure(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("", encoding="utf-8")
    refused, source = run_python(IMPORTS, tmp_path, PYTHONPATH=str(PROJECT)).stdout.splitlines()
    assert refused == (
        f"ImportError: {tmp_path / name} hides the package storage that belongs to spark_mq: "
        "rename it, or start Python in another directory"
    )
    assert source == refused


def test_jobs_of_somebody_elses_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    warned, source = run_python(IMPORTS, tmp_path, PYTHONPATH=str(PROJECT)).stdout.splitlines()
    assert warned.startswith(f"warning: {tmp_path}/jobs/__init__.py hides the package jobs that belongs to spark_mq")
    assert source == "found"


def test_folders_that_are_no_packages_are_not_in_the_way(tmp_path: Path) -> None:
    for name in ("jobs", "storage"):
        (tmp_path / name).mkdir()
    assert run_python(IMPORTS, tmp_path, PYTHONPATH=str(PROJECT)).stdout == "found\n"


def test_a_source_that_cannot_be_imported_does_not_fail_sparks_search(tmp_path: Path) -> None:
    # Spark's look-up imports the module, asks for the class and its name, and pickles it.
    code = """
import sys, pickle
sys.modules["spark_mq.data_source"] = None
import pyspark_spark_mq
from pyspark.sql.datasource import DataSource
source = pickle.loads(pickle.dumps(pyspark_spark_mq.DefaultSource))
assert issubclass(source, DataSource), source
assert source.name() == "spark_mq"
try:
    source({})
except ImportError as error:
    print(error)
"""
    said = run_python(code, tmp_path, PYTHONPATH=str(PROJECT)).stdout
    assert "spark_mq.data_source" in said
    assert "spark-mq doctor" in said


def test_the_source_travels_to_workers_by_name() -> None:
    import pyspark_spark_mq

    assert pickle.loads(pickle.dumps(pyspark_spark_mq.DefaultSource)) is pyspark_spark_mq.DefaultSource


HOSTILE = """
import json, sys
from spark_mq import build_session

if __name__ == "__main__":
    def tell(batches):
        import sys
        import pyarrow as pa
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    spark = build_session("hostile", master="local[1]")
    try:
        spark.read.format("spark_mq").load().schema
        refused = ""
    except Exception as error:
        refused = str(error)
    print(json.dumps({
        "python": spark.range(1).mapInArrow(tell, "python string").collect()[0][0],
        "zone": spark.conf.get("spark.sql.session.timeZone"),
        "pushdown": spark.conf.get("spark.sql.python.filterPushdown.enabled"),
        "refused": refused,
    }))
    spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_script_works_where_nothing_is_set_up(tmp_path: Path) -> None:
    """Another python3 on the path, a wrong JAVA_HOME, another directory, nothing about Spark set."""
    script = tmp_path / "their script.py"
    script.write_text(HOSTILE, encoding="utf-8")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "python3").write_text("#!/bin/sh\necho the wrong python3 >&2; exit 1\n", encoding="utf-8")
    (shims / "python3").chmod(0o755)
    outcome = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={
            "PATH": f"{shims}:/usr/bin:/bin",
            "JAVA_HOME": "/nowhere",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(PROJECT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    said = json.loads(outcome.stdout)
    assert said["python"] == sys.executable
    assert said["zone"] == "UTC"
    assert said["pushdown"] == "true"
    assert "DATA_SOURCE_NOT_FOUND" not in said["refused"]
    # The JVM itself says this one, before any setting of ours can reach it.
    noise = [line for line in outcome.stderr.splitlines() if "incubator modules" not in line]
    assert [line for line in noise if "spark_mq" not in line and "WARN" in line] == []


MASTER = """
import json, sys, warnings
import spark_mq

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always", UserWarning)
    spark = spark_mq.build_session(**json.loads(sys.argv[1]))
again = spark_mq.build_session()
print(json.dumps({
    "master": spark.sparkContext.master,
    "name": spark.sparkContext.appName,
    "zone": spark.conf.get("spark.sql.session.timeZone"),
    "theirs": spark.conf.get("spark.theirs", None),
    "rows": spark.range(3).mapInArrow(lambda batches: batches, "id long").count(),
    "said": [str(warning.message) for warning in said if warning.category is UserWarning],
    "again": again is spark,
}))
spark.stop()
"""


def started(folder: Path, *command: str, argument: dict[str, str], **environ: str) -> dict[str, object]:
    script = folder / "job.py"
    script.write_text(MASTER, encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    ran = subprocess.run(
        [*command, str(script), json.dumps(argument)],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(PROJECT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, object] = json.loads(ran.stdout.splitlines()[-1])
    return answer


@pytest.mark.long
@pytest.mark.spark
def test_what_pyspark_submit_args_and_the_defaults_say_is_left(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[3]\nspark.theirs yes\nspark.sql.session.timeZone Asia/Tokyo\n", encoding="utf-8"
    )
    answer = started(
        tmp_path,
        sys.executable,
        argument={},
        PYSPARK_SUBMIT_ARGS="--master local[1] --name theirs pyspark-shell",
        SPARK_CONF_DIR=str(tmp_path),
    )
    assert answer == {
        "master": "local[1]",
        "name": "theirs",
        "zone": "Asia/Tokyo",
        "theirs": "yes",
        "rows": 3,
        "said": [],
        "again": True,
    }


@pytest.mark.long
@pytest.mark.spark
def test_an_explicit_master_wins_and_is_said(tmp_path: Path) -> None:
    answer = started(
        tmp_path,
        sys.executable,
        argument={"master": "local[2]", "app_name": "mine"},
        PYSPARK_SUBMIT_ARGS="--master local[1] pyspark-shell",
    )
    assert (answer["master"], answer["name"], answer["zone"]) == ("local[2]", "mine", "UTC")
    assert answer["said"] == [
        "build_session runs on local[2], as its argument says, and not on local[1], as PYSPARK_SUBMIT_ARGS says"
    ]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.long
def test_what_spark_submit_says_is_left(tmp_path: Path) -> None:
    java = find_java()
    assert java is not None
    answer = started(
        tmp_path,
        str(Path(sys.executable).with_name("spark-submit")),
        "--master",
        "local[1]",
        "--name",
        "submitted",
        "--conf",
        "spark.theirs=yes",
        argument={},
        PYSPARK_PYTHON=sys.executable,
        JAVA_HOME=str(java.home),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert (answer["master"], answer["name"], answer["theirs"], answer["zone"]) == (
        "local[1]",
        "submitted",
        "yes",
        "UTC",
    )
    assert answer["said"] == []
