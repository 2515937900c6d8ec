"""How far groups are: what a reset is to commits and pulls, what is forgotten, what is to be saved."""

from __future__ import annotations

import json

from spark_mq.broker.group_offsets import GroupOffsets, with_own_groups
from storage.tables.consumer_groups import ConsumerOffsets

OWN = "CID_RMQ_SYS_TRANS"


def saved(offsets: GroupOffsets) -> dict[str, dict[str, int]]:
    """The file's table."""
    found: dict[str, dict[str, int]] = json.loads(offsets.table().to_text())["offsetTable"]
    return found


def test_a_reset_counts_as_the_offset_and_waits_for_the_next_pull_of_its_queue_alone() -> None:
    offsets = GroupOffsets()
    for queue_id in range(2):
        offsets.commit("g", "T", queue_id, 9, 0)
    offsets.reset("g", "T", 0, 3)
    assert [offsets.offset("g", "T", queue_id) for queue_id in range(3)] == [3, 9, -1]
    assert [offsets.has_reset("g", "T", queue_id) for queue_id in range(2)] == [True, False]
    assert not offsets.has_reset("other", "T", 0)
    assert saved(offsets) == {"T@g": {"0": 3, "1": 9}}, "after a restart it goes on there too"
    assert (offsets.take_reset("g", "T", 1), offsets.take_reset("g", "T", 0)) == (None, 3)
    assert (offsets.take_reset("g", "T", 0), offsets.has_reset("g", "T", 0), offsets.offset("g", "T", 0)) == (
        None,
        False,
        3,
    )


def test_a_reset_that_names_no_place_is_none() -> None:
    offsets = GroupOffsets()
    for group, topic, queue_id, offset in (("", "T", 0, 1), ("g", "", 0, 1), ("g", "T", -1, 1), ("g", "T", 0, -1)):
        offsets.reset(group, topic, queue_id, offset)
    assert (saved(offsets), offsets.take_change()) == ({}, False)


def test_everything_of_a_deleted_group_or_topic_is_forgotten_and_that_is_saved() -> None:
    for forget, kept in ((lambda made: made.forget_group("g"), "h@T"), (lambda made: made.forget_topic("T"), "g@U")):
        offsets = GroupOffsets()
        for group, topic in (("g", "T"), ("g", "U"), ("h", "T")):
            offsets.commit(group, topic, 0, 5, 0)
            offsets.reset(group, topic, 0, 4)
            offsets.note_pull(group, topic, 0, 8)
        offsets.take_change()
        forget(offsets)
        assert offsets.take_change(), "else a restart brings it back"
        assert (offsets.offset("g", "T", 0), offsets.pulled("g", "T", 0), offsets.has_reset("g", "T", 0)) == (
            -1,
            -1,
            False,
        )
        group, _, topic = kept.partition("@")
        assert (offsets.offset(group, topic, 0), offsets.pulled(group, topic, 0)) == (4, 8)
        forget(offsets)
        assert not offsets.take_change()


def test_a_clone_is_a_groups_own_from_then_on() -> None:
    offsets = GroupOffsets()
    offsets.commit("g", "T", 0, 5, 0)
    offsets.take_change()
    offsets.clone("nobody", "h", "T")
    assert not offsets.take_change()
    offsets.clone("g", "h", "T")
    assert offsets.take_change()
    offsets.commit("g", "T", 0, 9, 0)
    assert (offsets.offset("h", "T", 0), offsets.offset("g", "T", 0)) == (5, 9)


def test_of_two_tables_the_greater_offset_of_each_queue_counts() -> None:
    offsets, other = GroupOffsets(), GroupOffsets()
    for made, at in ((offsets, (5, 2)), (other, (3, 7))):
        for queue_id, offset in enumerate(at):
            made.commit("g", "T", queue_id, offset, 0)
    other.commit("h", "T", 0, 1, 0)
    offsets.raise_to(other.table())
    assert saved(offsets) == {"T@g": {"0": 5, "1": 7}, "T@h": {"0": 1}}


def test_what_the_brokers_own_duties_have_written_stays_as_it_stands_in_the_file() -> None:
    known, on_disk = GroupOffsets(), GroupOffsets()
    for made, own, group in ((known, 5, 9), (on_disk, 8, 1)):
        made.commit(OWN, "HALF", 0, own, 0)
        made.commit("g", "T", 0, group, 0)
    written = with_own_groups(known.table(), on_disk.table())
    assert (written.get("HALF", OWN, 0), written.get("T", "g", 0)) == (8, 9)
    assert with_own_groups(known.table(), None).get("HALF", OWN, 0) == 5


def test_the_version_rises_with_every_so_many_commits() -> None:
    offsets = GroupOffsets(ConsumerOffsets(), version_step=3)
    before, seen = offsets.version, []
    for number in range(7):
        offsets.commit("g", "T", 0, number, 1_000 + number)
        seen.append(offsets.version.counter - before.counter)
    assert seen == [0, 0, 1, 1, 1, 2, 2]
