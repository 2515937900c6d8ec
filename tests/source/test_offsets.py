"""The text of a position is a function of the position; a user's JSON is read strictly and by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.conditions import OffsetJsonError
from spark_mq.source.offsets import (
    EARLIEST,
    LATEST,
    NamedQueue,
    QueueId,
    QueueOffset,
    QueueOffsets,
    has_expired,
    parse_assignment,
    parse_positions,
    with_brokers,
)

A0 = QueueId("TopicA", "broker-a", 0)
A2 = QueueId("TopicA", "broker-a", 2)
A10 = QueueId("TopicA", "broker-a", 10)
B0 = QueueId("TopicA", "broker-b", 0)

queues = st.builds(QueueId, st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5), st.integers(0, 2**31 - 1))
places = st.none() | st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
positions = st.dictionaries(queues, st.builds(QueueOffset, st.integers(0, 2**63 - 1), places))


def test_the_checkpoint_has_the_promised_text_with_queue_ids_in_numeric_order() -> None:
    offsets = QueueOffsets(
        {
            B0: QueueOffset(5, (4096, 1700000000000)),
            A10: QueueOffset(0),
            A2: QueueOffset(12, (0, 1700000000001)),
        }
    )
    assert json.dumps(offsets.to_json_dict()) == (
        '{"TopicA": {"broker-a": {"2": {"next": 12, "before": [0, 1700000000001]}, '
        '"10": {"next": 0, "before": null}}, '
        '"broker-b": {"0": {"next": 5, "before": [4096, 1700000000000]}}}}'
    )


@given(positions)
def test_reading_a_checkpoint_gives_the_position_it_was_written_from(
    by_queue: dict[QueueId, QueueOffset],
) -> None:
    offsets = QueueOffsets(by_queue)
    assert QueueOffsets.from_json_dict(json.loads(json.dumps(offsets.to_json_dict()))) == offsets
    assert dict(offsets) == by_queue


@given(st.lists(st.tuples(queues, st.builds(QueueOffset, st.integers(0, 99), places))), st.randoms())
def test_the_text_does_not_depend_on_the_order_of_making(
    items: list[tuple[QueueId, QueueOffset]], random: object
) -> None:
    by_queue = dict(items)
    other = dict(reversed(by_queue.items()))
    assert json.dumps(QueueOffsets(by_queue).to_json_dict()) == json.dumps(QueueOffsets(other).to_json_dict())


def test_a_queue_that_did_not_move_keeps_its_text_though_the_record_before_it_expired() -> None:
    offsets = QueueOffsets({A0: QueueOffset(5, (100, 7)), A2: QueueOffset(1, (50, 6))})
    asked = []

    def record_before(queue: QueueId, offset: int) -> tuple[int, int] | None:
        asked.append((queue, offset))
        return (900, 8)

    moved = offsets.moved_to({A0: 5, A2: 3}, record_before)
    assert dict(moved) == {A0: QueueOffset(5, (100, 7)), A2: QueueOffset(3, (900, 8))}
    assert asked == [(A2, 3)]


def test_a_recreated_queue_does_not_look_unmoved_at_the_same_offset() -> None:
    offsets = QueueOffsets({A0: QueueOffset(5, (100, 7))})
    moved = offsets.moved_to({A0: 5}, lambda queue, offset: (900, 8), broken={A0})
    assert moved[A0] == QueueOffset(5, (900, 8))
    assert moved.to_json_dict() != offsets.to_json_dict()


def test_moving_takes_exactly_the_queues_of_the_ends() -> None:
    offsets = QueueOffsets({A0: QueueOffset(5), A2: QueueOffset(1)})
    assert offsets.moved_to({A2: 1, B0: 4}, lambda queue, offset: None).next_offsets() == {A2: 1, B0: 4}


@pytest.mark.parametrize(
    ("tree", "pointer"),
    [
        ([], ""),
        ({"T": 1}, "/T"),
        ({"T": {"b": [1]}}, "/T/b"),
        ({"T": {"b": {"x": {"next": 1, "before": None}}}}, "/T/b/x"),
        ({"T": {"b": {"00": {"next": 1, "before": None}}}}, "/T/b/00"),
        ({"T": {"b": {"-1": {"next": 1, "before": None}}}}, "/T/b/-1"),
        ({"T": {"b": {"٣": {"next": 1, "before": None}}}}, "/T/b/٣"),
        ({"T": {"b": {"2147483648": {"next": 1, "before": None}}}}, "/T/b/2147483648"),
        ({"T": {"b": {"0": 12}}}, "/T/b/0"),
        ({"T": {"b": {"0": {"next": 12}}}}, "/T/b/0"),
        ({"T": {"b": {"0": {"next": 12, "before": None, "more": 1}}}}, "/T/b/0"),
        ({"T": {"b": {"0": {"next": -1, "before": None}}}}, "/T/b/0/next"),
        ({"T": {"b": {"0": {"next": True, "before": None}}}}, "/T/b/0/next"),
        ({"T": {"b": {"0": {"next": 1.0, "before": None}}}}, "/T/b/0/next"),
        ({"T": {"b": {"0": {"next": 1, "before": [1]}}}}, "/T/b/0/before"),
        ({"T": {"b": {"0": {"next": 1, "before": [1, "2"]}}}}, "/T/b/0/before/1"),
        ({"a/b~c": {"b": {"0": 1}}}, "/a~1b~0c/b/0"),
    ],
)
def test_a_wrong_checkpoint_is_refused_at_its_place(tree: object, pointer: str) -> None:
    with pytest.raises(OffsetJsonError) as caught:
        QueueOffsets.from_json_dict(tree)
    assert caught.value.pointer == pointer
    assert str(caught.value).startswith("[SPARK_MQ_INVALID_OFFSETS] offset")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"T": {"broker-a": {"0": 12, "3": 0}}}', {("T", "broker-a", 0): 12, ("T", "broker-a", 3): 0}),
        ('{"T": {"broker-a": {"0": -2, "1": -1}}}', {("T", "broker-a", 0): -2, ("T", "broker-a", 1): -1}),
        ('{"T": {"0": 12}}', {("T", None, 0): 12}),
        ('{"T": {"0": {"0": 12}}}', {("T", "0", 0): 12}),  # a broker that is called 0
        ('{"T": {"a": {"0": {"next": 12, "before": [1, 2]}}}}', {("T", "a", 0): 12}),
        ("{}", {}),
    ],
)
def test_a_users_offsets_are_read_in_both_shapes(text: str, expected: dict[tuple[str, str | None, int], int]) -> None:
    assert parse_positions(text, "startingOffsets", lowest=EARLIEST) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "expected an object"),
        ('{"T": 12}', "/T: expected an object"),
        ('{"T": {"a": {"0": -3}}}', "/T/a/0: expected a whole number"),
        ('{"T": {"a": {"0": "12"}}}', "/T/a/0: expected a whole number"),
        ('{"T": {"a": {"0": 9223372036854775808}}}', "/T/a/0: expected a whole number"),
        ('{"T": {"a": 12}}', "/T/a: expected a queue id"),
        ('{"T": {"a": {"b": 12}}}', "/T/a/b: expected a queue id"),
        ('{"T": {"0": 12, "0": 13}}', "given twice in one object: 0"),
        ('{"T": ' * 100_000, "not JSON"),
        ('{"T": ' + "9" * 5_000 + "}", "not JSON"),
    ],
)
def test_wrong_offsets_of_a_user_are_refused_at_their_place(text: str, words: str) -> None:
    with pytest.raises(OffsetJsonError) as caught:
        parse_positions(text, "startingOffsets", lowest=EARLIEST)
    assert words in str(caught.value)
    assert "startingOffsets" in str(caught.value)


def test_times_have_no_sentinels_and_no_checkpoint_shape() -> None:
    for text in ('{"T": {"a": {"0": -1}}}', '{"T": {"a": {"0": {"next": 1, "before": null}}}}'):
        with pytest.raises(OffsetJsonError, match="/T/a/0"):
            parse_positions(text, "startingOffsetsByTimestamp")


def test_the_sentinels_are_kafkas() -> None:
    assert (EARLIEST, LATEST) == (-2, -1)  # KafkaOffsetRangeLimit


def test_an_assignment_is_read_with_and_without_brokers() -> None:
    assert parse_assignment('{"T": {"a": [0, 1]}, "U": [3]}', "assign") == {
        NamedQueue("T", "a", 0),
        NamedQueue("T", "a", 1),
        NamedQueue("U", None, 3),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no queue is named"),
        ('{"T": []}', "no queue is named"),
        ('{"T": 1}', "/T: expected an object"),
        ('{"T": {"a": 1}}', "/T/a: expected a list"),
        ('{"T": ["0"]}', "/T/0: expected a whole number"),
        ('{"T": [0, -1]}', "/T/1: expected a whole number"),
    ],
)
def test_a_wrong_assignment_is_refused_at_its_place(text: str, words: str) -> None:
    with pytest.raises(OffsetJsonError) as caught:
        parse_assignment(text, "assign")
    assert words in str(caught.value)


def test_a_name_without_a_broker_means_the_only_one() -> None:
    assert with_brokers([NamedQueue("T", None, 0)], {"broker-a"}, "assign") == [QueueId("T", "broker-a", 0)]


def test_a_name_without_a_broker_is_refused_where_there_are_several() -> None:
    with pytest.raises(OffsetJsonError, match="there are 2, broker-a, broker-b"):
        with_brokers([NamedQueue("T", None, 0)], {"broker-b", "broker-a"}, "assign")


def test_a_queue_named_with_and_without_its_broker_is_refused() -> None:
    with pytest.raises(OffsetJsonError, match=r"named twice.*T/a/0"):
        with_brokers([NamedQueue("T", None, 0), NamedQueue("T", "a", 0)], {"a"}, "assign")


def test_many_names_given_twice_are_found_in_one_go() -> None:
    """Not by a search for each, which takes minutes."""
    text = "{" + ",".join(f'"{number % 100_000}":{{}}' for number in range(200_000)) + "}"
    with pytest.raises(OffsetJsonError, match="given twice"):
        parse_positions(text, "startingOffsets")


@pytest.mark.parametrize(
    ("there", "hole", "expected"),
    [
        ({9, 20}, 10, False),  # the one before is there
        ({4, 20}, 10, False),  # before it there were none, either
        ({0, 20}, 10, False),
        ({20}, 10, True),
        (set(), 10, True),
        ({20}, 0, True),  # nothing says that offset 0 never had one
        ({1 << 40}, (1 << 40) - 1, True),
        ({5}, 1 << 40, False),
    ],
)
def test_messages_expire_from_the_front(there: set[int], hole: int, expected: bool) -> None:
    looks = []

    def first_from(offset: int) -> int | None:
        looks.append(offset)
        return min((each for each in there if each >= offset), default=None)

    assert has_expired(hole, first_from, lambda: False) is expected
    assert len(looks) <= 42
    assert not has_expired(hole, first_from, lambda: True), "any offset of a compacted topic may have no message"
