"""The report: its figures are those of the store, and what messages and names contain is shown as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.cli.message_lines import Unreadable
from spark_mq.cli.pages import visible
from spark_mq.cli.report import (
    DAY_MS,
    DAYS_A_TABLE,
    DaySize,
    LetterKind,
    TopicSize,
    bytes_in_words,
    day_sheets,
    dead_letters,
    midnights,
    topic_sizes,
)
from spark_mq.cli.stores import StorePlace, open_cluster, open_place
from spark_mq.client.errors import ClientError
from spark_mq.source.offsets import QueueId
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.rules.inner_messages import InnerMessage
from storage.tables.offline_changes import write_group_offsets
from tests.cli.test_lag import HOSTILE, Page
from tests.support.commands import run
from tests.support.fixture_stores import Fixture

FixtureStore = Callable[[str], Fixture]
NOW_MS = 1_767_225_600_000 + DAY_MS // 2  # noon


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Messages of four days, dead letters of one group, from two topics."""
    path, now = tmp_path / "store", [0]
    with open_store(path, read_only=False, create=True, clock=lambda: now[0]) as store:
        for days_ago, count in ((9, 1), (2, 5), (1, 3), (0, 2)):
            now[0] = NOW_MS - days_ago * DAY_MS
            for _ in range(count):
                store.put("orders", b"x" * 100, queue_id=0, queue_count=2)
        letters = [("orders", 16)] * 3 + [("orders", 0)] + [("audit", 16)]
        store.put_inner(
            [
                InnerMessage(
                    topic="%DLQ%billing",
                    queue_id=0,
                    body=b"x",
                    properties={"RETRY_TOPIC": topic},
                    reconsume_times=tries,
                )
                for topic, tries in letters
            ]
        )
    write_group_offsets(str(path), "billing", {("orders", 0): 9}, now_ms=1, file_system=LocalFileSystem())
    return path


def test_sizes_by_day_add_up_to_what_the_queues_hold(root: Path) -> None:
    place = StorePlace(open_cluster(str(root), None))
    entries = place.topic_entries()
    starts = midnights(NOW_MS, 3)
    assert starts == [NOW_MS - DAY_MS // 2 - DAY_MS * days for days in (2, 1, 0)]
    (orders,) = [size for size in topic_sizes(place, entries, starts) if size.topic == "orders"]
    assert [day.messages for day in orders.days] == [1, 5, 3, 2]
    with open_store(root) as store:
        assert orders.bytes == store.size_between("orders", 0, 0, 11) == sum(day.bytes or 0 for day in orders.days)
    assert (orders.messages, orders.newest_ms) == (11, NOW_MS)
    place.close()


def test_no_table_of_days_is_wider_than_a_page_of_paper_and_none_is_left_out() -> None:
    """A printer cuts off what is too wide."""
    days = (DaySize(0, 0), *(DaySize(number, 100) for number in range(1, 32)))
    starts = midnights(NOW_MS, 31)
    sheets = day_sheets([TopicSize("orders", 1, 496, 3_100, NOW_MS, days)], starts)
    assert [len(sheet.headings) for sheet in sheets] == [1 + DAYS_A_TABLE] * 4
    shown = {name: text for sheet in sheets for name, text in zip(sheet.headings[1:], sheet.rows[0][1:], strict=True)}
    assert list(shown.values()) == ["", *(f"{number} · 100\N{NO-BREAK SPACE}B" for number in range(1, 32))]
    assert list(shown)[:: len(shown) - 1] == ["before", "01-01"]
    old = TopicSize("orders", 1, 1, 100, NOW_MS, (DaySize(1, 100), *[DaySize(0, 0)] * 31))
    assert [sheet.headings[1] for sheet in day_sheets([old], starts)] == ["before"]
    assert [sheet.nothing for sheet in day_sheets([], starts)] == ["no message"]


def test_dead_letters_are_counted_by_group_origin_and_tries(root: Path) -> None:
    place = StorePlace(open_cluster(str(root), None))
    found, unreadable = dead_letters(place, place.topic_entries())
    assert unreadable == []
    assert {kind: letters.messages for kind, letters in found.items()} == {
        LetterKind("billing", "orders", 16): 3,
        LetterKind("billing", "orders", 0): 1,
        LetterKind("billing", "audit", 16): 1,
    }
    place.close()


def test_the_page_is_one_file_that_a_browser_shows_without_asking_for_anything(root: Path, tmp_path: Path) -> None:
    text = run("report", root)
    page = Page(text)
    page.assert_harmless()
    for expected in ("orders", "billing", "failed 16 times", "refused at once", "Messages by day", "none was found"):
        assert expected in page.texts
    run("report", root, "-o", tmp_path / "report.html", "--verify")
    assert "--verify does" in text
    assert "--verify does" not in (tmp_path / "report.html").read_text("utf-8")
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("command", [["report"], ["lag", "--html"]], ids=" ".join)
def test_a_page_names_its_place_without_what_may_be_secret(
    command: list[str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes into a mail or a ticket."""

    def opened(path: str, *given: Any) -> Any:
        return open_place(str(root), *given)

    monkeypatch.setattr(f"spark_mq.cli.{command[0]}.open_place", opened)
    text = run(*command, "sftp://user:pass@host/store")
    assert "sftp://host/store" in text
    assert "pass@" not in text


def test_dead_letters_that_cannot_be_read_are_counted_and_fail_the_report(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = StorePlace.lines

    def spoilt(place: StorePlace, queue: QueueId, *given: Any, **named: Any) -> Iterator[Any]:
        for line in lines(place, queue, *given, **named):
            unreadable = queue.topic.startswith("%DLQ%") and line["queue_offset"] == 1
            yield Unreadable(queue.topic, 0, 1, "bad body CRC") if unreadable else line

    monkeypatch.setattr(StorePlace, "lines", spoilt)
    text = run("report", root, exit_code=1)
    assert text.count("1 dead letters cannot be read, the first: %DLQ%billing queue 0 offset 1: bad body CRC") == 2


def test_what_is_missing_is_in_the_page_and_the_exit_code_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = StorePlace.topic_entries

    def known(place: StorePlace) -> list[dict[str, Any]]:
        place.troubles = {"b": ClientError("broker b does not answer")}
        return entries(place)

    monkeypatch.setattr(StorePlace, "known_entries", known)
    text = run("report", root, exit_code=1)
    assert text.count("no answer: broker b does not answer") == 2, "in the page and on stderr"
    assert "orders" in text


def test_damage_is_in_the_report(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("crcflip")
    run("recover", fixture.root)
    page = Page(run("report", fixture.root, exit_code=1))
    page.assert_harmless()
    assert any(text.startswith("cut by a recovery") for text in page.texts)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_names_that_messages_bring_are_text(tmp_path: Path, hostile: str) -> None:
    path = tmp_path / "store"
    with open_store(path, read_only=False, create=True) as store:
        properties = {"RETRY_TOPIC": hostile.replace("\x00", "")}
        letter = InnerMessage(topic="%DLQ%g", queue_id=0, body=b"x", properties=properties, reconsume_times=3)
        store.put_inner([letter])
    page = Page(run("report", path))
    page.assert_harmless()
    assert visible(hostile.replace("\x00", "")) in page.texts


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (None, None),
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (10 << 30, "10.0 GiB"),
        (5_000 << 40, "5,000.0 TiB"),
    ],
)
def test_a_size_is_told_in_its_greatest_unit(size: int | None, words: str | None) -> None:
    assert bytes_in_words(size) == words
