"""Who waits for which answer, whatever comes in whatever pieces."""

from __future__ import annotations

import pytest

from spark_mq.remoting import (
    Answer,
    Broken,
    Connection,
    ConnectionClosedError,
    FrameIllegalError,
    FrameLimits,
    RemotingCommand,
    Request,
    Unawaited,
    decode_frame,
    encode_frame,
    make_request,
    make_response,
)
from spark_mq.remoting import frames as frames_module
from tests.support.captures import captured_streams


def answer_to(opaque: int, code: int = 0) -> bytes:
    return b"".join(encode_frame(RemotingCommand(code, opaque, 1)))


def test_answers_that_overtake_each_other_find_those_who_wait() -> None:
    ours: Connection[str] = Connection()
    sent = [ours.send_request(make_request(310), waiter) for waiter in "abc"]
    assert [decode_frame(b"".join(request.pieces)).opaque for request in sent] == [request.opaque for request in sent]
    data = b"".join(answer_to(sent[number].opaque, number) for number in (2, 0, 1))
    events = [event for byte in data for event in ours.feed(bytes([byte]))]
    assert [(event.waiter, event.command.code) for event in events if isinstance(event, Answer)] == [
        ("c", 2),
        ("a", 0),
        ("b", 1),
    ]
    assert (len(events), ours.waiting_count) == (3, 0)


def test_both_ends_number_their_own_requests() -> None:
    ours: Connection[str] = Connection()
    theirs: Connection[str] = Connection()
    asked = ours.send_request(make_request(105), "ours")
    pushed = theirs.send_request(make_request(40), "theirs")
    assert asked.opaque == pushed.opaque
    (request,) = ours.feed(b"".join(pushed.pieces))
    assert isinstance(request, Request)
    assert ours.waiting_count == 1
    (back,) = theirs.feed(b"".join(ours.send_response(make_response(request.command, 0))))
    assert isinstance(back, Answer)
    assert back.waiter == "theirs"


def test_an_answer_that_nobody_waits_for_is_told_apart() -> None:
    ours: Connection[str] = Connection()
    sent = ours.send_request(make_request(11), "late")
    assert ours.forget(sent.opaque) == "late"
    assert ours.forget(sent.opaque) is None
    events = ours.feed(answer_to(sent.opaque) + answer_to(99))
    assert [type(event) for event in events] == [Unawaited, Unawaited]
    again = ours.send_request(make_request(11), "again")
    first, second = ours.feed(answer_to(again.opaque) * 2)
    assert isinstance(first, Answer)
    assert isinstance(second, Unawaited)


def test_nobody_waits_for_a_oneway_request() -> None:
    ours: Connection[str] = Connection()
    sent = ours.send_oneway(make_request(15))
    assert decode_frame(b"".join(sent.pieces)).is_oneway
    assert ours.waiting_count == 0
    assert isinstance(ours.feed(answer_to(sent.opaque))[0], Unawaited)


def test_a_request_that_cannot_be_sent_leaves_nobody_waiting() -> None:
    ours: Connection[str] = Connection(FrameLimits(frame_bytes=1_000))
    with pytest.raises(FrameIllegalError):
        ours.send_request(make_request(310, body=bytes(1_000)), "never")
    assert ours.waiting_count == 0


def test_numbers_start_again_and_pass_over_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "_OPAQUE_MOST", 3)
    ours: Connection[int] = Connection()
    assert [ours.send_request(make_request(1), number).opaque for number in range(3)] == [0, 1, 2]
    ours.forget(1)
    assert [ours.send_request(make_request(1), number).opaque for number in range(2)] == [3, 1]


def test_closing_hands_back_all_who_wait_and_ends_both_directions() -> None:
    ours: Connection[str] = Connection()
    for waiter in "abc":
        ours.send_request(make_request(310), waiter)
    assert ours.close("the peer has closed it") == ["a", "b", "c"]
    assert ours.close("again") == []
    assert ours.feed(answer_to(0)) == []
    for send in (lambda: ours.send_request(make_request(1), "d"), lambda: ours.send_oneway(make_request(1))):
        with pytest.raises(ConnectionClosedError, match="the peer has closed it"):
            send()
    with pytest.raises(ConnectionClosedError):
        ours.send_response(RemotingCommand(0, 1, 1))


def test_closing_lets_go_of_what_has_come_of_a_frame() -> None:
    """A client may leave megabytes of one, and somebody may know of its connection for long."""
    ours: Connection[str] = Connection()
    ours.feed(frame := answer_to(0)[:-1])
    assert ours.pending_bytes == len(frame)
    ours.close("the peer has closed it")
    assert ours.pending_bytes == 0


def test_what_came_before_a_bad_frame_is_still_answered() -> None:
    ours: Connection[str] = Connection()
    sent = ours.send_request(make_request(310), "stored")
    answered, broken = ours.feed(answer_to(sent.opaque) + b"\xff\xff\xff\xff")
    assert isinstance(answered, Answer)
    assert isinstance(broken, Broken)
    assert broken.error.position == len(answer_to(sent.opaque))
    assert ours.feed(answer_to(7)) == []


def test_captured_conversations_leave_nobody_waiting() -> None:
    streams = captured_streams()
    for name in ("json/ns.c0", "binary/b2ns.c0", "oldsend/br.c0"):
        server: Connection[None] = Connection()
        requests = [event.command for event in server.feed(streams[f"{name}.c2s.bin"]) if isinstance(event, Request)]
        client: Connection[int] = Connection()
        client._waiting = {command.opaque: command.opaque for command in requests if not command.is_oneway}
        events = client.feed(streams[f"{name}.s2c.bin"])
        assert events
        assert {type(event) for event in events} == {Answer}
        assert client.waiting_count == 0


def test_what_was_unread_at_the_close_is_read_and_nothing_more() -> None:
    connection: Connection[str] = Connection()
    frames = [b"".join(encode_frame(make_request(number))) for number in range(5)]
    assert len(connection.feed(b"".join(frames) + frames[0][:7], 2)) == 2
    connection.close("gone")
    assert connection.feed(frames[0]) == []
    rest = connection.feed(b"", 2) + connection.feed(b"", 2)
    assert [event.command.code for event in rest if isinstance(event, Request)] == [2, 3, 4]
    assert (connection.unread_bytes, connection.pending_bytes, connection.feed(b"")) == (0, 0, [])
    connection.drop_unread()
