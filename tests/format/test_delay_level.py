"""Delay levels: Java's default table, its units, and the deliver times that the broker entered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.errors import ConfigurationError
from storage.format.delay import DEFAULT_LEVELS, deliver_time_ms, parse_delay_levels
from storage.settings.nouns import DelayConfig
from tests.support.fixture_stores import Fixture, golden_lines


def test_the_default_levels() -> None:
    delays = parse_delay_levels(DEFAULT_LEVELS)
    assert len(delays) == 18
    assert (delays[0], delays[3], delays[4], delays[17]) == (1_000, 30_000, 60_000, 7_200_000)


def test_all_units() -> None:
    assert parse_delay_levels("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize(
    "text", ["1", "s", "1x", "-1s", "1.5s", "1s,2s", "1S", "²s", "9" * 40 + "d", "9" * 5_000 + "s"]
)
def test_what_is_no_level_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_delay_levels(text)


def test_the_setting_is_named_once() -> None:
    with pytest.raises(ConfigurationError) as failure:
        DelayConfig(message_delay_level="1s 2x")
    assert str(failure.value).count("messageDelayLevel") == 1
    assert "'2x' is not a number" in str(failure.value)


@pytest.mark.parametrize("name", ["clean", "recovered"])
def test_the_broker_entered_these_deliver_times(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    (config,) = golden_lines(fixture.golden, "config")
    delays = parse_delay_levels(config["messageDelayLevel"])
    levels = set()
    for line in golden_lines(fixture.golden, "message"):
        if line["cqTopic"] == "SCHEDULE_TOPIC_XXXX":
            level = int(line["properties"]["DELAY"])
            levels.add(level)
            assert deliver_time_ms(level, line["storeTimestamp"], delays) == line["tagsCode"]
            assert line["cqQueueId"] == level - 1
    assert len(levels) >= 4


def test_a_level_above_the_last_counts_as_the_last() -> None:
    assert deliver_time_ms(99, 5, (1_000, 2_000)) == 2_005
