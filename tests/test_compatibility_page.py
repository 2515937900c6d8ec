"""The table of releases says what the code and the fixtures say."""

from __future__ import annotations

import re

import pytest

from tests.support.fixture_stores import FIXTURE_NAMES
from tests.support.places import PROJECT
from tests.support.releases import ENDS, RELEASES, release_table


@pytest.mark.parametrize("page", ["README.md", "docs/compatibility.md"])
def test_the_table_of_releases_is_the_tests_own(page: str) -> None:
    text = (PROJECT / page).read_text("utf-8")
    found = re.search(r"<!-- releases -->\n(.*?)\n<!-- /releases -->", text, re.DOTALL)
    assert found is not None, f"{page} has no part marked releases"
    assert found[1] == release_table()


def test_each_release_of_the_table_has_left_a_stopped_and_a_killed_store() -> None:
    of_a_release = [name for name in FIXTURE_NAMES if re.match(r"v\d", name)]
    assert of_a_release == sorted(f"v{release}{end}" for release in RELEASES for end in ENDS)
