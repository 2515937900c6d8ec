"""Messages that an Apache broker moved into a directory of tiered storage: its own client's list is the judge.

The fixture's three oldest log files were deleted after their messages had moved; the broker served `served.jsonl` from both.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jobs.verify_store import verify_store
from spark_mq.cli import app
from spark_mq.cli.message_lines import dump_queue
from spark_mq.conditions import DataLossError
from storage import open_store
from storage.errors import MovedMessagesMissingError, StateFileError
from storage.tables.moved import METADATA_FILE, parse_moved
from tests.spark.in_process import next_batch, open_stream, read_batch
from tests.support.fixture_stores import Fixture

from .test_batch_queue import as_served, in_order, served

TOPIC = "TopicTiered"


@pytest.fixture
def fixture(fixture_store: Callable[[str], Fixture]) -> Fixture:
    """Its broker.conf names the directory where it lies now."""
    found = fixture_store("tiered")
    set_place(found, f"{found.root}/tiered")
    return found


def set_place(fixture: Fixture, place: str) -> None:
    text = re.sub("(?m)^tieredStoreFilePath=.*$", f"tieredStoreFilePath={place}", fixture.conf.read_text())
    fixture.conf.write_text(text)


def read(fixture: Fixture, **options: str) -> list[dict[str, Any]]:
    return read_batch(fixture.root, conf=str(fixture.conf), topic=TOPIC, **options)


def of_topic(fixture: Fixture) -> list[dict[str, Any]]:
    return comparable([line for line in served(fixture) if line["topic"] == TOPIC])


def comparable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the places: the broker served some messages from tiered storage that the log still has, and names their places there."""
    return [{name: line[name] for name in line if name != "commitLogOffset"} for line in in_order(lines)]


def test_a_batch_read_gives_what_the_broker_serves_from_both(fixture: Fixture) -> None:
    rows = as_served(read(fixture, verifyCrc="true"))
    assert comparable(rows) == of_topic(fixture) != []
    lines = [line for line in served(fixture) if line["topic"] == TOPIC]
    places = {(line["queueId"], line["queueOffset"]): line["commitLogOffset"] for line in lines}
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        moved = [row for row in rows if row["commitLogOffset"] < store.log.minimum]
        assert len(moved) > 100
        assert all(places[row["queueId"], row["queueOffset"]] == row["commitLogOffset"] for row in moved)
        for line in served(fixture, "queue"):
            assert store.bounds(line["topic"], line["queueId"]) == (line["minOffset"], line["maxOffset"])


def test_a_stream_that_stops_among_moved_messages_goes_on_there(fixture: Fixture) -> None:
    options = {"conf": str(fixture.conf), "topic": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "37"}
    rows: list[dict[str, Any]] = []
    position = open_stream(fixture.root, **options).initialOffset()
    while True:
        reader = open_stream(fixture.root, **options)  # each time as another process
        end, found = next_batch(reader, json.loads(json.dumps(position)))
        if end == position:
            break
        rows, position = rows + found, end
    assert comparable(as_served(rows)) == of_topic(fixture)


def test_dump_and_get_give_them_too(fixture: Fixture) -> None:
    expected = [(line["queueId"], line["queueOffset"], line["bodySha256"]) for line in of_topic(fixture)]
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        lines = [line for queue_id in (0, 1) for line in dump_queue(store, TOPIC, queue_id)]
        assert [(line["cqQueueId"], line["cqOffset"], line["bodySha256"]) for line in lines] == expected
        at, found = 0, []
        while at < store.max_offset(TOPIC, 1):
            result = store.get(TOPIC, 1, at)
            found += [message.queue_offset for message in result.messages]
            at = result.next_begin_offset
        assert found == list(range(store.max_offset(TOPIC, 1)))


def test_tags_and_bytes_and_times_reach_over_the_border(fixture: Fixture) -> None:
    tagged = comparable(as_served(read(fixture, tags="TagB")))
    assert tagged == [line for line in of_topic(fixture) if line["tags"] == "TagB"] != []
    rows = [row for row in read(fixture) if row["queue_id"] == 0]
    times = [int(row["store_timestamp"].timestamp() * 1000 + 0.5) for row in rows]
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        assert store.size_between(TOPIC, 0, 0, len(rows)) == sum(row["store_size"] for row in rows)
        for time_ms in sorted({*times, times[0] - 1, times[-1] + 1}):
            first = next((at for at, found in enumerate(times) if found >= time_ms), len(times))
            last = max((at for at, found in enumerate(times) if found <= time_ms), default=0)
            assert store.offset_in_queue_by_time(TOPIC, 0, time_ms) == first
            assert store.offset_in_queue_by_time(TOPIC, 0, time_ms, upper=True) == last


