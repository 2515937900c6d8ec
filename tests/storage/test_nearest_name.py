"""The name that was meant, or none."""

from __future__ import annotations

import pytest

from storage.names import advice, nearest

KNOWN = ("topic", "tags", "queueNum", "shardingKey")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("tag", "tags"), ("TOPICS", "topic"), ("queuenums", "queueNum"), ("sharding_key", "shardingKey"), ("zzz", None)],
)
def test_the_name_most_like_it_is_found_whatever_its_case(name: str, meant: str | None) -> None:
    assert nearest(name, KNOWN) == meant
    assert advice(name, KNOWN) == ("" if meant is None else f"; did you mean {meant}?")


def test_how_like_it_must_be_can_be_asked_for() -> None:
    assert nearest("typ", ["topic"], 0.5) == "topic"
    assert nearest("typ", ["topic"], 0.75) is None
