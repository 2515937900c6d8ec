"""A deed enters about as many files as it did: what a reader has to open to follow it does not grow unnoticed."""

from __future__ import annotations

from tests.walks.deeds import walks
from tests.walks.limits import grown, recorded


def test_no_walk_grows_by_more_than_a_tenth() -> None:
    limits, seen = recorded(), list(walks())
    assert [trouble for walk in seen if (trouble := grown(walk.deed, len(walk.files), limits))] == []
    assert {walk.deed for walk in seen} == set(limits)


def test_a_walk_that_has_grown_is_named() -> None:
    limits = {"SEND": 40}
    assert grown("SEND", 44, limits) is None
    assert grown("SEND", 45, limits) == "SEND: enters 45 files, recorded 40; a deed may grow by a tenth"
    assert grown("PULL", 1, limits) == "PULL: not recorded in files.json"
