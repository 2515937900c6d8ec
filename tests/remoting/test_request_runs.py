"""Requests that look alike are read as one run, and say what they say one by one; their answers are the frames of each answer."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_mq.remoting.frames as runs
from spark_mq.broker.send_run import RUN_FIELDS
from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame, make_response
from spark_mq.remoting.frames import RUN_LEAST, RUN_MOST, RequestRun, RunAnswers, RunReader, encode_answers

FIELDS = {"a": "G", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795220433013", "h": "0"}
PROPERTIES = "UNIQ_KEY\x017F0000010F975FFD2B27671200750017\x02WAIT\x01true\x02KEYS\x01order-1\x02"


def frame(
    opaque: int = 1,
    body: bytes = b"body",
    *,
    code: int = 310,
    flag: int = 0,
    properties: str = PROPERTIES,
    **fields: str,
) -> bytes:
    """As Java's client writes it."""
    header = {
        "code": code,
        "extFields": {**FIELDS, "i": properties, "j": "0", "k": "false", "m": "false", **fields},
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    return framed(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode(), body)


def framed(header: bytes, body: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def of_go(opaque: int, queue_id: int) -> bytes:
    """The names of code 10, in another order, with a field of its own."""
    fields = {
        "bornTimestamp": "17",
        "flag": "0",
        "producerGroup": "G",
        "properties": PROPERTIES,
        "queueId": str(queue_id),
    }
    header = {"code": 10, "language": "GO", "version": 431, "opaque": opaque, "flag": 0, "remark": ""}
    header |= {"extFields": {**fields, "topic": "Orders", "x": "y"}}
    return framed(json.dumps(header, separators=(",", ":")).encode(), b"%d" % opaque)


def read(pieces: Sequence[bytes], *, in_runs: bool = True) -> tuple[list[RemotingCommand], list[int]]:
    """All commands in order, and how many each run had."""
    reader = FrameReader(runs=RunReader(RUN_FIELDS) if in_runs else None)
    commands, sizes = [], []
    for piece in pieces:
        found = reader.feed_runs(bytearray(piece), 16)
        while True:
            for each in found:
                if isinstance(each, RequestRun):
                    sizes.append(len(each.opaques))
                    expanded = each.commands()
                    assert [command.opaque for command in expanded] == list(each.opaques)
                    for name in each.columns:
                        texts = [(command.ext_fields or {})[name].encode() for command in expanded]
                        assert texts == each.texts(name)
                    assert [bytes(body) for body in each.bodies] == [command.body for command in expanded]
                    commands += expanded
                else:
                    commands.append(each)
            if not reader.unread_bytes:
                break
            found = reader.feed_runs(b"", 16)
    assert reader.error is None
    return [command._replace(body=bytes(command.body)) for command in commands], sizes


def test_what_looks_alike_comes_in_runs_and_says_the_same() -> None:
    frames = [
        frame(
            n, b"%d" % n * (n % 40 + 1), e=str(n % 4), g=str(10**12 + n), b=f"T{n % 3}", properties=f"KEYS\x01ä{n}\x02"
        )
        for n in range(600)
    ]
    commands, sizes = read([b"".join(frames)])
    assert commands == read([b"".join(frames)], in_runs=False)[0]
    assert sizes == [RUN_MOST, RUN_MOST, 600 - 1 - 2 * RUN_MOST]


def test_the_requests_of_other_clients_come_in_runs_too() -> None:
    commands, sizes = read([b"".join(of_go(n, n % 4) for n in range(50))])
    assert sizes == [49]
    assert [command.ext_fields for command in commands] == [read([of_go(n, n % 4)])[0][0].ext_fields for n in range(50)]


@pytest.mark.parametrize(
    "other",
    [
        frame(7, flag=2),
        frame(7, j="1"),
        frame(7, code=36),
        frame(7, properties='KEYS\x01a"b\x02'),
        frame(7, properties="KEYS\x01a\\b\x02"),
        frame(7, properties="KEYS\x01a\nb\x02"),
        frame(7, e="-1"),
        frame(7, b="a b"),
        frame(7, b="ä"),
        frame(7, o="more"),
        framed(b'{"code":310,"opaque":7,"extFields":{}}', b""),
        b"".join(encode_frame(make_response(RemotingCommand(310, 7), 0))),
    ],
)
def test_what_looks_otherwise_is_read_by_itself(other: bytes) -> None:
    """Between two runs."""
    alike = [frame(n) for n in range(3 * RUN_LEAST)]
    stream = b"".join([*alike, other, *alike])
    commands, sizes = read([stream])
    assert commands == read([stream], in_runs=False)[0]
    assert len(sizes) >= 2


def test_a_number_that_is_too_great_ends_the_connection_behind_those_before_it() -> None:
    reader = FrameReader(runs=RunReader(RUN_FIELDS))
    found: list[RemotingCommand | RequestRun] = reader.feed_runs(b"".join(map(frame, [1, 2, 3, 2**31, *range(40)])))
    assert [each.opaque for each in found if isinstance(each, RemotingCommand)] == [1, 2, 3]
    assert reader.error is not None


def test_two_numbers_of_one_name_make_no_run() -> None:
    """JSON's last one counts."""
    header = frame()[8:-4].replace(b'"opaque":1,', b'"opaque":1,"opaque":2,')
    commands, sizes = read([framed(header, b"body") * 40])
    assert sizes == []
    assert {command.opaque for command in commands} == {2}


def test_two_fields_of_one_name_make_no_run() -> None:
    header = frame()[8:-4].replace(b'"e":"0"', b'"e":"0","e":"3"')
    commands, sizes = read([framed(header, b"body") * 40])
    assert sizes == []
    assert {(command.ext_fields or {})["e"] for command in commands} == {"3"}


@pytest.mark.parametrize(
    ("said", "as_well"),
    [
        (b'"e":"0"', b'"e":"%d","e":"0"'),
        (b'"e":"0"', b'"e":"%d","\\u0065":"0"'),
        (b'{"code"', b'{"e":"%d","code"'),
        (b'"opaque":0', b'"opaque":%d,"opaque":0'),
        (b'"extFields":{', b'"extFields":{"opaque":%d,'),
        (b'"flag":0', b"'flag':%d"),
    ],
)
def test_what_only_seems_to_differ_makes_no_run(said: bytes, as_well: bytes) -> None:
    """The first request says the same twice; of the others JSON takes another value than the one that differs."""
    header = frame(0)[8:-4]
    assert said in header
    frames = [framed(header.replace(said, as_well % (n % 4 if said != b'"flag":0' else 0)), b"body") for n in range(40)]
    commands, sizes = read([b"".join(frames)])
    assert sizes == []
    assert commands == read([b"".join(frames)], in_runs=False)[0]


def test_a_number_with_a_zero_before_it_is_as_wrong_in_a_run_as_alone() -> None:
    frames = [frame(n) for n in range(40)]
    frames[30] = framed(frame(7)[8:-4].replace(b'"opaque":7', b'"opaque":07'), b"body")
    reader = FrameReader(runs=RunReader(RUN_FIELDS))
    found = [*reader.feed_runs(b"".join(frames), 16), *reader.feed_runs(b"", 16)]
    assert sum(len(each.opaques) if isinstance(each, RequestRun) else 1 for each in found) == 30
    assert reader.error is not None


def test_few_patterns_are_made_where_no_two_requests_look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a client that signs each; a pattern costs as much as many requests."""
    made: list[bytes] = []
    pattern_of = runs._pattern_of
    monkeypatch.setattr(runs, "_pattern_of", lambda header, *rest: made.append(header) or pattern_of(header, *rest))  # type: ignore[func-returns-value]
    commands, sizes = read([b"".join(frame(n, Signature=f"{n:040x}") for n in range(900))])
    assert (len(commands), sizes) == (900, [])
    assert len(made) <= 12
    frames = b"".join(frame(n) for n in range(900))
    assert sum(read([frames])[1]) > 800


def test_of_a_long_header_no_pattern_is_made() -> None:
    """It would take milliseconds, in which no connection is served."""
    assert read([b"".join(frame(n, x="y" * 3_000) for n in range(40))])[1] == []


@given(
    st.lists(
        st.builds(
            frame,
            st.integers(0, 2**31 - 1),
            st.binary(max_size=30),
            flag=st.sampled_from([0, 0, 0, 0, 2]),
            e=st.sampled_from(["0", "1", "2", "-1"]),
            properties=st.sampled_from([PROPERTIES, "KEYS\x01ä\x02", 'KEYS\x01"\x02', ""]),
        )
        | st.just(frame()),
        min_size=20,
        max_size=60,
    ),
    st.lists(st.integers(1, 2_000), max_size=5),
)
def test_any_stream_says_the_same_in_runs_and_alone(frames: list[bytes], cuts: list[int]) -> None:
    stream, pieces = b"".join(frames), []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]
    pieces.append(stream)
    assert read(pieces)[0] == read(pieces, in_runs=False)[0]


def test_answers_are_the_frames_of_each_answer() -> None:
    """Whatever stands in what they have in common."""
    like = RemotingCommand(310, 5, 0, {})
    fields = {"msgId": "", "MSG_REGION": 'a%d"ä', "queueOffset": "", "TRACE_ON": "true"}
    columns = {"msgId": [b"AA", b"BB", b""], "queueOffset": [b"1", b"22", b"333"]}
    answer = make_response(like, 0, '100 % of "it"', fields)
    frames = encode_answers(RunAnswers(answer, columns), [3, 2**31 - 1, 0])
    assert frames == b"".join(
        b"".join(
            encode_frame(
                answer._replace(opaque=opaque, ext_fields={**fields, "msgId": msg_id, "queueOffset": queue_offset})
            )
        )
        for opaque, msg_id, queue_offset in [(3, "AA", "1"), (2**31 - 1, "BB", "22"), (0, "", "333")]
    )


def test_a_refusal_is_told_to_each() -> None:
    answer = make_response(RemotingCommand(310, 5, 0, {}), 2, "busy")
    assert encode_answers(RunAnswers(answer, {}), [1, 9]) == b"".join(
        b"".join(encode_frame(answer._replace(opaque=opaque))) for opaque in (1, 9)
    )
