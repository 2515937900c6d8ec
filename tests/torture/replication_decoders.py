"""Decoders of what masters and slaves say over a replication connection, and of the file of epochs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from spark_mq.broker_server.masters import all_pages
from spark_mq.remoting import Header, RemotingCommand, make_request, make_response
from storage.errors import CorruptRecordError, StateFileError
from storage.format.record import NeedMoreBytes
from storage.format.replication import (
    MOST_BODY_BYTES,
    Dialect,
    EpochEntry,
    Frame,
    FrameEpoch,
    MasterHandshake,
    Report,
    SlaveHandshake,
    decode_epochs,
    decode_from_master,
    decode_from_slave,
    encode_epochs,
    encode_from_master,
    encode_from_slave,
)
from storage.ha.sessions import Introduced, MasterSession, Refused, SlaveSession, StartRequested
from storage.tables.document import TOPICS_FILE
from tests.torture.decoders import JSON_TOWERS, Decoder
from tests.torture.mutations import JSON_WORDS
from tests.torture.samples import Samples

_EPOCHS = (EpochEntry(1, 0), EpochEntry(3, 1_057))
_FILE_BYTES = 4_096
_WORDS = (
    *(b"\x00\x00\x00\x01", b"\x00\x00\x00\x02", b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x00" * 8),
    *(
        b"\x00\x00\x01\x00\x00\x00\x00\x00",
        b"\x80" + b"\x00" * 7,
        b"\x00\x3f\xff\xf4",
        b"\x00\x40\x00\x00",
        b"\n",
        b"-",
    ),
)


def _of_slaves(samples: Samples) -> list[bytes]:
    reports = b"".join(encode_from_slave(Dialect.DEFAULT, Report(offset)) for offset in (1_000, 1_100, 1_100))
    hello = encode_from_slave(Dialect.CONTROLLER, SlaveHandshake(2, is_learner=True))
    return [b"\0" + reports, b"\1" + hello + encode_from_slave(Dialect.CONTROLLER, Report(1_000))]


def _of_masters(samples: Samples) -> list[bytes]:
    frames = [Frame(1_000, b"x" * 50), Frame(1_050), Frame(1_050, b"y" * 9)]
    default = b"".join(map(encode_from_master, frames))
    told = [frame._replace(epoch=FrameEpoch(3, 1_057, 900)) for frame in frames]
    hello = encode_from_master(MasterHandshake(2_000, 3, _EPOCHS))
    return [b"\0" + default, b"\1" + hello + b"".join(map(encode_from_master, told))]


def _split(content: bytes) -> tuple[Dialect, bytes]:
    return (Dialect.CONTROLLER if content[:1] == b"\1" else Dialect.DEFAULT), content[1:]


def _read_slave(content: bytes, directory: Path) -> bool:
    """A master's session acknowledges nothing beyond what it has sent, and holds less than one value."""
    dialect, data = _split(content)
    session = MasterSession(dialect, 0)
    is_fine = False
    for at in range(0, len(data), 5):
        for event in session.receive(data[at : at + 5], 0):
            if isinstance(event, StartRequested):
                session.begin(event.offset)
                session.sent = event.offset + 100
            is_fine = not isinstance(event, Refused)
        assert session.acknowledged <= session.sent
        assert session._incoming._held < 16 + 5 or session._is_over
    found = decode_from_slave(dialect, data)
    if not isinstance(found, NeedMoreBytes) and isinstance(found.value, Report):
        assert encode_from_slave(dialect, found.value) == data[: found.size_bytes]
    return is_fine


def _read_master(content: bytes, directory: Path) -> bool:
    """A slave's session takes nothing that does not follow its end, and holds less than one frame."""
    dialect, data = _split(content)
    hello = SlaveHandshake(2) if dialect is Dialect.CONTROLLER else None
    session = SlaveSession(1_000, _FILE_BYTES, 0, handshake=hello)
    end, is_fine = session.end, False
    for at in range(0, len(data), 7):
        for event in session.receive(data[at : at + 7], 0):
            if isinstance(event, Introduced):
                session.begin(1_000)
            is_fine = not isinstance(event, Refused)
        assert session.end >= end
        end = session.end
        assert session.reported == 1_000
        assert session._incoming._held <= MOST_BODY_BYTES + 64 or session._is_over
    found = decode_from_master(dialect, data)
    if not isinstance(found, NeedMoreBytes) and isinstance(found.value, MasterHandshake | Frame):
        assert encode_from_master(found.value) == data[: found.size_bytes]
    return is_fine


def _read_epochs(content: bytes, directory: Path) -> bool:
    entries = decode_epochs(content)
    assert decode_epochs(encode_epochs(entries)) == entries
    return True


_BETWEEN = b"\x1e"


def _read_pages(content: bytes, directory: Path) -> bool:
    """A table in pages: the total and a body each, the last one again and again. The copy ends, and is a table."""
    pages, numbers = content.split(_BETWEEN), count()

    def ask(header: Header) -> RemotingCommand:
        total, _, body = pages[min(next(numbers), len(pages) - 1)].partition(b" ")
        fields = {"totalTopicNum": total.decode("latin-1")} if total else {}
        return make_response(make_request(21), 0, None, fields, body)

    all_pages(TOPICS_FILE, ask)
    assert next(numbers) <= 10 * len(pages)
    return True


def _pages(samples: Samples) -> list[bytes]:
    page = b'%d {"topicConfigTable":{"T%d":{"topicName":"T%d"}},"dataVersion":{"counter":%d,"stateVersion":1,"timestamp":5}}'
    same = _BETWEEN.join(page % (2, number, number, 7) for number in range(2))
    changes = _BETWEEN.join(page % (2, number, number, version) for number, version in ((0, 1), (1, 2), (0, 2), (1, 2)))
    return [same, changes, b' {"topicConfigTable":{}}']


DECODERS: Sequence[Decoder] = (
    Decoder(
        "a master's tables in pages",
        _pages,
        _read_pages,
        (StateFileError, UnicodeDecodeError),
        words=(*JSON_WORDS, _BETWEEN),
        inputs=500,
        memory_bytes=96 << 20,
        bombs=lambda: [b"2 " + tower for tower in JSON_TOWERS],
    ),
    Decoder("what a slave says", _of_slaves, _read_slave, (CorruptRecordError,), words=_WORDS),
    Decoder("what a master says", _of_masters, _read_master, (CorruptRecordError,), words=_WORDS),
    Decoder(
        "epochs of a log",
        lambda samples: [encode_epochs(_EPOCHS), encode_epochs(())],
        _read_epochs,
        (CorruptRecordError,),
        words=(*_WORDS, b"0\n0\n", b"9" * 5_000, b"1-0\n", b"_", "٣".encode()),
        inputs=500,
        bombs=lambda: [b"9" * 1_000_000, b"1\n0\n" + b"1-0\n" * 250_000, b"1\n0\n1-" + b"9" * 1_000_000],
    ),
)
