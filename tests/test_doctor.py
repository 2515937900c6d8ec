"""Each cause that Spark hides is found, named with its place, and has a cure."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from spark_mq import doctor
from spark_mq.cli import app
from spark_mq.doctor import Finding, Severity, Surroundings, check_settings
from storage.settings.load import StoreConfig, parse_config
from tests.support.fake_java import make_java
from tests.support.fixture_stores import Fixture
from tests.support.places import PROJECT

DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def here(tmp_path: Path) -> Surroundings:
    """Surroundings in which everything is well."""
    return surroundings(tmp_path)


def surroundings(tmp_path: Path, **environ: str) -> Surroundings:
    folder = tmp_path / "here"
    java = tmp_path / "java"
    jars = tmp_path / "ivy" / "jars"
    if not folder.exists():
        folder.mkdir()
        make_java(java, "17.0.15")
        jars.mkdir(parents=True)
        (jars / "io.delta_delta-spark_4.2_2.13-4.4.0.jar").touch()
    settings = {
        "PATH": f"{java / 'bin'}:/usr/bin:/bin",
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(PROJECT),
    }
    return Surroundings(settings | environ, folder, sys.executable, [str(java)], tmp_path / "ivy")


def fake_python(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_nothing_is_found_where_all_is_well(here: Surroundings) -> None:
    assert [finding for finding in doctor.diagnose(here) if finding.severity is not Severity.NOTE] == []


# ---- Java


def test_a_java_home_without_java(tmp_path: Path) -> None:
    finding = only(doctor.check_java(surroundings(tmp_path, JAVA_HOME="/nowhere")))
    assert finding == Finding(
        Severity.ERROR,
        "JAVA_HOME names no Java",
        "JAVA_HOME=/nowhere",
        f"export JAVA_HOME={tmp_path / 'java'}",
    )


def test_a_java_home_with_an_old_java(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.22")
    finding = only(doctor.check_java(surroundings(tmp_path, JAVA_HOME=str(old))))
    assert "Java 11.0.22" in finding.what
    assert finding.where == f"JAVA_HOME={old}"


def test_an_old_java_on_the_path_while_a_good_one_is_installed(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_402")
    finding = only(doctor.check_java(surroundings(tmp_path, JAVA_HOME="", PATH=str(old / "bin"))))
    assert finding.severity is Severity.WARNING
    assert "1.8.0_402" in finding.what
    assert finding.cure == f"export JAVA_HOME={tmp_path / 'java'}"


def test_no_java_at_all(tmp_path: Path) -> None:
    nothing = Surroundings({"PATH": ""}, tmp_path, sys.executable, [], tmp_path)
    finding = only(doctor.check_java(nothing))
    assert finding.severity is Severity.ERROR
    assert "openjdk-17-jre-headless" in finding.cure


# ---- modules in the way


def test_files_that_hide_other_modules(here: Surroundings) -> None:
    (here.folder / "types.py").touch()
    (here.folder / "storage").mkdir()
    (here.folder / "storage" / "__init__.py").touch()
    (here.folder / "json").mkdir()  # no package: Python goes on to the standard one
    (here.folder / "mine.py").touch()
    found = list(doctor.check_shadowed_modules(here))
    assert [finding.where for finding in found] == [
        str(here.folder / "storage"),
        str(here.folder / "types.py"),
    ]
    assert "module types" in found[1].what


def test_files_on_pythonpath_hide_modules_too(tmp_path: Path, here: Surroundings) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "random.py").touch()
    there = surroundings(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path / "theirs"), "/nowhere", str(PROJECT)]))
    assert only(doctor.check_shadowed_modules(there)).where == str(tmp_path / "theirs" / "random.py")


def test_a_hidden_standard_module_that_stops_python_is_told_with_pythons_words(here: Surroundings) -> None:
    (here.folder / "types.py").write_text("raise RuntimeError('not the types you wanted')\n", encoding="utf-8")
    finding = only(doctor.check_driver(here, []))
    assert finding.what == "Python does not start here: RuntimeError: not the types you wanted"


# ---- pyspark_* modules


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import not_installed", "ModuleNotFoundError: No module named 'not_installed'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("DefaultSource = 7", "TypeError: issubclass() arg 1 must be a class"),
        (
            "from pyspark.sql.datasource import DataSource\n"
            "class DefaultSource(DataSource):\n"
            "    @classmethod\n"
            "    def name(cls): raise ValueError('no name')",
            "ValueError: no name",
        ),
        ("print('chatter')\nimport nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_broken_module_is_named_with_the_error_that_spark_hides(here: Surroundings, text: str, error: str) -> None:
    broken = here.folder / "pyspark_broken.py"
    broken.write_text(f"{text}\n", encoding="utf-8")
    found = [finding for finding in doctor.check_driver(here, []) if "pyspark_broken" in finding.what]
    assert only(found).what.startswith(f"pyspark_broken hides every Python data source from Spark: {error}")
    assert only(found).where == str(broken)


def test_sound_modules_of_others_are_no_finding(here: Surroundings) -> None:
    (here.folder / "pyspark_tools.py").write_text("x = 1\n", encoding="utf-8")
    (here.folder / "pyspark_other.py").write_text("class DefaultSource: pass\n", encoding="utf-8")
    assert [each for each in doctor.check_driver(here, []) if each.severity is Severity.ERROR] == []


def test_a_stand_in_for_our_own_source_tells_its_cause(here: Surroundings) -> None:
    broken = here.folder / "spark_mq"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('half installed')\n", encoding="utf-8")
    found = [finding for finding in doctor.check_driver(here, []) if finding.severity is Severity.ERROR]
    assert only(found).what == "format spark_mq is there but cannot be used: ImportError: half installed"


# ---- the workers' interpreter


def test_an_interpreter_that_does_not_exist(tmp_path: Path) -> None:
    finding = only(doctor.check_worker_interpreter(surroundings(tmp_path, PYSPARK_PYTHON="/nowhere/python"), []))
    assert finding.severity is Severity.ERROR
    assert finding.where == "PYSPARK_PYTHON=/nowhere/python"
    assert finding.cure.startswith(f"export PYSPARK_PYTHON={sys.executable}")


def test_an_interpreter_that_does_not_start(tmp_path: Path) -> None:
    broken = fake_python(tmp_path / "bin" / "broken", "echo 'no such version' >&2; exit 127")
    finding = only(doctor.check_worker_interpreter(surroundings(tmp_path, PYSPARK_PYTHON=str(broken)), []))
    assert finding.what == "the workers' Python does not start: no such version"


def test_an_interpreter_without_the_packages(tmp_path: Path) -> None:
    # -S leaves out site-packages, as another environment's interpreter does.
    bare = fake_python(tmp_path / "bin" / "bare", f'exec "{sys.executable}" -S "$@"')
    there = surroundings(tmp_path, PYSPARK_PYTHON=str(bare), PYTHONPATH="")
    finding = only(doctor.check_worker_interpreter(there, []))
    assert finding.what == "the workers' Python cannot import pyspark, pyarrow, numpy, spark_mq"
    assert finding.severity is Severity.ERROR


def test_an_unset_interpreter_is_a_warning_about_python3_on_the_path(tmp_path: Path) -> None:
    bare = fake_python(tmp_path / "bin" / "python3", f'exec "{sys.executable}" -S "$@"')
    there = surroundings(tmp_path, PYSPARK_PYTHON="", PYTHONPATH="", PATH=f"{bare.parent}:/bin")
    finding = only(doctor.check_worker_interpreter(there, []))
    assert finding.severity is Severity.WARNING
    assert finding.where == f"PYSPARK_PYTHON is not set: python3 on the path ({bare})"


def test_an_interpreter_of_another_version(tmp_path: Path) -> None:
    answer = (
        'spark_mq_probe {"version": [3, 10, 2], "missing": [], "versions": {}, '
        '"sources": [{"module": "pyspark_spark_mq", "file": null, "format": "spark_mq", "error": null}]}'
    )
    other = fake_python(tmp_path / "bin" / "python3.10", f"echo '{answer}'")
    finding = only(doctor.check_worker_interpreter(surroundings(tmp_path, PYSPARK_PYTHON=str(other)), []))
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert finding.what == f"the workers' Python is 3.10, the driver's {ours}"


def test_the_same_interpreter_under_another_name_is_no_finding(tmp_path: Path) -> None:
    same = fake_python(tmp_path / "bin" / "python", f'exec "{sys.executable}" "$@"')
    there = surroundings(tmp_path, PYSPARK_PYTHON=str(same))
    assert [each for each in doctor.check_worker_interpreter(there, []) if "workers" in each.what] == []


# ---- versions and jars


def test_a_version_that_was_not_tested_with_the_others(here: Surroundings) -> None:
    requirements = [Requirement("pyspark==3.5.0"), Requirement("numpy>=1"), Requirement("not-there>=1")]
    found = [each for each in doctor.check_driver(here, requirements) if "needs" in each.what]
    assert only(found).what.startswith("pyspark 4.")
    assert only(found).what.endswith("is installed, spark_mq needs ==3.5.0")
    assert only(found).cure == f"{sys.executable} -m pip install 'pyspark==3.5.0'"


def test_a_pandas_that_pyspark_cannot_use_is_found(tmp_path: Path) -> None:
    answer = (
        f'spark_mq_probe {{"version": [{sys.version_info[0]}, {sys.version_info[1]}, 0], "missing": [], '
        '"versions": {"pandas": "3.0.0"}, '
        '"sources": [{"module": "pyspark_spark_mq", "file": null, "format": "spark_mq", "error": null}]}'
    )
    other = fake_python(tmp_path / "bin" / "python", f"echo '{answer}'")
    needed = [Requirement(text) for text in DECLARED["optional-dependencies"]["spark"]]
    pandas = [each for each in needed if each.name == "pandas"]
    finding = only(doctor.check_worker_interpreter(surroundings(tmp_path, PYSPARK_PYTHON=str(other)), pandas))
    assert finding.severity is Severity.ERROR
    assert finding.what == f"pandas 3.0.0 is installed, spark_mq needs {pandas[0].specifier}"


def test_the_locked_versions_are_those_that_the_project_asks_for() -> None:
    locked = dict(re.findall(r"^([\w.-]+)==([^ ;]+)", (PROJECT / "requirements.lock").read_text("utf-8"), re.MULTILINE))
    extras = [text for texts in DECLARED["optional-dependencies"].values() for text in texts]
    not_locked = {
        "gcsfs",
        "adlfs",
        "spark_mq",
    }  # no test uses the first two; an extra names others of ours by the third
    for requirement in map(Requirement, [*DECLARED["dependencies"], *extras]):
        if requirement.name not in not_locked:
            assert requirement.specifier.contains(locked[requirement.name], prereleases=True), requirement


def test_a_missing_delta_jar_is_a_note(tmp_path: Path, here: Surroundings) -> None:
    assert list(doctor.check_delta_jar(here)) == []
    (tmp_path / "ivy" / "jars" / "io.delta_delta-spark_4.2_2.13-4.4.0.jar").unlink()
    assert only(doctor.check_delta_jar(here)).severity is Severity.NOTE


def test_somebody_elses_jobs_are_a_warning(here: Surroundings) -> None:
    (here.folder / "jobs").mkdir()
    (here.folder / "jobs" / "__init__.py").touch()
    finding = only(doctor.check_shadowed_modules(here))
    assert (finding.severity, finding.where) == (Severity.WARNING, str(here.folder / "jobs"))


def test_errors_come_first_and_nothing_is_said_twice(tmp_path: Path) -> None:
    there = surroundings(tmp_path, JAVA_HOME="/nowhere")
    (there.folder / "pyspark_broken.py").write_text("import nowhere\n", encoding="utf-8")
    findings = doctor.diagnose(there)
    order = list(Severity)
    ranks = [order.index(finding.severity) for finding in findings]
    assert ranks == sorted(ranks)
    assert len(findings) == len(set(findings))
    assert {"JAVA_HOME names no Java"} < {finding.what for finding in findings}


def test_settings_that_take_no_effect_or_keep_a_store_from_being_written_are_named() -> None:
    conf = b"coldDataFlowControlEnable=true\nnamesrvAddr=a:9876\nbrokerRole=SLAVE\nnoSuchName=1\nmaxMessageSize=9\n"
    found = list(check_settings(parse_config(conf, "/lab/broker.conf")))
    assert [(finding.severity, finding.what.split()[0], finding.where) for finding in found] == [
        (Severity.WARNING, "the", "/lab/broker.conf"),
        (Severity.WARNING, "/lab/broker.conf,", "/lab/broker.conf"),
        (Severity.NOTE, "coldDataFlowControlEnable", "/lab/broker.conf"),
        (Severity.NOTE, "namesrvAddr", "/lab/broker.conf"),
    ]
    assert "brokerRole=SLAVE" in found[0].what
    assert list(check_settings(StoreConfig())) == []
    unreadable = list(check_settings(parse_config(b"enableDLegerCommitLog=true")))
    assert [finding.severity for finding in unreadable] == [Severity.WARNING]


def test_the_command_looks_at_the_settings_of_a_store(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("clean")
    done = CliRunner().invoke(app, ["doctor", str(fixture.root), "--json"])
    notes = {finding["what"].split()[0] for finding in json.loads(done.stdout) if finding["severity"] == "note"}
    assert {"transactionCheckInterval", "namesrvAddr", "flushDelayOffsetInterval"} <= notes
