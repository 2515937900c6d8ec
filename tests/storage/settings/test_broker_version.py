"""What a store's broker cannot read is not written, once somebody has named its release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage import MessageStore, open_store
from storage.errors import ConfigurationError, PutRefusedError, RowIllegalError
from storage.rules.half_messages import OP_TOPIC
from storage.rules.inner_messages import InnerMessage
from storage.settings.load import parse_config
from storage.settings.nouns import UNNAMED_RELEASE, parse_broker_version, release_of
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture

LONG = "%RETRY%" + "L" * 121


@pytest.mark.parametrize(
    ("text", "version"), [("4.9.7", (4, 9, 7)), (" 5.3 ", (5, 3, 0)), ("5.10.1", (5, 10, 1)), ("6.0", (6, 0, 0))]
)
def test_a_release_is_read_and_compared_by_its_numbers(text: str, version: tuple[int, int, int]) -> None:
    assert parse_broker_version(text) == version
    assert str(parse_broker_version(text)) == ".".join(map(str, version))


@pytest.mark.parametrize("text", ["", "5", "v5.3", "5.3.3-SNAPSHOT", "5.x", "4.8.0", "٥.٣"])
def test_what_names_no_release_or_one_that_nobody_tried_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no release of RocketMQ|the oldest release"):
        parse_broker_version(text)


def test_broker_conf_names_the_release_without_a_warning() -> None:
    config = parse_config(b"brokerName=a\nrocketmqVersion=4.9.7\n")
    assert (config.release.version, config.warnings) == ((4, 9, 7), ())
    assert parse_config(b"brokerName=a\n").release == UNNAMED_RELEASE


def test_a_release_in_broker_conf_that_nobody_can_read_is_an_error_with_its_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(b"brokerName=a\nrocketmqVersion=five\n", "b.conf")
    assert (caught.value.file, caught.value.line, caught.value.key) == ("b.conf", 2, "rocketmqVersion")


@pytest.mark.parametrize(
    ("text", "like"),
    [("4.10", "4.9"), ("5.0.9", "5.0"), ("5.2.0", "5.1"), ("5.3.2", "5.3"), ("5.4.1", "5.4"), ("6.0", "5.5")],
)
def test_a_release_between_two_rows_behaves_like_the_older_one(text: str, like: str) -> None:
    version = parse_broker_version(text)
    assert release_of(version) == replace(release_of(parse_broker_version(like)), version=version)


def test_what_5_4_and_5_5_changed_is_in_the_table() -> None:
    old, new, newest = (release_of(parse_broker_version(text)) for text in ("5.3.3", "5.4.0", "5.5.0"))
    assert (old.timer_deletion_keys, new.timer_deletion_keys) == (("topic+uniqueKey",), ("uniqueKey",))
    assert (old.longest_group, new.longest_group) == (255, 120)
    assert (old.recovered_log_files, new.recovered_log_files) == (None, 10)
    assert (old.indexes_tags, new.indexes_tags) == (False, True)
    assert (old.honours_priority, new.honours_priority) == (False, True)
    assert (old.batch_appends_request_properties, new.batch_appends_request_properties) == (True, False)
    assert (old.commit_names_real_queue, new.commit_names_real_queue) == (True, False)
    assert (new.parks_delayed_halves, newest.parks_delayed_halves) == (True, False)
    before = release_of(parse_broker_version("5.3.2"))
    assert (before.has_plain_acl, old.has_plain_acl, new.has_plain_acl) == (True, False, False)
    assert (new.checkpoint_has_queue_position, newest.checkpoint_has_queue_position) == (False, True)


# Timer messages


@pytest.mark.parametrize(("version", "is_refused"), [("4.9.7", True), ("5.0.0", False), (None, False)])
def test_a_deliver_time_needs_a_broker_with_a_timer(version: str | None, is_refused: bool, tmp_path: Path) -> None:
    with opened(tmp_path, version) as store:
        rows = pa.table(
            {
                "topic": ["orders"],
                "body": pa.array([b"later"]),
                "deliver_at": pa.array([store.writer.clock() + 60_000], pa.timestamp("ms", "UTC")),
            }
        )
        if not is_refused:
            assert store.put_batch(rows).to_pylist()[0]["topic"] == "rmq_sys_wheel_timer"
            return
        with pytest.raises(RowIllegalError, match=r"the store's broker has no timer.*rocketmqVersion is before 5\.0"):
            store.put_batch(rows)
        assert store.log_end == 0


# Long topics


@pytest.mark.parametrize(("version", "is_refused"), [("4.9.7", True), ("5.0.0", True), ("5.1.0", False), (None, False)])
def test_a_record_that_would_end_the_log_for_its_broker_is_not_appended(
    version: str | None, is_refused: bool, tmp_path: Path
) -> None:
    """4.9.7 and 5.0.0: CommitLog.checkMessageAndReturnSize, "found a illegal magic code"."""
    with opened(tmp_path, version) as store:
        store.save_topic(TopicConfig(LONG, 1, 1))
        message = InnerMessage(topic=LONG, queue_id=0, body=b"again", properties={}, born_time_ms=1)
        if not is_refused:
            assert store.put_inner([message]).num_rows == 1
            return
        with pytest.raises(PutRefusedError, match=r"has 128 bytes.*would cut its log.*5\.1\.0 is the first"):
            store.put_inner([message])
        assert store.log_end == 0
        short = InnerMessage(topic=LONG[:-1], queue_id=0, body=b"again", properties={}, born_time_ms=1)
        assert store.put_inner([short]).num_rows == 1


# Transactions


@pytest.mark.parametrize(
    ("version", "bodies"),
    [("4.9.7", [b"0", b"1", b"2"]), ("5.0.0", [b"0", b"1", b"2"]), ("5.1.0", [b"0,1,2,"]), (None, [b"0,1,2,"])],
)
def test_ended_halves_are_named_one_by_one_for_a_broker_that_reads_no_lists(
    version: str | None, bodies: list[bytes], tmp_path: Path
) -> None:
    """4.9.7 and 5.0.0: TransactionalMessageServiceImpl.fillOpRemoveMap parses the whole body as one number."""
    with opened(tmp_path, version) as store:
        rows = pa.table({"topic": ["orders"] * 3, "body": pa.array([b"a", b"b", b"c"])})
        store.put_batch(rows, transactional=True, producer_group="producers")
        assert [message.body for message in store.get(OP_TOPIC, 0, 0, 10).messages] == bodies


def test_the_release_that_is_given_comes_before_that_of_broker_conf(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("v4.9.7")
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        assert store.config.release.version == (4, 9, 7)
    with open_store(fixture.root, config=str(fixture.conf), rocketmq_version="5.2.0") as store:
        assert store.config.release.version == (5, 2, 0)
    config = parse_config(b"rocketmqVersion=4.9.7", rocketmq_version="5.2.0")
    assert config == parse_config(b"", rocketmq_version="5.2.0")
    assert config.timer.timer_wheel_enable


def opened(tmp_path: Path, version: str | None) -> MessageStore:
    return open_store(tmp_path / "store", read_only=False, create=True, rocketmq_version=version)
