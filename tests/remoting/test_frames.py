"""A frame is what Apache's processes write, byte for byte, and what is none is refused by name before memory is taken for it."""

from __future__ import annotations

import json
import pickle
import struct
import tracemalloc
from random import Random

import pytest

from spark_mq.remoting import (
    FrameError,
    FrameIllegalError,
    FrameLimits,
    FrameReader,
    HeaderEncoding,
    LanguageCode,
    RemotingCommand,
    decode_frame,
    encode_frame,
    make_request,
    make_response,
)
from tests.support.captures import FOLDERS, captured_frames, captured_streams


def frame(
    header: bytes, body: bytes = b"", *, kind: int = 0, length: int | None = None, size: int | None = None
) -> bytes:
    """A frame, with what is said of it instead of the truth where given."""
    length = 4 + len(header) + len(body) if length is None else length
    size = len(header) if size is None else size
    return struct.pack(">iI", length, kind << 24 | size) + header + body


def written(command: RemotingCommand) -> bytes:
    return b"".join(encode_frame(command))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_captured_frame_is_read_as_apache_reads_it_and_written_as_it_was(folder: str) -> None:
    frames = [one for one in captured_frames() if one.folder == folder]
    assert len(frames) > 400
    for one in frames:
        command = decode_frame(one.data)
        said = one.said
        assert (command.code, command.opaque, command.flag) == (said["code"], said["opaque"], said["flag"]), one
        assert (command.version, command.language.name) == (said["version"], said["language"]), one
        assert (command.remark, command.encoding.name) == (said["remark"], said["serialize"]), one
        assert {k: v or None for k, v in (command.ext_fields or {}).items()} == {
            k: v or None for k, v in (said["extFields"] or {}).items()
        }, one
        assert len(command.body) == said["bodyLen"], one
        assert command.is_response == one.is_response, one
        assert command.is_oneway == said["what"].startswith("ONEWAY"), one
        assert written(command) == one.data, one


def test_a_stream_is_read_alike_however_it_is_cut() -> None:
    streams = {name: data for name, data in captured_streams().items() if len(data) < 6_000}
    assert len(streams) > 40
    random = Random(20_261_122)
    for name, data in streams.items():
        whole = FrameReader().feed(data)
        assert b"".join(map(written, whole)) == data, name
        for most in (1, 7, 300):
            reader, commands, at = FrameReader(), [], 0
            while at < len(data):
                size = random.randint(1, most)
                commands += reader.feed(data[at : at + size])
                at += size
            assert commands == whole, name
            assert (reader.error, reader.pending_bytes) == (None, 0), name


@pytest.mark.parametrize("name", ["json/ns.c1.s2c.bin", "binary/br.c3.s2c.bin"])
def test_a_stream_may_be_cut_at_every_byte(name: str) -> None:
    data = captured_streams()[name]
    whole = FrameReader().feed(data)
    for cut in range(len(data) + 1):
        reader = FrameReader()
        assert [*reader.feed(data[:cut]), *reader.feed(bytearray(data[cut:]))] == whole
        assert (reader.error, reader.pending_bytes) == (None, 0)


def test_a_buffer_that_is_used_again_does_not_change_what_was_read() -> None:
    body = bytes(range(256)) * 40
    buffer = bytearray(written(RemotingCommand(11, 1, 1, body=body)))
    (command,) = FrameReader().feed(buffer)
    buffer[:] = bytes(len(buffer))
    assert command.body == body
    assert memoryview(command.body).readonly


