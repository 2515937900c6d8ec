"""Settings of consumers are checked when they are made, and stand in the documentation as they are."""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

import pytest

from spark_mq.client.errors import ClientSettingError
from spark_mq.client.settings import PullSettings, PushSettings
from tests.support.pages import marked, rows


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thread_count", 0),
        ("batch_size", 1025),
        ("pull_limit", 0),
        ("queue_limit", 65_536),
        ("max_reconsume_times", -1),
    ],
)
def test_a_value_outside_of_javas_range_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ClientSettingError, match=name):
        PushSettings(**{name: value})


@pytest.mark.parametrize("value", [0, 1025, True, "32"])
def test_a_pull_consumers_settings_are_checked_too(value: Any) -> None:
    with pytest.raises(ClientSettingError, match="pull_limit"):
        PullSettings(pull_limit=value)


@pytest.mark.parametrize("kind", [PushSettings, PullSettings])
def test_a_time_in_seconds_is_refused_with_the_milliseconds_that_were_meant(kind: Any) -> None:
    with pytest.raises(ClientSettingError, match="write 1700000000000"):
        kind(consume_time_ms=1_700_000_000)


def test_the_page_has_every_setting_of_a_push_consumer_with_its_default() -> None:
    _, table = marked("push settings")
    said = {name.strip("`"): default for name, default, _ in rows(table)}
    assert list(said) == [each.name for each in fields(PushSettings)]
    plain = {each.name: each.default for each in fields(PushSettings) if each.default not in (MISSING, None)}
    assert {name: said[name] for name in plain} == {
        name: value.name if isinstance(value, Enum) else str(value) for name, value in plain.items()
    }
    assert said["allocation"] == PushSettings().allocation.name
