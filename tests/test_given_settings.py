"""What spark-submit, variables and files say of a session is known before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq.session import Setting, given_settings


def values(environ: dict[str, str]) -> dict[str, str]:
    return {name: setting.value for name, setting in given_settings({"SPARK_CONF_DIR": "/none", **environ}).items()}


def test_nothing_says_nothing() -> None:
    assert values({}) == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--master local[1] pyspark-shell", {"spark.master": "local[1]"}),
        ("--master=yarn pyspark-shell", {"spark.master": "yarn"}),
        ("--conf spark.master=k8s://https://h:6443 pyspark-shell", {"spark.master": "k8s://https://h:6443"}),
        (
            '-c "spark.driver.extraJavaOptions=-Da=b -Dc=d" pyspark-shell',
            {"spark.driver.extraJavaOptions": "-Da=b -Dc=d"},
        ),
        ("--name mine --deploy-mode client pyspark-shell", {"spark.app.name": "mine"}),
        ("--master", {"spark.master": ""}),
        ("pyspark-shell", {}),
    ],
)
def test_the_arguments_of_spark_submit(arguments: str, expected: dict[str, str]) -> None:
    assert values({"PYSPARK_SUBMIT_ARGS": arguments}) == expected


def test_a_file_of_defaults_yields_to_the_command_line_and_wins_over_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text(
        "# spark.master no\n\nspark.master   yarn\nspark.ui.enabled=true\nspark.x:  a b\n", encoding="utf-8"
    )
    environ = {"SPARK_CONF_DIR": str(tmp_path), "MASTER": "local"}
    assert given_settings(environ) == {
        "spark.master": Setting("yarn", str(file)),
        "spark.ui.enabled": Setting("true", str(file)),
        "spark.x": Setting("a b", str(file)),
    }
    environ["PYSPARK_SUBMIT_ARGS"] = "--master local[3] pyspark-shell"
    assert given_settings(environ)["spark.master"] == Setting("local[3]", "PYSPARK_SUBMIT_ARGS")


def test_a_named_file_of_properties_takes_the_place_of_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.a 1\n", encoding="utf-8")
    other = tmp_path / "other.conf"
    other.write_text("spark.b 2\n", encoding="utf-8")
    environ = {"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": f"--properties-file {other} pyspark-shell"}
    assert given_settings(environ) == {"spark.b": Setting("2", str(other))}


def test_variables_for_a_master_and_a_connect_server() -> None:
    assert values({"MASTER": "local[7]"}) == {"spark.master": "local[7]"}
    assert values({"SPARK_REMOTE": "sc://h:15002"}) == {"spark.remote": "sc://h:15002"}


def test_the_files_of_an_installed_spark_are_found(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master yarn\n", encoding="utf-8")
    assert given_settings({"SPARK_HOME": str(tmp_path)})["spark.master"].value == "yarn"
