"""The documentation site: the pages as they stand, whose links lead somewhere in the repository and on the site."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support.pages import page_text
from tests.support.places import PROJECT

OWN_PAGES = {"index.md", "changelog.md"}
"""README.md and CHANGELOG.md."""


def site_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", PROJECT / "scripts" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def navigation() -> dict[str, set[str]]:
    """The pages of each group."""
    text = page_text("mkdocs.yml")

    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for each in entry if isinstance(entry, list) else entry.values():
                yield from pages(each)

    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    return {group: set(pages(entry)) for each in nav for group, entry in each.items()}


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("docs/broker.md", "[jobs](jobs.md#a)", "[jobs](jobs.md#a)"),
        ("docs/broker.md", "[`conf`](../conf/broker.conf)", "[`conf`](REPOSITORY/blob/main/conf/broker.conf)"),
        ("docs/tables/soak.md", "[how](../RELIABILITY.md)", "[how](../RELIABILITY.md)"),
        ("docs/tables/soak.md", "[order](../../storage/README.md)", "[order](REPOSITORY/blob/main/storage/README.md)"),
        ("docs/api/storage.md", "[start](../../README.md)", "[start](../index.md)"),
        ("README.md", "[read](docs/reading.md#options)", "[read](reading.md#options)"),
        ("README.md", "[docs/reading.md](docs/reading.md) has", "[Reading with Spark](reading.md) has"),
        ("README.md", "[what](#limits) [out](https://e.org)", "[what](#limits) [out](https://e.org)"),
        ("CHANGELOG.md", "a\n<!-- mark -->\n`[x](docs/live.md)`", "a\n`[x](docs/live.md)`"),
        ("docs/live.md", "```python\na[0](docs/live.md)\n```", "```python\na[0](docs/live.md)\n```"),
    ],
)
def test_a_link_of_the_repository_leads_to_the_same_place_on_the_site(place: str, text: str, expected: str) -> None:
    pages = site_pages()
    assert pages.site_text(text, place) == expected.replace("REPOSITORY", pages.PROJECT["repository"])


def test_every_page_is_in_the_navigation_in_the_readmes_groups() -> None:
    groups = navigation()
    listed = [page for pages in groups.values() for page in pages]
    there = {str(path.relative_to(PROJECT / "docs")) for path in (PROJECT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(there | OWN_PAGES)
    rows = {
        group: set(re.findall(r"\]\(docs/([\w/-]+\.md)", row))
        for group, row in re.findall(r"^\| \*\*(\w+)\*\* \| (.+) \|$", page_text("README.md"), re.MULTILINE)
    }
    of_readers = {
        group: {page for page in pages if not page.startswith("tables/")} - OWN_PAGES for group, pages in groups.items()
    }
    assert of_readers == {group: rows[group] for group in ("Start", "Use", "Run", "Trust")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    subprocess.run(["scripts/docs.sh", "--site-dir", str(place)], cwd=PROJECT, check=True, timeout=600)
    return place


@pytest.mark.slow
@pytest.mark.network
def test_the_site_is_built_without_a_warning_and_asks_no_other_host(site: Path, tmp_path: Path) -> None:
    """Once mkdocs is there, the build needs no network: it is repeated without one, if this user may do that."""
    build = ["scripts/docs.sh", "--site-dir", str(tmp_path)]
    alone = ["unshare", "--net"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
        subprocess.run([*alone, *build], cwd=PROJECT, check=True, timeout=600)
    links = {
        tag
        for page in site.rglob("*.html")
        for tag in re.findall(r"<(?:link|script|img|iframe)\b[^>]*>", page.read_text("utf-8"))
        if re.search(r'(?:src|href)="?https?://', tag) and not re.search(r'rel="?(?:canonical|prev|next)', tag)
    }
    assert links == set()
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    found = {entry["location"] for entry in index["docs"]}
    assert {"reading/#options", "api/storage/#storage.open_store", "platforms/databricks/"} <= found


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    ("page", "target"),
    [("docs/broker.md", ""), pytest.param("README.md", "docs/reading.md", marks=pytest.mark.long)],
)
@pytest.mark.usefixtures("site")
def test_a_wrong_link_ends_the_build(page: str, target: str, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for name in ("docs", "scripts", "storage", "spark_mq"):
        shutil.copytree(PROJECT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "CHANGELOG.md", "mkdocs.yml", "pyproject.toml"):
        shutil.copy(PROJECT / name, clone)
    (clone / ".venv-docs").symlink_to(PROJECT / ".venv-docs")
    with (clone / page).open("a", encoding="utf-8") as file:
        file.write(f"\n[x]({target}#no-such-heading)\n")
    ran = subprocess.run(["scripts/docs.sh"], cwd=clone, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode != 0
    assert "no-such-heading" in ran.stderr