def test_the_store_is_healthy(fixture: Fixture) -> None:
    assert verify_store(str(fixture.root), conf=str(fixture.conf)).findings == ()


def test_what_cannot_be_read_is_named_with_its_place(fixture: Fixture) -> None:
    set_place(fixture, "/nowhere")
    warning = rf"tiered storage.* {TOPIC} queue 0 offsets 0 to \d+ \(broker-lab/{TOPIC}/0\)"
    with pytest.warns(UserWarning, match=warning):
        rows = read(fixture)
    assert 0 < len(rows) < len(of_topic(fixture))
    early = json.dumps({TOPIC: {"0": 1, "1": 1}})
    named = rf"starting offset 1 is outside .*\n?.*offsets 0 to \d+ lie in tiered storage, file broker-lab/{TOPIC}/0"
    with pytest.warns(UserWarning, match="tiered"), pytest.raises(DataLossError, match=named):
        read(fixture, startingOffsets=early)


def test_a_stream_names_what_has_moved_away_since(fixture: Fixture) -> None:
    options = {"conf": str(fixture.conf), "topic": TOPIC, "startingOffsets": json.dumps({TOPIC: {"0": 3, "1": 3}})}
    position = open_stream(fixture.root, **options).initialOffset()
    shutil.move(fixture.root / "tiered", fixture.root.parent / "elsewhere")
    named = rf"lie in tiered storage, file broker-lab/{TOPIC}/0"
    with pytest.warns(UserWarning, match="tiered"), pytest.raises(DataLossError, match=named):
        next_batch(open_stream(fixture.root, **options), position)


def test_a_key_finds_what_has_moved(fixture: Fixture) -> None:
    """As a row, and by each door that looks up a key."""
    moved = [row for row in read(fixture) if row["queue_id"] == 0][5]
    key, unique_key = moved["keys"], moved["unique_key"]
    expected = [line for line in as_served(read(fixture)) if key in (line["keys"] or "").split()]
    assert as_served(read(fixture, key=key)) == expected != []
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        assert moved["commitlog_offset"] < store.log.minimum
        found = store.query(TOPIC, key)
        assert {(each.queue_id, each.queue_offset) for each in found} >= {(0, moved["queue_offset"])}
        assert [each.queue_offset for each in store.query(TOPIC, unique_key)] == [moved["queue_offset"]]
        time_ms = found[0].store_time_ms
        assert store.query(TOPIC, unique_key, end_ms=time_ms - 60_000) == []
        assert [each.queue_offset for each in store.query(TOPIC, unique_key, begin_ms=time_ms)] == [5]
        assert store.query(TOPIC, unique_key[1:]) == []


def without_own_queue(fixture: Fixture) -> list[dict[str, Any]]:
    """A broker deletes a queue when all of it has left the log. Returns what tiered storage has of it."""
    shutil.rmtree(fixture.root / "consumequeue" / TOPIC / "0")
    end = parse_moved((fixture.root / "config" / METADATA_FILE).read_text())[TOPIC, 0].end
    return [line for line in of_topic(fixture) if line["queueId"] == 0 and line["queueOffset"] < end]


@pytest.mark.parametrize("of_topic_too", [False, True])
def test_a_queue_that_is_only_in_tiered_storage_is_read(of_topic_too: bool, fixture: Fixture) -> None:
    moved = without_own_queue(fixture)
    if of_topic_too:
        shutil.rmtree(fixture.root / "consumequeue" / TOPIC)
    rows = [row for row in read(fixture, verifyCrc="true") if row["queue_id"] == 0]
    assert comparable(as_served(rows)) == moved != []
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        assert store.bounds(TOPIC, 0) == (0, len(moved))
        assert not any(topic.startswith("rmq_sys_") for topic in store.topics()), "its index is no queue"
        offsets = [message.queue_offset for at in (0, 32, 64) for message in store.get(TOPIC, 0, at).messages]
        assert offsets == list(range(96))
        assert [line["cqOffset"] for line in dump_queue(store, TOPIC, 0)] == list(range(len(moved)))
        first, last = rows[0]["store_timestamp"].timestamp(), rows[-1]["store_timestamp"].timestamp()
        assert store.offset_in_queue_by_time(TOPIC, 0, int(first * 1000)) == 0
        assert store.offset_in_queue_by_time(TOPIC, 0, int(last * 1000) + 1_000) == len(moved)
        assert not store.refresh()
        assert store.bounds(TOPIC, 0) == (0, len(moved))
        assert [each.queue_offset for each in store.query(TOPIC, rows[7]["unique_key"])] == [7]


