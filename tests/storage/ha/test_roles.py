"""Who is in sync, what a broker becomes, and which epochs a log has: pure decisions of controller mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import EpochEntry, FrameEpoch, MasterHandshake
from storage.ha.epochs import EpochFile, FollowedEpochs, forget_epoch, lost_epoch, note_epoch
from storage.ha.replicas import NEAR_BYTES, PATIENCE_MS, UNPROVEN, Replica, Role, SyncState, Term, next_role

BEHIND_MS = 15_000


def replica(broker_id: int, acknowledged: int, *, is_learner: bool = False) -> Replica:
    return Replica(f"id:{broker_id}", broker_id, f"h:{broker_id}", acknowledged, is_learner)


def joined(state: SyncState, *replicas: Replica, end: int, now_ms: int = 0) -> frozenset[int] | None:
    """Two looks: after the first one puts wait for who is to join."""
    state.look(replicas, end, now_ms)
    return state.look(replicas, end, now_ms)


def test_a_replica_is_waited_for_before_the_controller_is_asked() -> None:
    state = SyncState(1, frozenset({1}), 5, 0, BEHIND_MS)
    assert state.look((replica(2, 100),), 100, 0) is None
    assert state.union == {1, 2}
    assert state.look((replica(2, 100),), 200, 1) is None, "it lacks what came until puts waited for it"
    assert state.look((replica(2, 199),), 300, 2) is None
    assert state.look((replica(2, 200),), 400, 3) == {1, 2}


def test_far_replicas_learners_and_strangers_to_the_log_are_not_waited_for() -> None:
    state = SyncState(1, frozenset({1}), 5, 0, BEHIND_MS)
    others = replica(2, 10), replica(3, UNPROVEN), replica(4, NEAR_BYTES, is_learner=True)
    assert joined(state, *others, end=NEAR_BYTES + 11) is None
    assert state.union == {1}


def test_who_joins_and_does_not_catch_up_is_waited_for_no_longer() -> None:
    state = SyncState(1, frozenset({1}), 5, 0, BEHIND_MS)
    assert joined(state, replica(2, 10), end=20) is None
    assert state.look((replica(2, 10),), 20, PATIENCE_MS + 1) is None
    assert state.union == {1}
    assert joined(state, replica(2, 10), end=20, now_ms=PATIENCE_MS + 2) is None
    assert state.union == {1}, "and not at once again"


def test_who_leaves_while_it_joins_has_to_catch_up_with_all_that_has_come_since() -> None:
    """Puts did not wait for it meanwhile: what it had to have before is not enough."""
    state = SyncState(1, frozenset({1}), 5, 0, BEHIND_MS)
    assert joined(state, replica(2, 90), end=100) is None
    assert state.look((), 200, 1) is None
    assert state.union == {1}
    assert state.look((replica(2, 100),), 200, 2) is None
    assert state.look((replica(2, 299),), 300, 3) is None
    assert state.union == {1, 2}
    assert state.look((replica(2, 300),), 300, 4) == {1, 2}


def test_who_has_not_said_where_it_stands_is_not_waited_for_however_short_the_log_is() -> None:
    state = SyncState(1, frozenset({1}), 5, 0, BEHIND_MS)
    assert joined(state, replica(3, UNPROVEN), end=10) is None
    assert state.union == {1}


def test_a_member_that_the_controller_has_just_added_has_its_time_to_come() -> None:
    """It may have been added by an answer that was lost, and be on its way to this master."""
    state = SyncState(1, frozenset({1}), 5, 0, behind_ms=1_000)
    state.holds(frozenset({1, 2}), 6, 100_000)
    assert state.look((), 10, 101_000) is None
    assert state.look((), 10, 101_001) == {1}


def test_old_and_new_count_until_the_controller_answers() -> None:
    state = SyncState(1, frozenset({1, 2}), 5, 0, BEHIND_MS)
    assert state.look((replica(2, 10),), 10, 0) is None
    wanted = state.look((), 10, 1)
    assert wanted == {1}
    state.asks(wanted)
    assert state.union == {1, 2}
    state.holds(frozenset({1}), 6, 2)
    assert (state.members, state.union, state.epoch) == ({1}, {1}, 6)
    state.holds(frozenset({1, 2}), 5, 3)
    assert state.members == {1}, "an older answer says nothing"


def test_an_answer_that_is_lost_leaves_all_waited_for_until_another_one_says_what_holds() -> None:
    state = SyncState(1, frozenset({1}), 5, 0, BEHIND_MS)
    wanted = joined(state, replica(2, 10), end=10)
    assert wanted == {1, 2}
    state.asks(wanted)
    state.unanswered()
    assert state.look((), 10, 1) == {1, 2}, "it is asked again, also where the replica has left"
    assert state.union == {1, 2}
    state.holds(frozenset({1}), 5, 2)
    assert state.union == {1, 2}, "the controller may yet do what it was asked of this set"
    state.holds(frozenset({1, 2}), 6, 3)
    assert state.look((), 10, 4) == {1}
    state.asks(frozenset({1}))
    state.unanswered()
    state.refused(5)
    assert (state.union, state.look((replica(2, 10),), 10, 6)) == ({1, 2}, None)


def test_what_is_in_doubt_is_waited_for_when_something_else_is_asked_for() -> None:
    """The controller may have added 2, and may be asked to add 3 before anybody knows."""
    state = SyncState(1, frozenset({1}), 5, 0, BEHIND_MS)
    state.asks(frozenset({1, 2}))
    state.unanswered()
    wanted = joined(state, replica(3, 10), end=10)
    assert wanted == {1, 3}
    state.asks(wanted)
    assert state.union == {1, 2, 3}
    state.holds(frozenset({1}), 5, 1)
    assert state.union == {1, 2, 3}, "nothing has changed there yet"
    assert state.look((), 10, 2) == {1, 2}, "whose answer is lost is asked for again"
    state.unanswered()
    assert state.look((), 10, 3) == {1, 2, 3}
    state.holds(frozenset({1, 2}), 6, 4)
    assert state.union == {1, 2}
    state.asks(frozenset({1}))
    state.unanswered()
    assert state.look((replica(2, 10),), 10, 5) == {1, 2}, "who is there again stays in what is asked for"


def test_a_master_that_may_have_lost_its_end_is_known_after_another_start_of_the_machine(tmp_path: Path) -> None:
    files, root = LocalFileSystem(), str(tmp_path)
    assert lost_epoch(files, root) is None
    note_epoch(files, root, 7)
    assert lost_epoch(files, root) is None, "the same start: only the process has ended"
    path = tmp_path / "spark_mq" / "master.json"
    path.write_text(path.read_text().replace(files.boot_id(), "another"))
    assert lost_epoch(files, root) == 7
    for damaged in ("", "{", "[]", '{"epoch": 7}', '{"epoch": "x", "bootId": "b"}'):
        path.write_text(damaged)
        with pytest.raises(StateFileError, match=r"master\.json"):
            lost_epoch(files, root)
    forget_epoch(files, root)
    assert lost_epoch(files, root) is None


def test_of_one_epoch_the_smaller_set_is_the_later_one() -> None:
    """An operator has had the controller forget a broker; what was asked for meanwhile is waited for all the same."""
    state = SyncState(1, frozenset({1, 2, 3}), 5, 0, BEHIND_MS)
    state.asks(frozenset({1, 2, 3, 4}))
    state.holds(frozenset(), 5, 0)
    assert state.members == {1, 2, 3}, "an answer without a set"
    state.holds(frozenset({1, 3}), 5, 0)
    assert state.members == {1, 3}
    assert 4 in state.union
    state.holds(frozenset({1, 2, 3}), 5, 0)
    assert state.members == {1, 3}, "a late answer"


def test_a_refused_stranger_is_no_longer_waited_for() -> None:
    state = SyncState(1, frozenset({1}), 5, 0, BEHIND_MS)
    wanted = joined(state, replica(9, 10), end=10)
    assert wanted == {1, 9}
    state.asks(wanted)
    state.refused(10)
    assert state.look((replica(9, 10),), 10, 11) is None
    assert state.union == {1}


def test_a_member_that_never_came_or_does_not_catch_up_leaves_after_a_while() -> None:
    state = SyncState(1, frozenset({1, 2, 3}), 5, 0, behind_ms=1_000)
    assert state.look((replica(2, 10),), 20, 1_000) is None
    assert state.look((replica(2, 10),), 30, 2_001) == {1}
    state = SyncState(1, frozenset({1, 2}), 5, 0, behind_ms=1_000)
    for now_ms in range(0, 5_000, 500):
        assert state.look((replica(2, 10 + now_ms),), 20 + now_ms, now_ms) is None


@pytest.mark.parametrize(
    ("present", "told", "is_changed"),
    [
        (None, Term(1, 1, "h:1"), True),
        (None, Term(2), False),
        (Term(1, 1, "h:1"), Term(1, 1, "h:1"), False),
        (Term(1, 1, "h:1"), Term(2), False),
        (Term(1, 1, "h:1"), Term(2, 2, "h:2"), True),
        (Term(2, 2, "h:2"), Term(1, 1, "h:1"), False),
    ],
)
def test_only_a_later_term_with_a_master_changes_a_role(present: Term | None, told: Term, is_changed: bool) -> None:
    role = next_role(1, None if present is None else Role(1, present), told)
    assert (role == Role(1, told)) if is_changed else role is None


def test_a_slave_follows_its_master_to_another_address_within_the_term() -> None:
    """Controller and master were started anew together, and the master is found elsewhere: nobody is elected by that."""
    slave = Role(2, Term(3, 1, "old:1", frozenset({1, 2}), 4))
    moved = Term(3, 1, "new:1", frozenset({1, 2}), 4)
    assert next_role(2, slave, moved) == Role(2, moved)
    assert next_role(2, Role(2, moved), moved) is None
    assert next_role(2, slave, moved._replace(epoch=2)) is None, "what is said late does not count"
    assert next_role(1, Role(1, slave.term), moved) is None, "a master knows where it is"


def test_a_master_is_0_to_name_servers_and_a_slave_its_own_id() -> None:
    assert Role(3, Term(1, 3, "h:3")).registered_id == 0
    assert Role(3, Term(1, 2, "h:2")).registered_id == 3


def test_an_epoch_file_keeps_empty_epochs_and_is_read_again(tmp_path: Path) -> None:
    files = LocalFileSystem()
    epochs = EpochFile(files, str(tmp_path))
    assert epochs.last_epoch == -1
    epochs.add((EpochEntry(1, 0), EpochEntry(2, 0), EpochEntry(3, 50)), 10)
    assert epochs.entries == ((1, 0), (2, 0))
    epochs.add((EpochEntry(2, 7), EpochEntry(3, 50)), 60)
    assert EpochFile(files, str(tmp_path)).entries == ((1, 0), (2, 0), (3, 50))
    epochs.cut(50)
    assert EpochFile(files, str(tmp_path)).entries == ((1, 0), (2, 0), (3, 50))
    epochs.cut(49)
    assert EpochFile(files, str(tmp_path)).entries == ((1, 0), (2, 0))
    assert (tmp_path / "epochFileCheckpoint").read_text("ascii").startswith("2\n")


def test_a_slave_without_a_byte_of_an_epoch_knows_it_all_the_same(tmp_path: Path) -> None:
    """Elected then, it has a place in common with its old master, which goes on behind it alone."""
    epochs = FollowedEpochs(EpochFile(LocalFileSystem(), str(tmp_path)))
    assert epochs.agreed_end(MasterHandshake(0, 1, (EpochEntry(1, 0),)), 0) == 0
    epochs.begin(0)
    epochs.file.cut(0)
    epochs.file.add((EpochEntry(2, 0),), 0)
    old_master = FollowedEpochs(EpochFile(LocalFileSystem(), str(tmp_path / "old")))
    (tmp_path / "old").mkdir()
    old_master.file.add((EpochEntry(1, 0),), 0)
    assert old_master.agreed_end(MasterHandshake(0, 2, epochs.file.entries), 12_798) == 0


def test_an_epoch_that_nobody_else_has_does_not_claim_the_bytes_behind_the_cut(tmp_path: Path) -> None:
    """An unclean election: this log had its epoch 3 from 100 on, the others had their epoch 2 there."""
    epochs = FollowedEpochs(EpochFile(LocalFileSystem(), str(tmp_path)))
    epochs.file.add((EpochEntry(1, 0), EpochEntry(3, 100)), 150)
    masters = (EpochEntry(1, 0), EpochEntry(2, 100), EpochEntry(4, 200))
    assert epochs.agreed_end(MasterHandshake(300, 4, masters), 150) == 100
    epochs.file.cut(100)
    epochs.begin(100)
    epochs.note(FrameEpoch(4, 200, 300), 300, 300)
    assert epochs.file.entries == masters
    former = FollowedEpochs(EpochFile(LocalFileSystem(), str(tmp_path / "former")))  # it followed this one in epoch 3
    (tmp_path / "former").mkdir()
    former.file.add((EpochEntry(1, 0), EpochEntry(3, 100)), 140)
    assert former.agreed_end(MasterHandshake(300, 4, epochs.file.entries), 140) == 100


def test_a_frame_of_a_later_epoch_brings_those_before_it(tmp_path: Path) -> None:
    epochs = FollowedEpochs(EpochFile(LocalFileSystem(), str(tmp_path)))
    assert epochs.agreed_end(MasterHandshake(2_000, 2, (EpochEntry(1, 0), EpochEntry(2, 1_057))), 0) == 0
    said = FrameEpoch(2, 1_057, 500)  # as Java calls the first 1,057 bytes
    epochs.note(said, 1_000, 0)
    assert epochs.file.entries == ((1, 0),)
    epochs.note(said, 1_057, 0)
    assert epochs.file.entries == ((1, 0), (2, 1_057))


def test_the_longer_log_without_epochs_is_not_taken_for_the_masters(tmp_path: Path) -> None:
    epochs = FollowedEpochs(EpochFile(LocalFileSystem(), str(tmp_path)))
    assert epochs.agreed_end(MasterHandshake(2_000, 2, (EpochEntry(1, 0),)), 1_500) == 1_500
    assert "another log" in str(epochs.agreed_end(MasterHandshake(-1, -1, ()), 1_500))
