"""The store that ships with the package is the one that the Apache broker wrote, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_mq.example_store import example_store
from tests.support.fixture_stores import Fixture


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_it_is_the_clean_fixture_and_goes_with_its_context(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("clean")
    with example_store() as path:
        assert files_in(Path(path)) == files_in(fixture.root)
        assert Path(path).with_name("broker.conf").read_bytes() == fixture.conf.read_bytes()
    assert not Path(path).exists()