def test_a_queue_that_is_only_in_tiered_storage_is_named_where_it_is_not_read(fixture: Fixture) -> None:
    end = len(without_own_queue(fixture))
    set_place(fixture, "/nowhere")
    warning = rf"tiered storage.* {TOPIC} queue 0 offsets 0 to {end - 1} \(broker-lab/{TOPIC}/0\)"
    with pytest.warns(UserWarning, match=warning):
        open_store(fixture.root, config=str(fixture.conf)).close()


def test_a_message_id_of_the_log_says_that_its_message_may_have_moved(fixture: Fixture) -> None:
    msg_id = next(row["msg_id"] for row in read(fixture))
    arguments = ["query", str(fixture.root), "--conf", str(fixture.conf), "--msg-id", msg_id]
    assert re.search(r"place \d+ has left the log.*tiered storage.*--key", CliRunner().invoke(app, arguments).stderr)


def test_what_expires_from_the_log_while_a_driver_runs_is_read_where_it_has_moved(fixture: Fixture) -> None:
    """The driver has seen the store before anything was moved, and goes on when the log's files are gone."""
    tiered, away = fixture.root / "tiered", fixture.root.parent / "later"
    tiered.rename(away)
    for name in (METADATA_FILE, f"{METADATA_FILE}.bak"):
        (fixture.root / "config" / name).unlink()
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        kept = store.min_offset(TOPIC, 0)
        assert kept > 0
        away.rename(tiered)
        Path(store.log.files[0].path).unlink()
        store.refresh()
        assert store.min_offset(TOPIC, 0) == 0
        assert [each.queue_offset for each in store.get(TOPIC, 0, 0, 8).messages] == list(range(8))


def test_a_driver_looks_again_when_tiered_storage_expires(fixture: Fixture) -> None:
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        assert store.min_offset(TOPIC, 0) == 0
        first, *later = segments(fixture, "CONSUME_QUEUE")
        assert later
        first.unlink()
        begin = int(later[0].name[-20:]) // 20
        result = store.get(TOPIC, 0, 0, 8)
        assert result.messages == ()
        assert result.next_begin_offset == store.min_offset(TOPIC, 0) == begin


def segments(fixture: Fixture, kind: str) -> list[Path]:
    return sorted(fixture.root.glob(f"tiered/*/broker-lab/{TOPIC}/0/{kind}/*"), key=lambda path: path.name[-20:])


@pytest.mark.parametrize("kind", ["CONSUME_QUEUE", "COMMIT_LOG"])
@pytest.mark.parametrize("way", ["missing", "short"])
def test_a_lost_segment_is_named_and_never_a_gap(kind: str, way: str, fixture: Fixture) -> None:
    rows = [row["queue_offset"] for row in read(fixture) if row["queue_id"] == 0]
    lost = segments(fixture, kind)[way == "missing"]
    if way == "missing":
        lost.unlink()
    else:
        lost.write_bytes(lost.read_bytes()[:-10])
    named = (
        rf"offsets \d+ to \d+ of {TOPIC} queue 0 have moved into tiered storage, and are not there: see file .*/{kind}/"
    )
    with pytest.raises(DataLossError, match=named + re.escape(lost.name)):
        read(fixture)
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        lines = [line for line in dump_queue(store, TOPIC, 0) if "error" in line]
        with pytest.raises(MovedMessagesMissingError):
            store.get(TOPIC, 0, lines[0]["cqOffset"])
    kept = [row["queue_offset"] for row in read(fixture, failOnDataLoss="false") if row["queue_id"] == 0]
    assert [line["cqOffset"] for line in lines] == sorted(set(rows) - set(kept)) != []


def test_an_unreadable_table_of_what_has_moved_is_a_warning(fixture: Fixture) -> None:
    path = fixture.root / "config" / METADATA_FILE
    path.write_text("[", "utf-8")
    path.with_name(f"{METADATA_FILE}.bak").unlink(missing_ok=True)
    set_place(fixture, "/nowhere")
    with pytest.warns(UserWarning, match=f"which messages lie in tiered storage is not known.*{METADATA_FILE}"):
        rows = read(fixture)
    assert 0 < len(rows) < len(of_topic(fixture))
    early = json.dumps({TOPIC: {"0": 1, "1": 1}})
    with pytest.warns(UserWarning, match="tiered"), pytest.raises(DataLossError, match="starting offset 1 is outside"):
        read(fixture, startingOffsets=early)


def test_the_metadata_say_what_has_moved(fixture: Fixture) -> None:
    text = (fixture.root / "config" / METADATA_FILE).read_text()
    ranges = parse_moved(text)
    assert ranges[TOPIC, 0][:2] == (0, 100)
    assert parse_moved("{}") == {}
    for broken in ('{"consumeQueueFileSegmentTable": {"a": {}}}', '{"consumeQueueFileSegmentTable": []}', "["):
        with pytest.raises(StateFileError):
            parse_moved(broken)
