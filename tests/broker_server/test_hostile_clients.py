"""A broker that runs among those who mean harm: it answers or hangs up, keeps to memory and directory, and serves the others."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from spark_mq.remoting import RemotingCommand, RequestCode, encode_frame, make_request, write_header
from spark_mq.remoting.routes import RegisterBrokerRequest
from storage import open_store
from tests.broker.conversation import SETTINGS
from tests.broker_server.asking import answers_of, await_end
from tests.broker_server.bystander import unharmed
from tests.broker_server.hostile_requests import ESCAPED, bad_bodies, bad_fields, bad_mixtures
from tests.broker_server.idle_client import idle_connections
from tests.broker_server.own_cluster import OwnCluster, own_cluster
from tests.broker_server.process_samples import Sampler, take_sample
from tests.broker_server.recorded import RecordingPeers, honest_commands
from tests.remoting_server.echo import NO_FRAMES
from tests.torture.decoders import JSON_BOMBS
from tests.torture.mutations import JSON_WORDS, Mutator

pytestmark = pytest.mark.slow

SEED = 20_261_123
MAY_WAIT = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.END_TRANSACTION})
"""Pulls wait for messages, and the end of a transaction whose state is not known is not answered."""
MEMORY_BYTES = 400 << 20
"""More than what the broker has at first may be taken. 16 MiB frames come, several at a time."""
SETTINGS_OF_TESTS = {**SETTINGS, "messageDelayLevel": "1s 1s 1s 1s 1s"}
_MIB = 1 << 20
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
Honest = Mapping[int, list[RemotingCommand]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OwnCluster]:
    with own_cluster(tmp_path, **SETTINGS_OF_TESTS) as running:
        yield running


@pytest.fixture
def honest(cluster: OwnCluster) -> Iterator[Honest]:
    """What honest clients have asked; they are connected still."""
    peers = RecordingPeers(cluster.address)
    yield honest_commands(cluster, peers)
    with suppress(OSError):
        peers.close()


@contextmanager
def hostilities(cluster: OwnCluster, memory_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Others are served meanwhile. Afterwards the broker runs, nothing has failed in it, nothing was written outside of its store, and
    another process goes on with the store.
    """
    root = cluster.store.parent
    outside = _outside(cluster)
    first = take_sample(cluster.pid)
    assert first is not None
    sampler = Sampler(0.05)
    sampler.watch(cluster.pid)
    try:
        with unharmed(cluster):
            yield
    finally:
        sampler.close()
    assert cluster.is_running, cluster.output[-3_000:]
    assert "Traceback" not in cluster.output, _tracebacks(cluster.output)
    last = take_sample(cluster.pid)
    assert last is not None
    greatest = max(sample.own_bytes for sample in (*sampler.lives[0], last))
    print(f"memory: {first.own_bytes >> 20} MiB at first, {greatest >> 20} at most")
    assert greatest - first.own_bytes < memory_bytes
    assert _outside(cluster) == outside
    assert not [path for path in root.rglob(f"*{ESCAPED}*") if path.is_dir()]
    names = {path.name for path in (cluster.store / "consumequeue").iterdir()}
    assert {name for name in names if not _LEGAL.fullmatch(name)} == set()
    cluster.kill()
    cluster.start()
    with unharmed(cluster):
        time.sleep(0.5)
    assert "Traceback" not in cluster.output, _tracebacks(cluster.output)
    assert cluster.end() == 0
    with open_store(cluster.store) as store:
        assert store.topics()


def _outside(cluster: OwnCluster) -> set[Path]:
    """All that lies beside the store."""
    root = cluster.store.parent
    return {path for path in root.rglob("*") if cluster.store not in (path, *path.parents)}


def _tracebacks(output: str) -> str:
    """The last lines of different ones, each with how often it came."""
    ends = Counter(re.findall(r"Traceback.*?\n(\w[^\n]*)", output, re.DOTALL))
    return f"{ends.most_common(20)}\n{output[output.find('Traceback') - 300 :][:4_000]}"


def test_whatever_a_field_says_a_request_is_answered(cluster: OwnCluster, honest: Honest) -> None:
    absolute = str(cluster.store.parent / ESCAPED)
    with hostilities(cluster):
        for commands in honest.values():
            answers_of(cluster.address, bad_fields(commands, absolute), MAY_WAIT)


