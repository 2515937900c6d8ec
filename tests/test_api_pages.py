"""The pages docs/api: they have every public name, and below each an example of it, which runs with what it shows."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import spark_mq
import spark_mq.client
import spark_mq.testing
import spark_mq.values
import storage
from tests.support.places import PROJECT
from tests.test_pages import names_that_are_not_public

FOLDER = PROJECT / "docs" / "api"
PAGES_OF = {
    "storage": ("storage.md", "storage-errors.md"),
    "spark_mq": ("spark_mq.md",),
    "spark_mq.values": ("values.md",),
    "spark_mq.client": ("client.md", "client-errors.md"),
    "spark_mq.testing": ("testing.md",),
}
PUBLIC = {
    f"{package}.{name}"
    for package, names in (
        ("storage", storage.__all__),
        ("spark_mq", spark_mq.__all__),
        ("spark_mq.client", spark_mq.client.__all__),
        ("spark_mq.values", spark_mq.values.__all__),
        ("spark_mq.testing", spark_mq.testing.__all__),
    )
    for name in names
}
ON_THE_PAGES = "127.0.0.1:9876"
"""The name server's address in the examples."""

_BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"^::: (\S+)\n(.*?)(?=^:::|\Z)", re.DOTALL | re.MULTILINE)


def page_text(page: str) -> str:
    return (FOLDER / page).read_text("utf-8")


def run_examples(page: str, directory: Path, monkeypatch: pytest.MonkeyPatch, name_server: str = ON_THE_PAGES) -> None:
    """Runs the examples of a page one after the other in an empty directory; each must print what the page shows."""
    monkeypatch.chdir(directory)
    text = page_text(page)
    parser, names = doctest.DocTestParser(), {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    printed: list[str] = []
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        example = parser.get_doctest(block[1].replace(ON_THE_PAGES, name_server), names, page, str(FOLDER / page), line)
        names = example.globs
        runner.run(example, out=printed.append, clear_globs=False)
        names.update(example.globs)
    results = runner.summarize(verbose=False)
    assert results.attempted > 0
    assert results.failed == 0, "".join(printed)


def test_every_public_name_has_an_entry_and_below_it_an_example_that_uses_it() -> None:
    entries = {
        name: "".join(_BLOCK.findall(body))
        for pages in PAGES_OF.values()
        for page in pages
        for name, body in _ENTRY.findall(page_text(page))
    }
    assert entries.keys() == {name for name in PUBLIC if not name.endswith("__version__")}
    assert "spark_mq.__version__" in page_text("spark_mq.md")
    without = [name for name, code in entries.items() if not re.search(rf"\b{name.rpartition('.')[2]}\b", code)]
    assert without == []


@pytest.mark.parametrize("page", [page for pages in PAGES_OF.values() for page in pages])
def test_the_examples_use_public_names_only(page: str) -> None:
    parser = doctest.DocTestParser()
    for block in _BLOCK.findall(page_text(page)):
        for example in parser.get_examples(block):
            assert names_that_are_not_public(example.source) == []


@pytest.mark.parametrize("page", PAGES_OF["storage"])
def test_the_examples_of_storage_print_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_examples(page, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_OF["spark_mq.client"])
def test_the_examples_of_the_client_print_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spark_mq.testing.Cluster() as cluster:
        run_examples(page, tmp_path, monkeypatch, cluster.name_server)


def test_the_examples_of_testing_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page,) = PAGES_OF["spark_mq.testing"]
    run_examples(page, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("page", [*PAGES_OF["spark_mq"], *PAGES_OF["spark_mq.values"]])
def test_the_examples_of_spark_mq_print_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_examples(page, tmp_path, monkeypatch)
