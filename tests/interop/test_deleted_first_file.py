"""What Apache's broker serves for the message of log offset 0, once its file is deleted and before the queue's minimum has moved."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.calls import make_call
from spark_mq.client.errors import MalformedResponseError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue, RequestCode
from spark_mq.source.cluster_questions import ClusterQuestions
from spark_mq.source.offsets import QueueId
from spark_mq.source.pulls import Ask, PullAnswer, PullRequests, PullTerms, pull_answer
from storage.format.record import decode_offset_message_id
from tests.archive.archived import rows_of
from tests.spark.in_process import bodies
from tests.support.java_broker import Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

OLD_S = 1_000_000_000
LONG_S = 8
"""Between the files of two queues' turns."""


@pytest.fixture
def broker(oracle: Oracle, tmp_path: Path) -> Iterator[RunningBroker]:
    with (
        oracle.namesrv() as name_server,
        oracle.broker(
            tmp_path / "store", name_server, commitlog_file_size_bytes=64 << 10, consume_queue_file_size_bytes=2_000,
            cleanResourceInterval=500, deleteCommitLogFilesInterval=1, deleteConsumeQueueFilesInterval=1_000 * LONG_S,
        ) as running,
    ):  # fmt: skip
        yield running


class Puller:
    """Asks for one message of the second queue, from its beginning on."""

    def __init__(self, broker: RunningBroker, queue: QueueId) -> None:
        self._broker, self._queue = broker, queue
        settings = ClientSettings((broker.name_server,))
        self._questions = ClusterQuestions(settings)
        self._request = PullRequests(queue, PullTerms(settings, "G")).request(Ask(0, 1))

    def answer(self) -> PullAnswer:
        (answered,) = self._questions.ask(self._broker.address, [self._request])
        return pull_answer(answered.command, self._broker.address, self._queue, "G")

    def let_expire(self) -> None:
        log = self._broker.store / "commitlog"
        for file in sorted(log.iterdir())[:-3]:  # the last one is prepared; those before have what is left
            os.utime(file, (OLD_S, OLD_S))
        (answer,) = self._questions.ask(self._broker.address, [make_call(RequestCode.DELETE_EXPIRED_COMMITLOG)])
        answer.expect()


@pytest.mark.parametrize("first_size", [100, 3_000], ids=["shorter", "longer"])
def test_the_bytes_of_the_next_file_come_for_the_logs_first_record_and_are_no_row(
    broker: RunningBroker, first_size: int
) -> None:
    """Queues are cleaned one after the other, and this broker rests after each one that has lost files."""
    broker.make_topic("Topic", 2)
    with Producer(ClientSettings((broker.name_server,)), "G") as producer:
        name = producer.queues("Topic")[0].broker_name
        cleaned, left = (MessageQueue("Topic", name, queue_id) for queue_id in range(2))
        sent = producer.send(Message("Topic", b"a" * first_size), left)
        assert decode_offset_message_id(sent.offset_message_id)[2] == 0
        for number in range(600):  # a hundred fill a file of the queue, and less than one of the log
            producer.send(Message("Topic", b"b" * (300 + number % 7)), cleaned)
        expected = [b"left %d" % number for number in range(50)]
        for body in expected:
            producer.send(Message("Topic", body), left)
    puller = Puller(broker, QueueId("Topic", name, 1))
    before = puller.answer()
    asked_at, deadline = 0.0, time.monotonic() + 150
    while (answer := puller.answer()).next_offset != 1 or answer.body in (before.body, b""):  # others pass over it
        assert time.monotonic() < deadline, "the broker deletes nothing"
        if time.monotonic() - asked_at > 1:
            puller.let_expire()
            asked_at = time.monotonic()
        time.sleep(0.02)
    print(answer._replace(body=bytes(answer.body[:4])), len(answer.body))
    assert (answer.remark, answer.minimum) == ("FOUND", 0)
    assert len(answer.body) == len(before.body), "as many bytes as the deleted record had"
    assert int.from_bytes(answer.body[:4], "big") != len(answer.body), "and they are another record's"
    rows = rows_of(
        nameServer=broker.name_server, subscribe="Topic"
    )  # pulls again until the broker is done; nothing is lost
    assert bodies([row for row in rows if row["queue_id"] == 1]) == [body.decode() for body in expected]
    assert puller.answer().minimum == 1, "the broker is done"
    with Admin(ClientSettings((broker.name_server,))) as admin, pytest.raises(MalformedResponseError, match="not at 0"):
        admin.view_message(sent.offset_message_id)
