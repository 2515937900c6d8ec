"""No decoder of foreign bytes is forgotten: the modules are read for them, and the fuzzing is watched for the functions that it runs.

A function decodes if it calls what turns bytes into values, or reads an answer's header or body. It is fuzzed if a fuzzed decoder runs
it with its valid samples. One that no decoder runs stands in `NOT_FOREIGN` with the reason, or this fails with its name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FrameType

import pytest

from tests.support.places import PROJECT
from tests.torture import fuzz
from tests.torture.samples import Samples

ROOMS = (
    "dledger",
    "remoting",
    "remoting_server",
    "access",
    "client",
    "namesrv",
    "controller",
    "broker",
    "broker_server",
    "source",
    "sink",
)
OF_FORMATS = ("storage/format/replication.py", "storage/format/typed_json.py")
READING = frozenset(
    {
        *("unpack", "unpack_from", "from_bytes", "frombuffer", "view_at", "loads", "raw_decode", "decode", "fromhex"),
        *("parse_sent", "load_json", "read_header", "read_body", "read_body_list", "feed"),
        *("read_answer_header", "read_answer_body", "pull_answer", "pull_result", "slice_of", "extract_regex"),
    }
)
"""Calls by which a function decodes; every `decode_…` is one, too."""

_SOCKETS = "it has a socket; what it feeds is fuzzed, and tests/client/test_hostile_servers.py feeds it"
_CONTROLLERS = (
    "it needs a controller's connection; headers and bodies of controllers are fuzzed (controller_decoders.py)"
)
_BROKERS = (
    "another broker's answer: its class is fuzzed as one to a client, and `Broker._guarded` answers whatever fails"
)
_MEMBERS = "its own disk; tests/dledger/test_files.py damages each file"
_MASTERS = "it needs a master's connection; the tables that it copies are fuzzed as files"
NOT_FOREIGN = {
    "access/plain_acl.py _names_of_heartbeat": "read_body of heartbeats is fuzzed; tests/broker_server/test_gate.py asks it",
    "broker/plain_access.py PlainAccess._document": "the operator's file; tests/access/test_plain_acl.py has spoilt ones",
    "broker/consumer_filters.py retry_filter": "records that this broker has judged and written",
    "broker/gauges.py BrokerGauges._timer": "the page of the timer's checkpoint, which this broker writes",
    "broker/offset_handlers.py OffsetHandlers._newest_offset": _BROKERS,
    "broker/offset_handlers.py OffsetHandlers._read": _BROKERS,
    "broker/pull.py PullHandler._forwarded": _BROKERS,
    "broker_server/controllers.py Controllers._find_leader": _CONTROLLERS,
    "broker_server/controllers.py Controllers.alter": _CONTROLLERS,
    "broker_server/controllers.py Controllers.elect": _CONTROLLERS,
    "broker_server/controllers.py Controllers.next_id": _CONTROLLERS,
    "broker_server/controllers.py Controllers.register": _CONTROLLERS,
    "broker_server/controllers.py Controllers.term": _CONTROLLERS,
    "broker_server/controllers.py _set_of": _CONTROLLERS,
    "broker_server/controlled.py IdentityFiles._read": "a line of a broker; tests/broker_server/test_identity.py has spoilt ones",
    "broker_server/member_group.py MemberGroup.ask": "read_answer_body is fuzzed",
    "broker_server/name_servers.py Registration._on_place": "read_answer_header is fuzzed",
    "broker_server/masters.py Master.state": _MASTERS,
    "broker_server/state_copies.py StateCopies._store": _MASTERS,
    "broker_server/static_topics.py MappingCleaning._ends_of_first_links": "read_body is fuzzed, and what it raises is caught",
    "broker_server/static_topics.py MappingCleaning._mapping_at": "the table is fuzzed as a file, and what it raises is caught",
    "client/address_server.py fetch_name_servers": "it needs an HTTP server; tests/client/test_address_server.py has spoilt pages",
    "client/allocation.py _ring_hash": "a hash of its own text",
    "client/blocking_connection.py BlockingConnection.receive": _SOCKETS,
    "client/producer.py Producer._recall": "read_answer_header is fuzzed",
    "client/push_consumer.py _AtWork.consume_directly": "it needs a listener's threads; decode_records is fuzzed",
    "client/request_reply.py PendingRequests.receive": "it needs a request that waits; decode_properties is fuzzed",
    "client/transport.py Transport.data_received": _SOCKETS,
    "controller/quorum.py Quorum._apply": "it needs the controllers' log; decode_event is fuzzed",
    "dledger/files.py MemberFiles._head_at": _MEMBERS,
    "dledger/files.py MemberFiles._load_vote": _MEMBERS,
    "dledger/files.py MemberFiles._trim": _MEMBERS,
    "dledger/files.py MemberFiles._unit": _MEMBERS,
    "dledger/files.py MemberFiles.entry": _MEMBERS,
    "dledger/files.py _Sums.load": _MEMBERS,
    "dledger/files.py _walked": _MEMBERS,
    "remoting_server/channel.py Channel._take_some": _SOCKETS,
    "remoting_server/member_lines.py MemberLines.processors": "bodies of members are fuzzed (dledger_decoders.py)",
    "remoting_server/member_lines.py _Promise.set_result": "bodies of members are fuzzed (dledger_decoders.py)",
    "sink/live_sink.py stage_for_brokers": "a nonce of its own",
    "sink/live_returns.py GroupRefusals._answered": "it needs lanes' threads; read_answer_body is fuzzed",
    "sink/live_brokers.py LiveBrokers.send": "it needs lanes' threads; read_answer_header is fuzzed",
    "sink/live_returns.py ReturnWriter._calls": "the user's column; message ids are fuzzed as such",
    "sink/live_transactions.py OpenHalves.stored": "a batch of its own; read_answer_header is fuzzed",
    "sink/own_source.py _logged_offsets": "what a source has told Spark; load_json is fuzzed",
    "source/archive_files.py ArchivedRecords.crc_agrees": "columns of a Parquet file, which pyarrow has decoded",
    "source/listener.py latest_offset": "what this source has told Spark; load_json is fuzzed",
    "source/options.py parse_paths": "the user's option",
    "source/options.py parse_storage": "the user's option",
}


def _called(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))


def _decoders() -> dict[str, tuple[str, int]]:
    """Each function that decodes, as `room/file function`, with file and first line."""
    found = {}
    of_rooms = [path for room in ROOMS for path in sorted((PROJECT / "spark_mq" / room).glob("*.py"))]
    for path in (*of_rooms, *(PROJECT / path for path in OF_FORMATS)):
        for name, function in _functions(ast.parse(path.read_text("utf-8")), ""):
            names = set(_called(function))
            if names & READING or any(each.startswith("decode_") for each in names):
                first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
                found[f"{path.parent.name}/{path.name} {name}"] = str(path), first
    return found


def _functions(tree: ast.AST, within: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{within}{node.name}.")


def _run_by_fuzzing(directory: Path) -> set[tuple[str, int]]:
    """File and first line of each function that the decoders run with their samples."""
    codes: set[CodeType] = set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    modules = [module for name, module in sys.modules.items() if name.startswith("spark_mq.")]
    for found in (value for module in modules for value in vars(module).values()):
        if isinstance(found, _lru_cache_wrapper):
            found.cache_clear()  # or what an earlier test has decoded is not decoded again
    samples = Samples(directory / "samples")
    made = [(decoder, decoder.samples(samples)) for decoder in fuzz.DECODERS]
    sys.setprofile(watch)
    try:
        for number, (decoder, contents) in enumerate(made):
            own = directory / str(number)
            own.mkdir()
            for content in contents:
                try:
                    decoder.read(content, own)
                except decoder.declared:
                    continue
    finally:
        sys.setprofile(None)
    return {(code.co_filename, code.co_firstlineno) for code in codes}


@pytest.mark.slow
def test_every_decoder_of_what_others_say_is_fuzzed(tmp_path: Path) -> None:
    decoders = _decoders()
    run = _run_by_fuzzing(tmp_path)
    not_run = {name for name, place in decoders.items() if place not in run}
    assert sorted(not_run - NOT_FOREIGN.keys()) == []
    assert sorted(NOT_FOREIGN.keys() - not_run) == [], "these are fuzzed, or are no decoders any more"
    assert len(decoders) > 60