def test_a_large_body_is_not_copied_when_it_is_written_and_once_at_most_when_it_is_read() -> None:
    body = bytes(8 << 20)
    pieces = encode_frame(RemotingCommand(0, 1, 1, body=body))
    assert pieces[1] is body
    data = b"".join(pieces)
    tracemalloc.start()
    try:
        (whole,) = FrameReader().feed(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        reader = FrameReader()
        view = memoryview(data)
        commands = [c for at in range(0, len(data), 65_536) for c in reader.feed(view[at : at + 65_536])]
        assert tracemalloc.get_traced_memory()[1] < 1.3 * len(body)
    finally:
        tracemalloc.stop()
    assert commands == [whole]
    assert all(memoryview(command.body).readonly for command in (whole, *commands))


def test_a_length_that_is_not_followed_by_bytes_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        readers = [FrameReader() for _ in range(100)]
        for reader in readers:
            assert reader.feed(frame(b"{", length=16_000_000, size=1)) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


SMALL = FrameLimits(frame_bytes=1_000, header_bytes=500)
SOUND = b'{"code":0,"opaque":1}'
BINARY = struct.Struct(">hBhiii")


def binary(*parts: bytes, remark_size: int = 0) -> bytes:
    return BINARY.pack(0, 0, 479, 1, 1, remark_size) + b"".join(parts)


def test_a_long_header_is_plain_json() -> None:
    header = b"{code:310,opaque:1,extFields:{" + b"a:'b'," * 11_000 + b"c:'d'}}"
    with pytest.raises(FrameError, match="it is no JSON"):
        decode_frame(frame(header))
    assert decode_frame(frame(header[:30] + header[-7:])).ext_fields == {"c": "d"}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (struct.pack(">i", -1), "length"),
        (struct.pack(">i", 3), "length"),
        (struct.pack(">i", 997), "length"),
        (b"HTTP/1.1 400 Bad Request\r\n", "length"),
        (frame(SOUND, kind=2), "type of header"),
        (frame(SOUND, kind=255), "type of header"),
        (frame(SOUND, size=len(SOUND) + 1), "header size"),
        (frame(SOUND, size=0xFFFFFF), "header size"),
        (frame(b" " * 501), "header size"),
        (frame(b""), "header"),
        (frame(b"null"), "header"),
        (frame(b"[]"), "header"),
        (frame(b"{"), "header"),
        (frame(SOUND + b"{}"), "header"),
        (frame(b'{"code":NaN,"opaque":1}'), "header"),
        (frame(b"{'code':0,opaque:1"), "header"),
        (frame(b"{'code':NaN,opaque:1}"), "header"),
        (frame(b"{'code':1e99,opaque:1}"), "code"),
        (frame(b"{'code':1e999,opaque:1}"), "header"),
        (frame(b"[" * 490), "header"),
        (frame(b'{"code":"x","opaque":1}'), "code"),
        (frame(b'{"code":0}'), "opaque"),
        (frame(b'{"code":3,"flag":1}'), "opaque"),
        (frame(b'{"code":[],"opaque":1}'), "code"),
        (frame(b'{"code":true,"opaque":1}'), "code"),
        (frame(b'{"code":1.5,"opaque":1}'), "code"),
        (frame(b'{"code":0,"opaque":2147483648}'), "opaque"),
        (frame(b'{"code":0,"opaque":1,"version":[]}'), "version"),
        (frame(b'{"code":0,"opaque":1,"remark":[]}'), "remark"),
        (frame(b'{"code":0,"opaque":1,"extFields":[]}'), "extFields"),
        (frame(b'{"code":0,"opaque":1,"extFields":{"a":{}}}'), "extFields.a"),
        (frame(b"", kind=1), "header size"),
        (frame(binary(), kind=1), "header size"),
        (frame(binary(b"\0\0\0\0", remark_size=-1), kind=1), "remark size"),
        (frame(binary(b"\0\0\0\0", remark_size=5), kind=1), "remark size"),
        (frame(binary(b"\0\0\0\0", remark_size=2**31 - 1), kind=1), "remark size"),
        (frame(binary(struct.pack(">i", -1)), kind=1), "size of the fields"),
        (frame(binary(struct.pack(">i", 1)), kind=1), "size of the fields"),
        (frame(binary(struct.pack(">i", 0), b"rest"), kind=1), "size of the fields"),
        (frame(binary(struct.pack(">i", 1), b"\0"), kind=1), "fields"),
        (frame(binary(struct.pack(">ih", 2, -1)), kind=1), "size of a field's name"),
        (frame(binary(struct.pack(">ih", 3, 2), b"a"), kind=1), "size of a field's name"),
        (frame(binary(struct.pack(">ih", 3, 1), b"a"), kind=1), "fields"),
        (frame(binary(struct.pack(">ihci", 7, 1, b"a", -1)), kind=1), "size of a field's value"),
        (frame(binary(struct.pack(">ihci", 8, 1, b"a", 2), b"v"), kind=1), "size of a field's value"),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused_by_name_as_soon_as_that_is_known(data: bytes, field: str) -> None:
    good = written(RemotingCommand(0, 5, 1))
    for pieces in ([good + data], [good, *(bytes([byte]) for byte in data)]):
        reader = FrameReader(SMALL)
        commands = [command for piece in pieces for command in reader.feed(piece)]
        assert [command.opaque for command in commands] == [5]
        assert isinstance(reader.error, FrameError)
        assert (reader.error.position, reader.error.field) == (len(good), field)
        assert f"at byte {len(good)} of the connection: {field} is" in str(reader.error)
        assert str(pickle.loads(pickle.dumps(reader.error))) == str(reader.error)
        assert reader.feed(good) == []
    with pytest.raises(FrameError):
        decode_frame(data, SMALL)


@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_the_answer_to_a_batch_of_a_hundred_thousand_messages_is_read(encoding: HeaderEncoding) -> None:
    """A broker answers with an id of 32 digits for each (MessageExtEncoder, CommitLog.asyncPutMessages): more than 3 MB of header."""
    ids = ",".join(f"{n:032X}" for n in range(100_000))
    answer = RemotingCommand(0, 7, 1, {"msgId": ids, "queueId": "3"}, encoding=encoding)
    assert decode_frame(written(answer)).ext_fields == {"msgId": ids, "queueId": "3"}


def test_who_answers_with_another_protocol_is_told_apart() -> None:
    for greeting, word in ((b"HTTP/1.1 400", "HTTP"), (b"\x15\x03\x01\x00\x02\x02\x0a", "TLS")):
        reader = FrameReader()
        reader.feed(greeting)
        assert reader.error is not None
        assert word in str(reader.error).splitlines()[1]


def test_one_frame_is_exactly_one() -> None:
    data = written(RemotingCommand(0, 5))
    for wrong in (b"", data[:-1], data + b"\0", data + data):
        with pytest.raises(FrameError):
            decode_frame(wrong)


def test_headers_of_other_languages_are_read() -> None:
    header = (
        b' {"code":105, "extFields":{"n":5,"b":true,"none":null,"f":1.50,"s":"\\ud83d\\ude00\\u0001"}, "flag":0, "language":"ZIG",\n'
        b'"opaque":-7,"unknown":[1,{}],"version":3}\n'
    )
    command = decode_frame(frame(header))
    assert command.ext_fields == {"n": "5", "b": "true", "f": "1.50", "s": "😀\x01"}
    assert (command.language, command.opaque, command.version) == (LanguageCode.OTHER, -7, 3)
    assert decode_frame(frame(SOUND)).language is LanguageCode.JAVA
    assert (
        decode_frame(frame(binary(b"\0\0\0\0").replace(b"\0\0\1", b"\0\x63\1", 1), kind=1)).language
        is LanguageCode.OTHER
    )


def test_bytes_that_are_no_utf_8_are_read_as_java_reads_them() -> None:
    assert decode_frame(frame(b'{"code":0,"opaque":1,"remark":"a\xff"}')).remark == "a�"
    assert decode_frame(frame(binary(b"\xff", b"\0\0\0\0", remark_size=1), kind=1)).remark == "�"


def test_strings_are_escaped_as_fastjson_escapes_them() -> None:
    text = '"\\\b\t\n\f\r\x00\x01\x1f/\x7e\x7f\x80\x9f\xa0é中😀\u2028\u2029\ud800'
    (head,) = encode_frame(RemotingCommand(0, 1, ext_fields={text: text}, remark=text))
    quoted = (
        r'"\"\\\b\t\n\f\r\u0000\u0001\u001F/~\u007F\u0080\u009F' + "\xa0é中😀" + r'\u2028\u2029?"'
    ).encode()  # fmt: skip
    assert head[8:] == (
        b'{"code":0,"extFields":{' + quoted + b":" + quoted + b'},"flag":0,"language":"PYTHON","opaque":1,"remark":' + quoted
        + b',"serializeTypeCurrentRPC":"JSON","version":479}'
    )  # fmt: skip
    assert decode_frame(head).remark == json.loads(quoted)


@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_what_no_peer_could_read_is_not_sent(encoding: HeaderEncoding) -> None:
    request = make_request(310, {"i": "x" * 600}, encoding=encoding)
    with pytest.raises(FrameIllegalError, match=r"header size is [67]"):
        encode_frame(request, SMALL)
    with pytest.raises(FrameIllegalError, match="frame size is 1"):
        encode_frame(make_request(310, body=bytes(1_000), encoding=encoding), SMALL)
    body = bytes(1_000 - len(written(make_request(310, encoding=encoding))))
    assert len(b"".join(encode_frame(make_request(310, body=body, encoding=encoding), SMALL))) == 1_000


def test_what_the_binary_encoding_would_cut_is_not_sent() -> None:
    binary_command = RemotingCommand(200_050, encoding=HeaderEncoding.ROCKETMQ)
    with pytest.raises(FrameIllegalError, match=r"code 200050.* 16 bits.* use JSON"):
        encode_frame(binary_command)
    with pytest.raises(FrameIllegalError, match="name is 32768"):
        encode_frame(RemotingCommand(1, ext_fields={"n" * 32_768: ""}, encoding=HeaderEncoding.ROCKETMQ))
    assert decode_frame(written(RemotingCommand(200_050))).code == 200_050


def test_nothing_and_an_empty_map_are_told_apart_in_json_alone() -> None:
    for fields in (None, {}):
        assert decode_frame(written(RemotingCommand(103, ext_fields=fields))).ext_fields == fields
        command = RemotingCommand(103, ext_fields=fields, remark="", encoding=HeaderEncoding.ROCKETMQ)
        assert decode_frame(written(command)).ext_fields is None
        assert decode_frame(written(command)).remark is None


def test_an_answer_has_the_number_and_the_encoding_of_its_request() -> None:
    request = RemotingCommand(105, 77, encoding=HeaderEncoding.ROCKETMQ, language=LanguageCode.GO)
    answer = make_response(request, 17, "No topic", {"a": "b"}, b"body")
    assert decode_frame(written(answer)) == answer
    assert (answer.opaque, answer.is_response, answer.is_oneway) == (77, True, False)
    assert make_request(15, is_oneway=True).is_oneway


def test_a_command_is_shown_without_body_and_credentials() -> None:
    fields = {"AccessKey": "hidden-key", "Signature": "hidden-sum", "SecurityToken": "hidden-token", "topic": "T"}
    shown = repr(make_request(310, fields, b"hidden body"))
    assert "hidden" not in shown
    assert "'topic': 'T'" in shown
    assert "body of 11 bytes" in shown


def _small_command(random: Random) -> RemotingCommand:
    texts = ["", "a", "\x01\x02", "é中😀", '"\\', "x" * random.randrange(300)]
    return RemotingCommand(
        random.choice((0, 310, 32_767, -32_768)),
        random.choice((0, 1, -(2**31), 2**31 - 1)),
        random.randrange(4),
        random.choice((None, {random.choice(texts[1:]): random.choice(texts) for _ in range(random.randrange(1, 9))})),
        random.randbytes(random.choice((0, 1, 4_096, 4_097))),
        random.choice((None, *texts[1:])),
        random.choice(list(LanguageCode)),
        random.choice((0, 479, 32_767)),
        random.choice(list(HeaderEncoding)),
    )


def test_commands_survive_the_way_there_and_back() -> None:
    random = Random(7)
    commands = [_small_command(random) for _ in range(500)]
    data = b"".join(map(written, commands))
    reader = FrameReader()
    cuts = sorted(random.sample(range(len(data)), 200))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert [command for piece in pieces for command in reader.feed(piece)] == commands


def test_any_bytes_are_commands_or_a_frame_error() -> None:
    random = Random(11)
    samples = [one.data for one in captured_frames() if len(one.data) < 2_000][::7]
    broken = 0
    for _ in range(2_000):
        data = bytearray(random.choice(samples))
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        reader = FrameReader()
        for command in reader.feed(data):
            assert decode_frame(written(command)) == command
        broken += reader.error is not None
    assert 200 < broken < 2_000


def test_a_header_is_read_as_fastjson_reads_it() -> None:
    """What serializers of other languages leave out, put into quotes or write as a number."""
    short = decode_frame(frame(b'{"code":34}'))
    assert (short.code, short.opaque, short.flag, short.version) == (34, 0, 0, 0)
    assert decode_frame(frame(b'{"opaque":7,"flag":1}')).code == 0
    told = decode_frame(
        frame(
            b'{"code":"34","opaque":"-7","flag":null,"version":"317","language":9,"remark":12,"extFields":{"a":1,"b":true}}'
        )
    )
    assert (told.code, told.opaque, told.flag, told.version) == (34, -7, 0, 317)
    assert (told.language, told.remark, told.ext_fields) == (LanguageCode.GO, "12", {"a": "1", "b": "true"})
    assert decode_frame(frame(b'{"opaque":1,"language":99}')).language is LanguageCode.OTHER


def test_a_reader_gives_so_many_commands_and_keeps_what_follows() -> None:
    commands = [make_request(105, {"n": str(number)}, b"body")._replace(opaque=number) for number in range(10)]
    data = b"".join(map(written, commands))
    reader, shared = FrameReader(), bytearray(data + written(commands[0])[:9])
    found = reader.feed(memoryview(shared), 3)
    shared[:] = bytes(len(shared))  # it is reused
    assert (len(found), reader.unread_bytes > 0, reader.pending_bytes) == (3, True, 0)
    found += reader.feed(b"", 4)
    assert (len(found), reader.pending_bytes) == (7, 0)
    found += reader.feed(written(commands[0])[9:], 100)
    assert [command.opaque for command in found] == [*range(10), 0]
    assert (reader.unread_bytes, reader.pending_bytes, reader.error) == (0, 0, None)


def test_what_is_no_frame_is_found_behind_the_commands_before_it() -> None:
    reader = FrameReader()
    assert len(reader.feed(written(make_request(1)) * 3 + b"\xff" * 4, 2)) == 2
    assert reader.error is None
    assert len(reader.feed(b"", 2)) == 1
    assert reader.error is not None
    assert (reader.unread_bytes, reader.feed(b"", 2)) == (0, [])


def test_a_body_keeps_no_piece_in_memory_that_is_more_than_twice_its_size() -> None:
    small = written(make_request(1, None, bytes(5_000)))
    (first, *_) = FrameReader().feed(small + written(make_request(2)) * 1_000)
    assert isinstance(first.body, bytes)
    (alone,) = FrameReader().feed(small)
    assert isinstance(alone.body, memoryview)


def test_what_is_read_later_of_a_piece_keeps_no_more_of_it_either() -> None:
    small, large = written(make_request(2)), written(make_request(1, None, bytes(5_000)))
    reader = FrameReader()
    commands = reader.feed(memoryview(bytearray(small * 2_000 + large + small)), 16)
    while len(commands) < 2_001:
        assert memoryview(reader._unread.obj).nbytes <= 2 * reader.unread_bytes or len(commands) == 16
        commands += reader.feed(b"", 1)
    body = commands[-1].body
    kept = memoryview(body.obj).nbytes if isinstance(body, memoryview) else len(body)
    assert kept <= 2 * len(body)
    assert commands[-1].size_bytes >= kept
