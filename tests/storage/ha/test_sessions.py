"""Sessions of masters and slaves without sockets: what is believed, what is refused, and any split of bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from storage.format.replication import (
    Decoded,
    Dialect,
    EpochEntry,
    Frame,
    FrameEpoch,
    MasterHandshake,
    Report,
    SlaveHandshake,
    decode_from_master,
    decode_from_slave,
    encode_from_master,
    encode_from_slave,
)
from storage.ha.epochs import consistent_point, cut_at, epoch_at, flaw_of, with_entry
from storage.ha.replicas import UNPROVEN, Replica, Replicas
from storage.ha.sessions import (
    Acknowledged,
    Identified,
    MasterSession,
    Received,
    Refused,
    SessionEvent,
    SlaveSession,
    StartRequested,
    Timing,
    where_to_start,
)
from tests.format.test_replication import captured, values_of
from tests.support.replicas import holders

FILE = 4096
TIMING = Timing()


@dataclass
class Extent:
    """A log of bytes; frames end at multiples of 100, or where a file does."""

    end: int
    minimum: int = 0
    epochs: tuple[EpochEntry, ...] = ()
    confirmed: int | None = None

    @property
    def last_file_start(self) -> int:
        return self.end // FILE * FILE

    @property
    def confirm_offset(self) -> int:
        return self.end if self.confirmed is None else self.confirmed

    def cut(self, start: int, most_bytes: int) -> int:
        return min(start + most_bytes, self.end, (start // FILE + 1) * FILE)


def report(offset: int, dialect: Dialect = Dialect.DEFAULT) -> bytes:
    return encode_from_slave(dialect, Report(offset))


def begun(asked: int = 1_000, extent: Extent | None = None) -> MasterSession:
    session = MasterSession(Dialect.DEFAULT, 0, TIMING, batch_bytes=100)
    assert session.receive(report(asked), 0) == [StartRequested(asked)]
    assert session.begin(asked) == Acknowledged(asked)
    return session


def test_a_slave_is_sent_nothing_before_it_was_judged() -> None:
    session = MasterSession(Dialect.DEFAULT, 0, TIMING)
    extent = Extent(5_000)
    assert session.next_send(0, extent) is None
    assert session.receive(report(1_000), 0) == [StartRequested(1_000)]
    assert session.next_send(10_000, extent) is None
    session.begin(1_000)
    sent = session.next_send(10_000, extent)
    assert sent is not None
    assert (sent.start, sent.size_bytes) == (1_000, FILE - 1_000)


def test_an_acknowledgement_beyond_what_was_sent_counts_nothing() -> None:
    session = begun()
    session.next_send(0, Extent(5_000))
    (refused,) = session.receive(report(1_101), 0)
    assert isinstance(refused, Refused)
    assert "1101" in refused.reason
    assert session.acknowledged == 1_000
    assert session.receive(report(1_100), 0) == []
    assert session.next_send(0, Extent(5_000)) is None


def test_a_slave_that_has_all_is_told_soon_what_is_confirmed_by_now() -> None:
    session = MasterSession(Dialect.CONTROLLER, 0, TIMING)
    extent = Extent(500, epochs=(EpochEntry(1, 0),), confirmed=0)
    session.receive(encode_from_slave(Dialect.CONTROLLER, SlaveHandshake(2)) + report(400, Dialect.CONTROLLER), 0)
    session.begin(400)
    assert session.next_send(0, extent) is not None  # the handshake
    assert session.next_send(0, extent) is not None  # all that there is
    assert session.next_send(1_000, extent) is None
    extent.confirmed = 500
    told = session.next_send(1_000, extent)
    assert told is not None
    assert told.size_bytes == 0
    frame = decode_from_master(Dialect.CONTROLLER, told.header)
    assert isinstance(frame, Decoded)
    assert frame.value == Frame(500, b"", FrameEpoch(1, 0, 500))
    assert session.next_send(1_100, extent) is None
    extent.end, extent.confirmed = 600, 500
    assert session.next_send(1_110, extent) is not None
    extent.confirmed = 600
    assert session.next_send(1_115, extent) is None
    assert session.deadline() == 1_110 + 20
    assert session.next_send(1_130, extent) is not None
    assert session.deadline() == 1_130 + TIMING.heartbeat_ms


def test_an_acknowledgement_that_goes_back_ends_the_connection() -> None:
    session = begun()
    session.next_send(0, Extent(5_000))
    assert session.receive(report(1_100), 0) == [Acknowledged(1_100)]
    assert session.receive(report(1_100), 0) == []  # the same again is a sign of life
    assert [type(event) for event in session.receive(report(1_050), 0)] == [Refused]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (0, 2_000),
        (2_000, 2_000),
        (5_000, 5_000),
        (2_500, None),
        (1_999, "expired"),
        (5_001, "has not"),
        (2**40, "has not"),
    ],
)
def test_where_a_slave_may_begin(asked: int, expected: int | str | None) -> None:
    found = where_to_start(asked, Extent(5_000, minimum=2_000))
    assert expected in found if isinstance(expected, str) and isinstance(found, str) else found == expected


@pytest.mark.parametrize("first", [-2, -(2**63)])
def test_a_negative_place_is_refused_and_minus_one_is_waited_out(first: int) -> None:
    session = MasterSession(Dialect.DEFAULT, 0, TIMING)
    assert session.receive(report(-1), 0) == []
    assert [type(event) for event in session.receive(report(first), 0)] == [Refused]


def test_a_slave_without_a_log_may_say_so_again_and_is_believed_only_what_it_was_sent() -> None:
    session = MasterSession(Dialect.DEFAULT, 0, TIMING, batch_bytes=100)
    session.receive(report(0), 0)
    session.begin(FILE)
    assert session.receive(report(0), 0) == []
    session.next_send(0, Extent(2 * FILE))
    assert session.receive(report(FILE + 100), 0) == [Acknowledged(FILE + 100)]
    assert [type(event) for event in session.receive(report(0), 0)] == [Refused]


def test_frames_never_cross_a_file_and_heartbeats_come_when_there_is_nothing() -> None:
    session, extent = begun(4_000), Extent(4_300)
    sent = []
    while (outgoing := session.next_send(0, extent)) is not None:
        sent.append((outgoing.start, outgoing.size_bytes))
    assert sent == [(4_000, 96), (4_096, 100), (4_196, 100), (4_296, 4)]
    assert session.next_send(4_999, extent) is None
    heartbeat = session.next_send(5_000, extent)
    assert heartbeat is not None
    assert heartbeat.header == encode_from_master(Frame(4_300))
    assert session.deadline() == 10_000
    assert not session.is_silent(20_000)
    assert session.is_silent(20_001)


def test_a_stranger_of_the_controllers_dialect_is_refused() -> None:
    session = MasterSession(Dialect.CONTROLLER, 0, TIMING)
    assert [type(event) for event in session.receive(report(5, Dialect.CONTROLLER), 0)] == [Refused]


def test_who_says_that_it_is_somebody_else_is_refused_before_it_asks_for_anything() -> None:
    """Else the acknowledgements of one broker would count for another."""
    session = MasterSession(Dialect.CONTROLLER, 0, TIMING)
    first, other = (encode_from_slave(Dialect.CONTROLLER, SlaveHandshake(number)) for number in (2, 3))
    assert [type(event) for event in session.receive(first, 0)] == [Identified]
    assert [type(event) for event in session.receive(other, 0)] == [Refused]
    assert session.receive(report(5, Dialect.CONTROLLER), 0) == []


def test_a_slave_that_was_sent_what_was_cut_since_is_known() -> None:
    session = MasterSession(Dialect.DEFAULT, 0, TIMING)
    assert not session.is_past(Extent(0))
    session = begun()
    assert session.next_send(0, Extent(1_100)) is not None
    assert [session.is_past(Extent(end)) for end in (1_100, 1_099, 0)] == [False, True, True]


def test_frames_of_the_controllers_dialect_end_with_their_epoch_and_say_it() -> None:
    extent = Extent(3_000, epochs=(EpochEntry(1, 0), EpochEntry(2, 1_057), EpochEntry(4, 1_100)))
    session = MasterSession(Dialect.CONTROLLER, 0, TIMING, batch_bytes=2_000)
    hello = encode_from_slave(Dialect.CONTROLLER, SlaveHandshake(2, is_learner=True))
    assert session.receive(hello, 0) == [Identified(2, is_learner=True, syncs_from_last_file=False)]
    answer = session.next_send(0, extent)
    assert answer is not None
    assert answer.header == encode_from_master(MasterHandshake(3_000, 4, extent.epochs))
    assert session.receive(hello, 0) == []  # Java's slave repeats it
    assert session.next_send(0, extent) == answer
    assert session.receive(report(0, Dialect.CONTROLLER), 0) == [StartRequested(0)]
    session.begin(0)
    sent = [session.next_send(0, extent) for _ in range(3)]
    assert [(out.start, out.size_bytes) for out in sent if out] == [(0, 1_057), (1_057, 43), (1_100, 1_900)]
    decoded = decode_from_master(Dialect.CONTROLLER, sent[1].header + bytes(43))  # type: ignore[union-attr]
    assert decoded.value.epoch == FrameEpoch(2, 1_057, 3_000)  # type: ignore[union-attr]
    stranger = encode_from_slave(Dialect.CONTROLLER, SlaveHandshake(3))
    assert [type(event) for event in session.receive(stranger, 0)] == [Refused]


# The slave's end


def slave(end: int = 1_000, **options: object) -> SlaveSession:
    return SlaveSession(end, FILE, 0, TIMING, **options)  # type: ignore[arg-type]


def test_a_slave_reports_at_once_and_then_what_is_appended() -> None:
    session = slave()
    assert session.next_send(0) == report(1_000)
    assert session.next_send(0) is None
    assert session.receive(encode_from_master(Frame(1_000, b"x" * 50)), 1) == [Received(1_000, b"x" * 50, None)]
    assert session.next_send(1) is None  # it is not appended yet
    session.appended(1_050)
    assert session.next_send(1) == report(1_050)
    assert session.next_send(5_000) is None
    assert session.next_send(5_001) == report(1_050)


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        (Frame(999, b"x"), "999"),
        (Frame(1_001, b"x"), "1001"),
        (Frame(1_001), "1001"),
        (Frame(1_000, bytes(FILE)), "mappedFileSizeCommitLog"),
    ],
)
def test_a_frame_that_does_not_follow_is_refused(frame: Frame, word: str) -> None:
    (refused,) = slave().receive(encode_from_master(frame), 0)
    assert isinstance(refused, Refused)
    assert word in refused.reason


def test_an_empty_slave_begins_at_the_start_of_a_file_only() -> None:
    assert slave(0).receive(encode_from_master(Frame(FILE, b"x")), 0) == [Received(FILE, b"x", None)]
    assert [type(event) for event in slave(0).receive(encode_from_master(Frame(FILE + 5, b"x")), 0)] == [Refused]


def test_a_deposed_master_is_refused() -> None:
    session = slave(handshake=SlaveHandshake(2), last_epoch=3)
    session.receive(encode_from_master(MasterHandshake(1_000, 2, (EpochEntry(1, 0), EpochEntry(2, 5)))), 0)
    session.begin(1_000)
    frame = Frame(1_000, b"x", FrameEpoch(2, 5, 0))
    assert [type(event) for event in session.receive(encode_from_master(frame), 0)] == [Refused]


@pytest.mark.parametrize(
    "epochs", [((2, 0), (1, 5)), ((1, 10), (2, 5)), ((1, 0), (1, 5)), ((-1, 0),), ((1, -4),), ((1, 0), (2, 1_001))]
)
def test_epochs_that_cannot_be_are_refused(epochs: Sequence[tuple[int, int]]) -> None:
    entries = tuple(EpochEntry(*entry) for entry in epochs)
    session = slave(handshake=SlaveHandshake(2))
    said = encode_from_master(MasterHandshake(1_000, 2, entries))
    assert [type(event) for event in session.receive(said, 0)] == [Refused]


# Captured conversations, split anywhere


def test_a_captured_conversation_is_followed_however_it_is_split() -> None:
    data = captured(Dialect.DEFAULT, 0, "s2c")
    expected = [
        Received(frame.commitlog_offset, frame.body, None)
        for frame in values_of(Dialect.DEFAULT, data, of_master=True)
        if isinstance(frame, Frame)
    ]
    for seed in range(20):
        rng = random.Random(seed)
        session = SlaveSession(0, 131_072, 0, TIMING)
        found: list[SessionEvent] = []
        position = 0
        while position < len(data):
            size = 1 if seed == 0 and position < 3_000 else rng.choice([1, 7, 12, 100, 3_000, 40_000])
            found += session.receive(data[position : position + size], 0)
            position += size
        assert found == expected


def test_captured_reports_are_believed_by_a_master_that_has_sent_what_was_sent() -> None:
    reports = captured(Dialect.DEFAULT, 1, "c2s")
    for size in range(1, 20):
        session = MasterSession(Dialect.DEFAULT, 0, TIMING)
        events: list[SessionEvent] = []
        for piece in [reports[:8], *(reports[at : at + size] for at in range(8, len(reports), size))]:
            for event in session.receive(piece, 0):
                events.append(event)
                if isinstance(event, StartRequested):
                    session.begin(event.offset)
                    session.sent = 261_108
        assert events[0] == StartRequested(132_736)
        assert events[-1] == Acknowledged(261_108)
        assert not any(isinstance(event, Refused) for event in events)


def test_any_bytes_leave_a_session_standing() -> None:
    rng = random.Random(11)
    for _ in range(1_500):
        dialect = rng.choice(list(Dialect))
        master = MasterSession(dialect, 0, TIMING)
        follower = slave(rng.choice([0, 1_000]), handshake=SlaveHandshake(2) if dialect is Dialect.CONTROLLER else None)
        for _ in range(4):
            data = rng.randbytes(rng.randrange(40))
            for event in master.receive(data, 0):
                if isinstance(event, StartRequested) and 0 <= event.offset <= 5_000:
                    master.begin(event.offset)
            assert master.acknowledged <= max(master.sent, 5_000)
            follower.receive(data, 0)


# Epochs


def test_two_logs_agree_up_to_the_end_of_the_newest_epoch_that_both_have() -> None:
    one = (EpochEntry(1, 0), EpochEntry(2, 100), EpochEntry(3, 200))
    other = (EpochEntry(1, 0), EpochEntry(2, 100), EpochEntry(4, 150))
    assert consistent_point(one, 300, other, 400) == 150
    assert consistent_point(one, 300, one, 250) == 250
    assert consistent_point(one, 300, (EpochEntry(5, 7),), 400) is None
    assert consistent_point((), 0, other, 400) is None


def test_epochs_are_found_added_and_cut() -> None:
    entries = (EpochEntry(1, 0), EpochEntry(2, 100))
    assert [epoch_at(entries, place).epoch for place in (0, 99, 100, 500)] == [1, 1, 2, 2]
    assert with_entry(entries, EpochEntry(3, 100)) == (*entries, EpochEntry(3, 100)), "an empty one stays"
    assert with_entry(entries, EpochEntry(2, 200)) == entries
    assert with_entry(entries, EpochEntry(3, 50)) == entries
    assert epoch_at((*entries, EpochEntry(3, 100)), 100).epoch == 3
    assert cut_at(entries, 100) == entries, "an epoch of which there is no byte stays"
    assert cut_at(entries, 99) == (EpochEntry(1, 0),)
    assert flaw_of(entries) is None


# Replicas


def in_sync(replicas: Replicas, end: int) -> int:
    return sum(replica.is_in_sync(end, replicas.max_gap_bytes) for replica in replicas.snapshot())


def test_a_replica_counts_once_however_many_connections_it_has() -> None:
    replicas = Replicas()
    heard: list[int] = []
    stop = replicas.listen(lambda snapshot: heard.append(len(snapshot)))
    one = Replica("10.0.0.7", None, "10.0.0.7:5", UNPROVEN)
    replicas.connected(1, one)
    replicas.connected(2, one._replace(address="10.0.0.7:6"))
    assert (holders(replicas.snapshot(), 0), in_sync(replicas, 0)) == (0, 0)
    replicas.acknowledged(1, 500)
    assert (holders(replicas.snapshot(), 500), holders(replicas.snapshot(), 501), in_sync(replicas, 500)) == (1, 0, 1)
    replicas.acknowledged(2, 700)
    assert [replica.acknowledged for replica in replicas.snapshot()] == [700]
    replicas.gone(2)
    assert [replica.acknowledged for replica in replicas.snapshot()] == [500]
    replicas.connected(3, Replica("id:9", 9, "10.0.0.8:6", UNPROVEN, is_learner=True))
    replicas.acknowledged(3, 700)
    assert in_sync(replicas, 500) == 1
    assert len(replicas.snapshot()) == 2
    stop()
    replicas.gone(3)
    assert heard == [1, 1, 1, 1, 1, 2, 2]


def test_a_replica_far_behind_is_not_in_sync() -> None:
    replica = Replica("a", None, "a:1", 100)
    assert replica.is_in_sync(200, 101)
    assert not replica.is_in_sync(200, 100)


def test_reports_decode_as_they_are_encoded() -> None:
    for dialect in Dialect:
        decoded = decode_from_slave(dialect, report(77, dialect))
        assert decoded.value == Report(77)  # type: ignore[union-attr]


# Hostile peers


def test_a_part_of_a_report_is_no_sign_of_life() -> None:
    session = MasterSession(Dialect.DEFAULT, 0, TIMING)
    for number in range(7):
        assert session.receive(b"\0", 5_000 * number) == []
    assert session.is_silent(30_000)
    assert session.receive(b"\7", 30_000) == [StartRequested(7)]
    assert not session.is_silent(30_000)


def test_reports_that_stray_bytes_shift_end_the_connection() -> None:
    session = MasterSession(Dialect.DEFAULT, 0, TIMING)
    assert session.receive(bytes(3) + report(1_000)[:5], 0) == [StartRequested(0)]
    session.begin(0)
    session.next_send(0, Extent(5_000))
    assert [type(event) for event in session.receive(report(1_000)[5:] + report(1_001), 0)] == [Refused]
    assert session.acknowledged == 0


@pytest.mark.parametrize("size", [-12, -1, -(2**31), 4 << 20, 2**31 - 1])
def test_a_frame_of_an_impossible_size_is_refused_by_its_header(size: int) -> None:
    session = slave()
    header = (1_000).to_bytes(8, "big") + size.to_bytes(4, "big", signed=True)
    assert [type(event) for event in session.receive(header, 0)] == [Refused]
    assert (session.end, session.reported) == (1_000, 1_000)
    assert session.receive(encode_from_master(Frame(1_000, b"x")), 0) == []


@pytest.mark.parametrize("size", [-16, 5, 16 * 1_001, 12 * 1_001])
def test_too_many_epochs_are_refused_before_they_are_there(size: int) -> None:
    header = encode_from_master(MasterHandshake(1_000, 1, ()))
    session = slave(handshake=SlaveHandshake(2))
    assert [
        type(event) for event in session.receive(header[:4] + size.to_bytes(4, "big", signed=True) + header[8:], 0)
    ] == [Refused]


def test_a_master_that_trickles_a_frame_takes_no_more_memory_than_that_frame() -> None:
    session = slave()
    session.receive(encode_from_master(Frame(1_000, bytes(3_000)))[:-1], 0)
    assert session._incoming._held == 3_011
    session.receive(b"\0", 0)
    assert session._incoming._held == 0


def test_who_cannot_be_told_anything_is_looked_at_when_it_has_been_silent_for_too_long() -> None:
    session = MasterSession(Dialect.DEFAULT, 0, TIMING)
    assert session.deadline() == TIMING.housekeeping_ms + 1  # it has not said where it is
    session.receive(report(4_000), 100)
    session.begin(4_000)
    assert session.deadline() == TIMING.heartbeat_ms
    assert session.deadline(is_blocked=True) == 100 + TIMING.housekeeping_ms + 1
