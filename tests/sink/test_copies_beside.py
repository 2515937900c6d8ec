"""A sink that has the store itself, and a replicator beside it that knows how many copies there are."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.conditions import SparkMqError
from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import NAME, Copies, ReplicaServer, ask_for_copies
from tests.sink.test_sink_tasks import bodies, commit, options_of, stage, texts

SHORT = "50ms"


@contextmanager
def answered(root: Path, in_sync: int, holding: int) -> Iterator[list[int]]:
    """A replicator that says so; the ends that it was asked about."""
    ends: list[int] = []

    def holds(end: int, needed: int, seconds: float) -> int:
        ends.append(end)
        return holding

    server = ReplicaServer(str(root), Copies(lambda needed, seconds: in_sync, holds))
    server.start()
    try:
        yield ends
    finally:
        server.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir()
    return made


def test_a_batch_is_done_when_so_many_hold_the_logs_end(root: Path) -> None:
    options = options_of(str(root), inSyncReplicas="2")
    with answered(root, 2, 2) as ends:
        commit(options, stage(options, bodies("a", "b")))
    assert texts(str(root)) == ["a", "b"]
    assert len(ends) == 1
    assert ends[0] > 0


def test_a_batch_that_lacks_copies_is_an_error_and_the_next_try_writes_nothing(root: Path) -> None:
    options = options_of(str(root), inSyncReplicas="2", slaveTimeout=SHORT)
    with answered(root, 2, 1), pytest.raises(SparkMqError, match="SPARK_MQ_NOT_REPLICATED"):
        commit(options, stage(options, bodies("a")))
    with answered(root, 2, 2):
        commit(options, stage(options, bodies("a"), attempt=1))
    assert texts(str(root)) == ["a"]


def test_too_few_replicas_are_refused_with_nothing_written(root: Path) -> None:
    options = options_of(str(root), inSyncReplicas="3", slaveTimeout=SHORT)
    with answered(root, 2, 2), pytest.raises(SparkMqError, match=r"SPARK_MQ_REPLICAS_NOT_ENOUGH.* 2 are in sync"):
        commit(options, stage(options, bodies("a")))
    with answered(root, 3, 3):
        commit(options, stage(options, bodies("b"), attempt=1))
    assert texts(str(root)) == ["b"]


def test_settings_of_a_master_ask_for_copies_too(root: Path) -> None:
    (root / "broker.conf").write_text("brokerRole=SYNC_MASTER\ninSyncReplicas=2\n")
    options = options_of(str(root), slaveTimeout=SHORT)
    with pytest.raises(SparkMqError, match="SPARK_MQ_REPLICAS_NOT_ENOUGH"):
        commit(options, stage(options, bodies("a")))
    with answered(root, 2, 2):
        commit(options, stage(options, bodies("a"), attempt=1))
    assert texts(str(root)) == ["a"]


def test_one_replicator_answers(root: Path) -> None:
    with answered(root, 2, 2):
        with pytest.raises(FileExistsError, match="another replicator"):
            ReplicaServer(str(root), Copies(lambda *_: 9, lambda *_: 9))
        assert ask_for_copies(str(root), 2, None, 0) == 2
    assert not (root / "spark_mq" / NAME).exists()
    assert ask_for_copies(str(root), 2, None, 0) == 1


def test_what_a_killed_one_has_left_is_replaced(root: Path) -> None:
    left = local_socket.bind(str(root), NAME)
    left.close()
    with answered(root, 2, 2):
        assert ask_for_copies(str(root), 2, None, 0) == 2


@pytest.mark.parametrize("question", [b"\0\0\0\2{}", b"\xff\xff\xff\xff", b"\0\0\0\1x", b"\0\0", b""])
def test_a_question_that_is_none_is_not_answered_and_harms_nobody(root: Path, question: bytes) -> None:
    with answered(root, 2, 2):
        with local_socket.connect(str(root), 10, NAME) as connection:
            connection.sendall(question)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
        assert ask_for_copies(str(root), 2, 7, 0) == 2
    assert os.listdir(root / "spark_mq") == []
