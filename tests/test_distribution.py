"""What is published: sdist and wheel are built from a clone alone, an index page can show them, and both run once installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import spark_mq
from tests.support.pages import page_text
from tests.support.places import PROJECT

PACKAGES = ("storage", "spark_mq", "jobs")
UV = PROJECT / ".venv" / "bin" / "uv"


class Built(NamedTuple):
    clone: Path
    sdist: Path
    wheel: Path

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return message_from_bytes(archive.read(name))


def setup_module() -> ModuleType:
    """setup.py, as a module."""
    spec = importlib.util.spec_from_file_location("setup_of_spark_mq", PROJECT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def addresses() -> dict[str, str]:
    """The lines of pyproject.toml that the owner sets."""
    tool: dict[str, str] = tomllib.loads(page_text("pyproject.toml"))["tool"]["spark_mq"]
    return tool


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The ended process, which must succeed; it knows of no environment but what its command names."""
    hidden = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PATH"] = (
        f"{UV.parent}{os.pathsep}{environment['PATH']}" if command[0] == "scripts/build.sh" else os.defpath
    )
    ran = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What a clone of the working tree builds, without tests, without an environment and without what git does not know."""
    if not (PROJECT / ".git").exists() or not UV.exists():
        pytest.skip("needs a clone with its environment")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    clone = tmp_path_factory.mktemp("distribution") / "clone"
    for name in listed.stdout.splitlines():
        if not name.startswith("tests/") and (PROJECT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, clone / name)
    run("scripts/build.sh", cwd=clone)
    (sdist,), (wheel,) = (clone / "dist").glob("*.tar.gz"), (clone / "dist").glob("*.whl")
    return Built(clone, sdist, wheel)


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_holds_every_module_and_the_example_store_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(PROJECT)) for package in PACKAGES for path in (PROJECT / package).rglob("*.py")}
    others = {f"{package}/py.typed" for package in PACKAGES} | {
        "spark_mq/cli/options.json",
        "spark_mq/example_store.tgz",
        "spark_mq/log4j2.properties",
    }
    pages = {
        str(path.relative_to(PROJECT))
        for folder in ("cli/templates", "console/templates", "console/static")
        for path in (PROJECT / "spark_mq" / folder).iterdir()
    }
    assert "spark_mq/console/static/NOTICE.txt" in pages
    assert held == modules | others | pages | {"pyspark_spark_mq.py", "pytest_spark_mq.py"}
    assert built.wheel.name == f"spark_mq-{spark_mq.__version__}-py3-none-any.whl"


@pytest.mark.slow
@pytest.mark.network
def test_the_sdist_holds_what_its_readme_links_to(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    linked = {target.partition("#")[0] for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", page_text("README.md"))}
    assert linked <= held
    assert not any(name.startswith("tests/") or name.endswith(".pyc") for name in held)


@pytest.mark.slow
@pytest.mark.network
def test_an_index_takes_both_and_shows_a_readme_whose_links_lead_to_this_versions_files(built: Built) -> None:
    run(UV, "tool", "run", "twine", "check", "--strict", str(built.sdist), str(built.wheel), cwd=built.clone)
    metadata = built.metadata()
    targets = re.findall(r"\]\((?!#)([^)\s]+)\)", str(metadata.get_payload()))
    base = f"{addresses()['repository']}/blob/v{spark_mq.__version__}/"
    ours = [target.removeprefix(base) for target in targets if target.startswith(addresses()["repository"])]
    assert all(target.startswith("https://") for target in targets)
    assert "docs/live.md" in ours
    assert [target for target in ours if not (PROJECT / target.partition("#")[0]).exists()] == []


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("kind", [pytest.param("sdist", marks=pytest.mark.long), "wheel"])
def test_what_is_installed_into_an_empty_environment_reads_the_store_that_ships(
    kind: str, built: Built, tmp_path: Path
) -> None:
    run(UV, "venv", "--quiet", "--python", "3.11", "env", cwd=tmp_path)
    run(UV, "pip", "install", "--quiet", "--python", "env", str(getattr(built, kind)), cwd=tmp_path)
    assert spark_mq.__version__ in run("env/bin/spark-mq", "--version", cwd=tmp_path).stdout
    unpack = "import spark_mq; print(spark_mq.__file__); spark_mq.unpack_example_store('example')"
    assert str(tmp_path / "env") in run("env/bin/python", "-c", unpack, cwd=tmp_path).stdout
    assert "TopicA" in run("env/bin/spark-mq", "topics", "example/store", cwd=tmp_path).stdout
    shown = run("env/bin/spark-mq", "dump", "example/store", "--topic", "TopicA", "--limit", "5", cwd=tmp_path).stdout
    assert shown.count("TopicA") >= 5


def test_links_to_files_become_addresses_and_others_stay() -> None:
    text = "[a](CHANGELOG.md#b) [c](#d) [e](https://e.org) [f](LICENSE)"
    expected = "[a](https://r/blob/v1/CHANGELOG.md#b) [c](#d) [e](https://e.org) [f](https://r/blob/v1/LICENSE)"
    assert setup_module().with_whole_links(text, "https://r/blob/v1") == expected


def test_the_version_and_the_projects_address_stand_in_one_place() -> None:
    assert setup_module().version() == spark_mq.__version__
    owner = addresses()["repository"].removesuffix("/spark_mq")
    names = subprocess.run(
        ["git", "grep", "--fixed-strings", "--name-only", "--untracked", owner, "--", ":!tests"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert names.returncode == 0, names.stderr
    assert names.stdout.split() == ["pyproject.toml"], "the project's address"


def test_the_changelog_has_an_entry_for_this_version() -> None:
    assert re.search(rf"^## {re.escape(spark_mq.__version__)}\b", page_text("CHANGELOG.md"), re.MULTILINE)