def test_whatever_a_body_is_a_request_is_answered(cluster: OwnCluster, honest: Honest) -> None:
    random = Random(SEED)
    with hostilities(cluster):
        for commands in honest.values():
            answers_of(cluster.address, bad_bodies(commands, random, 40), MAY_WAIT)


@pytest.mark.long
def test_requests_with_much_that_is_wrong_are_answered(cluster: OwnCluster, honest: Honest) -> None:
    random = Random(SEED)
    with hostilities(cluster):
        for _ in range(8):
            answers_of(cluster.address, bad_mixtures(honest, random, 500), MAY_WAIT)


def test_bytes_that_are_nearly_frames_end_their_connection_at_most(cluster: OwnCluster, honest: Honest) -> None:
    random = Random(SEED)
    frames = [_frame(command) for commands in honest.values() for command in commands]
    mutator = Mutator(random, frames, JSON_WORDS, max_bytes=1 << 16)
    towers = [struct.pack(">ii", 4 + len(bomb), len(bomb)) + bomb for bomb in JSON_BOMBS]
    with hostilities(cluster):
        for data in (*NO_FRAMES.values(), *towers, *(mutator.next() for _ in range(3_000))):
            await_end(cluster.address, data)


def _frame(command: RemotingCommand) -> bytes:
    return b"".join(map(bytes, encode_frame(command)))


def test_frames_that_never_end_take_what_has_come_of_them_and_are_given_up(tmp_path: Path) -> None:
    claims = [struct.pack(">iI", size, 100) for size in (16_777_212, 1 << 20, 5_000)]
    with own_cluster(tmp_path, serverChannelMaxIdleTimeSeconds=2, **SETTINGS_OF_TESTS) as cluster:
        host, port = cluster.address.split(":")
        with hostilities(cluster, 100 << 20), ExitStack() as opened:
            socks = [opened.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(300)]
            for number, sock in enumerate(socks):
                sock.sendall(claims[number % 3] + b"{" * 50)
            ended = threading.Event()

            def trickle() -> None:
                while not ended.wait(0.1):
                    for sock in socks:
                        with suppress(OSError):
                            sock.send(b"x")

            thread = threading.Thread(target=trickle, daemon=True)
            thread.start()
            for sock in socks:  # each of them waits for its end, at most for its time-out
                with suppress(ConnectionError):
                    assert sock.recv(1) == b""
            ended.set()
            thread.join()


def test_a_claim_of_two_gigabytes_is_refused_at_once(cluster: OwnCluster) -> None:
    with hostilities(cluster, 50 << 20):
        for size in (2**31 - 1, 16_777_213, 2**30, -1, 0, 3):
            await_end(cluster.address, struct.pack(">iI", size, size & 0xFF_FFFF) + b"{" * 1_000, says_no_more=False)


def test_idle_connections_harm_nobody(cluster: OwnCluster) -> None:
    with hostilities(cluster), idle_connections(cluster.address, 10_000) as count:
        assert count >= 1_000
        time.sleep(3)
        sample = take_sample(cluster.pid)
        assert sample is not None
        print(f"{count} connections, {sample.descriptors} descriptors, {sample.own_bytes >> 20} MiB")
        assert sample.descriptors >= count


def test_a_registration_that_grows_without_end_is_refused(cluster: OwnCluster) -> None:
    name_server = cluster.name_server_pid
    first = take_sample(name_server)
    header = RegisterBrokerRequest(
        broker_name="bomb",
        broker_address="127.0.0.1:1",
        cluster_name="C",
        ha_server_address="127.0.0.1:2",
        broker_id=0,
        compressed=True,
    )
    sampler = Sampler(0.02)
    sampler.watch(name_server)
    bombs = (_bomb(bytes(_MIB), 512), _bomb(b"[" * _MIB, 64), _bomb(b"\xff" * _MIB, 64))
    with hostilities(cluster):
        for bomb in bombs:
            command = make_request(RequestCode.REGISTER_BROKER, write_header(header), bomb)
            (answer,) = answers_of(cluster.name_server, [command], frozenset())
            assert answer.code != 0
    sampler.close()
    last = take_sample(name_server)
    assert first is not None
    assert last is not None
    greatest = max(sample.own_bytes for sample in (*sampler.lives[0], last))
    assert greatest - first.own_bytes < 200 << 20


def _bomb(piece: bytes, count: int) -> bytes:
    """So many pieces, compressed."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(piece) for _ in range(count)) + packer.flush()
