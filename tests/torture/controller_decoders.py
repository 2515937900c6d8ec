"""Decoders of what brokers, operators and a disk say to a controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_mq.controller.controller import HANDLERS, Controller
from spark_mq.controller.decisions import DEFAULT_LIMITS
from spark_mq.controller.journal import FILE_NAME, encode_record, open_journal, read_records
from spark_mq.controller.settings import Configuration
from spark_mq.controller.state import ControllerState, WholeState, decode_event, encode_event
from spark_mq.remoting import BodyError, RequestCode, write_body
from spark_mq.remoting.command import write_texts
from spark_mq.remoting.controllers import SyncStateSet
from spark_mq.remoting_server.peer import Caller
from storage.errors import StateFileError
from tests.controller.asking import NAME, in_sync
from tests.support.declared import commands_of, frame, request_frame
from tests.torture.decoders import JSON_BOMBS, Decoder
from tests.torture.mutations import JSON_WORDS
from tests.torture.samples import Samples

_NOW_MS = 1_800_000_000_000
_VALUES: Mapping[str, object] = {
    **dict.fromkeys(("broker_id", "master_broker_id", "master_epoch", "epoch", "election_priority"), 1),
    "applied_broker_id": 3,
    "register_check_code": "h:3;1",
    "broker_ids_to_clean": "1;2",
    "max_offset": 7,
    "heartbeat_timeout_ms": 10_000,
}
"""Where another value than what a declaration gives does more."""
_BODIES: Mapping[int, bytes] = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: write_body(SyncStateSet(broker_ids=(1,), epoch=2)),
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: write_texts((NAME,)),
    RequestCode.UPDATE_CONTROLLER_CONFIG: b"enableElectUncleanMaster=true\nscanNotActiveBrokerInterval=70\n",
}


def _known() -> ControllerState:
    """A group with a master and another one in sync."""
    state = ControllerState()
    state.apply(in_sync(1, 2).controller.state.whole())
    return state


def _requests(samples: Samples) -> list[bytes]:
    return [
        request_frame(RequestCode.BROKER_HEARTBEAT, 0, **_VALUES)
        + request_frame(code, number, _BODIES.get(code), **_VALUES)
        for number, code in enumerate(sorted(HANDLERS))
    ]


def _read_requests(content: bytes, directory: Path) -> bool:
    """Each request is answered, epochs never fall while a group is there, and what was decided can be kept and read again."""
    kept = bytearray(encode_record(0, (WholeState(groups=()),)))
    sequence = 0
    state = _known()

    def keep(events: Sequence[object]) -> None:
        nonlocal sequence, kept
        sequence += 1
        kept += encode_record(sequence, events)  # type: ignore[arg-type]

    controller = Controller(Configuration.of({}), state=state, keep=keep)
    are_fine = []
    for number, command in enumerate(commands_of(content)):
        before = state.groups.get(NAME)
        answer = controller.answer(command, Caller("channel", "127.0.0.1"), _NOW_MS + number)
        assert (answer.opaque, answer.is_response) == (command.opaque, True)
        frame(answer)
        are_fine.append(answer.code == 0)
        after = state.groups.get(NAME)
        if before is not None and after is not None:
            assert after.master_epoch >= before.master_epoch
            assert after.sync_state_set <= after.replicas.keys()
    controller.take_notices()
    controller.scan_brokers(_NOW_MS + 1_000_000)
    controller.close_channel("channel", _NOW_MS)
    controller.scan_masters(_NOW_MS)
    assert state.replica_count == sum(len(group.replicas) for group in state.groups.values()) <= DEFAULT_LIMITS.replicas
    read = read_records(bytes(kept))
    assert (len(read.records), read.end, read.damage) == (sequence + 1, len(kept), None)
    again = ControllerState()
    again.apply(state.whole())
    assert again == state
    return any(are_fine)


def _events(samples: Samples) -> list[bytes]:
    asked = in_sync(1, 2)
    asked.clean("2")
    asked.register(1, "é:9")
    asked.hang_up(1)
    return [*map(encode_event, asked.events), encode_event(asked.controller.state.whole())]


def _read_event(content: bytes, directory: Path) -> bool:
    event = decode_event(content)
    if b"\\ud" not in content.lower():
        assert decode_event(encode_event(event)) == event
    state = _known()
    state.apply(event)
    again = ControllerState()
    again.apply(state.whole())
    assert again.groups == state.groups
    return True


def _journals(samples: Samples) -> list[bytes]:
    asked = in_sync(1, 2)
    first = encode_record(7, (ControllerState().whole(),))
    rest = [encode_record(number, (event,)) for number, event in enumerate(asked.events, 8)]
    return [first, first + b"".join(rest), first + b"".join(rest)[:-3]]


def _read_journal(content: bytes, directory: Path) -> bool:
    """What was opened once is opened again, and says the same."""
    (directory / FILE_NAME).write_bytes(content)
    journal = open_journal(str(directory))
    assert content.startswith((directory / FILE_NAME).read_bytes())
    assert open_journal(str(directory)).state == journal.state
    return bool(journal.state.groups)


_WORDS = (
    *JSON_WORDS,
    *(b"-1", b"0", b"2147483647", b"9223372036854775807", b"1;2", b";", b"h:1;7", b'"newSyncStateSet":[1,2]'),
    *(b"\x00\x01", b"\x00\x02", b"\x00\x03", b"\x00\x05", b"\x00\x06", b"\x70\x01", b"SMQC", b"\x00\x00\x00\x08"),
)
DECODERS: Sequence[Decoder] = (
    Decoder("requests to a controller", _requests, _read_requests, words=_WORDS, inputs=1_000),
    Decoder(
        "events of a controller",
        _events,
        _read_event,
        (BodyError,),
        words=_WORDS,
        inputs=500,
        bombs=lambda: [b"\x70\x01" + bomb for bomb in JSON_BOMBS],
    ),
    Decoder("journals of a controller", _journals, _read_journal, (StateFileError,), words=_WORDS, inputs=300),
)
