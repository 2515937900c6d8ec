"""The table of releases says what the code and the fixtures say."""

from __future__ import annotations

import re

from tests.support.fixture_stores import FIXTURE_NAMES
from tests.support.pages import marked, page_text
from tests.support.releases import ENDS, RELEASES, release_table


def test_the_table_of_releases_is_the_tests_own() -> None:
    assert marked("releases") == ("docs/compatibility.md", release_table())


def test_the_readme_names_the_releases_of_the_table() -> None:
    assert f"Stores of {', '.join(RELEASES[:-1])} and {RELEASES[-1]} are" in page_text("README.md")


def test_each_release_of_the_table_has_left_a_stopped_and_a_killed_store() -> None:
    of_a_release = [name for name in FIXTURE_NAMES if re.match(r"v\d", name)]
    assert of_a_release == sorted(f"v{release}{end}" for release in RELEASES for end in ENDS)
