"""The workflows under .github: they can be read, take foreign actions by their commit, and run what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.places import PROJECT

GITHUB = PROJECT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text("utf-8"), re.MULTILINE))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def steps(workflow: Any) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [])


@pytest.mark.parametrize("path", sorted(GITHUB.rglob("*.yml")), ids=lambda path: path.name)
def test_a_file_is_yaml_with_something_in_it(path: Path) -> None:
    assert isinstance(read(path), dict)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_no_more_than_it_says_and_ends_in_time(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["name"] == path.stem
    assert all("timeout-minutes" in job or "uses" in job for job in workflow["jobs"].values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_their_commit_with_the_version_beside_it(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text("utf-8"))
    local = [each for each in used if each.startswith("./")]
    assert all((PROJECT / each).is_file() for each in local)
    pinned = [each for each in used if re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)]
    assert sorted(pinned + local) == sorted(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_is_there(path: Path) -> None:
    commands = "\n".join(step["run"] for step in steps(read(path)) if "run" in step)
    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= TARGETS
    for script in re.findall(r"\bscripts/[\w.]+", commands):
        assert (PROJECT / script).stat().st_mode & 0o100


def test_every_workflow_that_a_project_needs_is_there() -> None:
    names = {path.stem for path in WORKFLOWS}
    assert names == {"audit", "check", "codeql", "docs", "image", "interop", "release", "tests", "wheel"}


def test_only_the_publishing_job_of_a_release_can_speak_to_the_index() -> None:
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert jobs["publish"]["needs"] == ["tests", "wheel"]
    assert jobs["wheel"]["needs"] == jobs["tests"]["needs"] == "ready"


def test_a_release_is_published_from_main_and_tested_first() -> None:
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    commands = {name: [step["run"] for step in job.get("steps", []) if "run" in step] for name, job in jobs.items()}
    assert commands["ready"][0] == 'git merge-base --is-ancestor "$GITHUB_SHA" origin/main'
    assert jobs["ready"]["steps"][0]["with"]["fetch-depth"] == 0, "the history, which the question needs"
    assert commands["tests"] == ["make check", "make test"]


def test_a_release_is_refused_until_tag_changelog_and_address_are_right(tmp_path: Path) -> None:
    def said(tag: str) -> str:
        ran = subprocess.run(
            [tmp_path / "scripts" / "ready_to_release.sh", tag], capture_output=True, text=True, check=False
        )
        return f"{ran.returncode} {ran.stdout}{ran.stderr}"

    for name in ("scripts/ready_to_release.sh", "CHANGELOG.md", "pyproject.toml", "spark_mq/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    (tmp_path / "spark_mq" / "__init__.py").write_text('__version__ = "1.2.3"\n', "utf-8")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3, not released\n", "utf-8")
    (tmp_path / "pyproject.toml").write_text('repository = "https://github.com/OWNER/spark_mq"\n', "utf-8")
    assert said("v1.2.4").startswith("1 release: the tag is v1.2.4")
    assert said("v1.2.3").startswith("1 release: CHANGELOG.md needs a heading")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3, 2026-12-01\n", "utf-8")
    assert said("v1.2.3").startswith("1 release: pyproject.toml")
    (tmp_path / "pyproject.toml").write_text('repository = "https://github.com/somebody/spark_mq"\n', "utf-8")
    assert said("v1.2.3") == "0 release: 1.2.3 is ready\n"


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_has_nothing_to_say() -> None:
    ran = subprocess.run(["actionlint"], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_the_images_files_name_what_is_there() -> None:
    """The build copies what .dockerignore lets through; compose.yaml uses targets of the Dockerfile."""
    dockerfile = (PROJECT / "Dockerfile").read_text("utf-8")
    allowed = re.findall(r"^!(.+)$", (PROJECT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    assert [name for name in allowed if not (PROJECT / name).exists()] == []
    assert {name.partition("/")[0] for name in re.findall(r"^COPY (docker/\S+)", dockerfile, re.MULTILINE)} <= set(
        allowed
    )
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    compose = read(PROJECT / "compose.yaml")
    assert {service["build"]["target"] for service in compose["services"].values()} <= targets
    assert set(compose["configs"]) == {
        name for each in compose["services"].values() for name in each.get("configs", [])
    }
    program = compose["services"]["job"]["command"][0]
    assert (PROJECT / program.lstrip("/")).is_file()
