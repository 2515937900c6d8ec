"""A deed enters about as many files as it did: what a reader has to open to follow it does not grow unnoticed."""

from __future__ import annotations

import re

import pytest

from tests.support.places import PROJECT
from tests.walks.deeds import Walk, walks
from tests.walks.limits import grown, recorded

_TOLD = re.compile(r"<!-- walk: (.+?) -->\n(.*?)<!-- /walk -->", re.DOTALL)
WALKS_OF_THE_PAGE = dict(_TOLD.findall((PROJECT / "ARCHITECTURE.md").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def seen() -> list[Walk]:
    return list(walks())


def test_no_walk_grows_by_more_than_a_tenth(seen: list[Walk]) -> None:
    limits = recorded()
    assert [trouble for walk in seen if (trouble := grown(walk.deed, len(walk.files), limits))] == []
    assert {walk.deed for walk in seen} == set(limits)


def test_the_page_names_files_that_the_walk_enters(seen: list[Walk]) -> None:
    """With their folders; files without one are the way of another deed."""
    assert len(WALKS_OF_THE_PAGE) == 5
    files = {walk.deed: walk.files for walk in seen}
    for deed, text in WALKS_OF_THE_PAGE.items():
        named = re.findall(r"`((?:storage|spark_mq)/[\w/]+\.py)`", text)
        assert len(named) >= 4, deed
        foreign = [name for name in named if name not in files[deed] and not _is_of_another_way(name, deed)]
        assert foreign == [], deed


def _is_of_another_way(name: str, deed: str) -> bool:
    """What a walk's last sentence leads to: an opening that writes, a batch that is finished later."""
    return (name, deed) in {
        ("storage/recovery/opening.py", "open a store"),
    }


def test_a_walk_that_has_grown_is_named() -> None:
    limits = {"SEND": 40}
    assert grown("SEND", 44, limits) is None
    assert grown("SEND", 45, limits) == "SEND: enters 45 files, recorded 40; a deed may grow by a tenth"
    assert grown("PULL", 1, limits) == "PULL: not recorded in files.json"
