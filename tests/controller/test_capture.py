"""The life of two Apache brokers, asked again: each answer, and each notice, is the Apache controller's, field by field."""

from __future__ import annotations

from spark_mq.controller.controller import Controller
from spark_mq.controller.settings import Configuration
from spark_mq.remoting import RemotingCommand, write_body, write_header
from spark_mq.remoting_server.peer import Caller
from tests.support.captures import said_frames

KILLED = (36_138, 37_606, 56_172)
"""Connections of masters that were killed, in their order: each ended just before the notice of the next master."""
SCAN_MS = 5_000


def test_a_captured_life_is_answered_as_apaches_controller_answered_it() -> None:
    frames = said_frames()
    answers = {(one.target, one.command.opaque): one.command for one in frames if one.command.is_response}
    controller = Controller(Configuration.of({"controllerDLegerGroup": "g1"}))
    controller.address = "127.0.0.1:39877"
    killed = list(KILLED)
    compared: list[int] = []
    scan_ms = frames[0].time_ms
    for one in frames:
        while scan_ms + SCAN_MS < one.time_ms:
            scan_ms += SCAN_MS
            controller.scan_brokers(scan_ms)
            controller.scan_masters(scan_ms)
            assert controller.take_notices() == []
        if one.asked == 1008:
            controller.close_channel(killed.pop(0), one.time_ms)
            (notice,) = controller.take_notices()
            assert len(notice.addresses) == 1
            assert write_header(notice.header) == one.command.ext_fields
            assert write_body(notice.body) == one.command.body
        if not one.is_to_controller:
            continue
        found = controller.answer(one.command, Caller(one.source, "127.0.0.1"), one.time_ms)
        expected = answers.get((one.source, one.command.opaque))
        if expected is not None and not one.command.is_oneway:
            assert shown(found) == shown(expected), one
            compared.append(one.asked)
        elected = [notice.header.master_epoch for notice in controller.take_notices()]
        assert elected == ([1] if one.asked == 1002 else [])
    assert killed == []
    assert set(compared) == {1001, 1002, 1003, 1004, 1005, 1012, 1013}
    assert len(compared) > 150


def shown(command: RemotingCommand) -> tuple[int, dict[str, str], bytes, str | None]:
    return command.code, dict(command.ext_fields or {}), bytes(command.body), command.remark
