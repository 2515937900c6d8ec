"""Clients that leave as soon as they have said what they have to say: Apache's of Java and Go, and plain sockets.

SPARK_MQ_TEST_SERVERS=apache asks the same of Apache's broker.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, encode_frame, make_request, write_header
from spark_mq.remoting.consumers import UpdateConsumerOffsetRequest
from spark_mq.remoting.messages import SendMessageRequest
from tests.support.client_programs import GO, NotHereError
from tests.support.java_broker import Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

QUEUES = 4
OURS = True


def await_stored(broker: RunningBroker, topic: str, count: int) -> None:
    with PullConsumer(ClientSettings((broker.name_server,)), "lookers") as consumer:
        queues = consumer.queues(topic)
        wait_until(lambda: sum(map(consumer.end_offset, queues)) == count, f"{count} messages of {topic} are stored")


def connected(broker: RunningBroker) -> socket.socket:
    host, port = broker.address.split(":")
    sock = socket.create_connection((host, int(port)), 30)
    # As Go's and Java's clients: without it the last frames may wait in this system for an acknowledgement, and close drops them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def test_one_way_sends_of_connections_that_close_at_once_are_stored(broker: RunningBroker) -> None:
    broker.make_topic("LeftBySockets", QUEUES)
    header = SendMessageRequest(
        producer_group="G",
        topic="LeftBySockets",
        default_topic="TBW102",
        default_topic_queue_count=QUEUES,
        queue_id=0,
        sys_flag=0,
        born_time_ms=1_700_000_000_000,
        flag=0,
    )
    send = make_request(RequestCode.SEND_MESSAGE, write_header(header), b"body", is_oneway=True)
    frame = b"".join(map(bytes, encode_frame(send)))
    socks = [connected(broker) for _ in range(20)]
    for sock in socks:
        sock.sendall(frame * 20)
        sock.close()
    await_stored(broker, "LeftBySockets", 400)


def test_commits_that_are_answered_to_nobody_are_stored(broker: RunningBroker) -> None:
    """As Go's client sends them: they are no one-way requests, and it does not wait."""
    broker.make_topic("LeftCommits", QUEUES)

    def stored() -> set[int | None]:
        with PullConsumer(ClientSettings((broker.name_server,)), "left") as consumer:
            return {consumer.committed(queue) for queue in consumer.queues("LeftCommits")}

    stored()  # the broker knows the group then
    for offset in range(1, 6):
        with connected(broker) as sock:
            for queue_id in range(QUEUES):
                header = UpdateConsumerOffsetRequest(
                    consumer_group="left", topic="LeftCommits", queue_id=queue_id, commit_offset=offset
                )
                commit = make_request(RequestCode.UPDATE_CONSUMER_OFFSET, write_header(header))
                sock.sendall(b"".join(map(bytes, encode_frame(commit))))
        wait_until(lambda at=offset: stored() == {at}, f"commits of {offset} are stored")  # type: ignore[misc]


def test_what_javas_producer_sends_one_way_before_it_shuts_down_is_stored(
    servers: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    broker.make_topic("LeftByJava", QUEUES)
    servers.java("Leaving", tmp_path / "out.jsonl", f"ns={broker.name_server}", "topic=LeftByJava")
    await_stored(broker, "LeftByJava", 510)


def test_no_orderly_consumer_goes_back_behind_one_that_has_shut_down(
    servers: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    broker.make_topic("LeftInOrder", QUEUES)
    arguments = f"ns={broker.name_server}", "topic=LeftInOrder", "group=orderly", "count=12", "rounds=4"
    servers.java("Leaving", tmp_path / "out.jsonl", *arguments)
    rounds = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert [(each["whole"], each["back"]) for each in rounds] == [(True, 0)] * 4


@pytest.mark.long
def test_what_gos_consumers_commit_while_they_shut_down_is_stored(
    servers: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    broker.make_topic("LeftByGo", QUEUES)
    try:
        client = GO.run(servers, broker, tmp_path / "out.jsonl", "LeftByGo", leave="20")
    except NotHereError as absent:
        pytest.skip(str(absent))
    consumed: dict[str, dict[int, int]] = {f"g-LeftByGo-{number}": {} for number in range(20)}
    for line in client.lines("got"):
        of_group = consumed[line["by"]]
        of_group[line["queueId"]] = max(of_group.get(line["queueId"], 0), line["queueOffset"] + 1)
    assert [sum(of_group.values()) for of_group in consumed.values()] == [12] * 20

    def stored(group: str) -> dict[int, int | None]:
        with PullConsumer(ClientSettings((broker.name_server,)), group) as consumer:
            return {queue.queue_id: consumer.committed(queue) for queue in consumer.queues("LeftByGo")}

    for group, of_group in consumed.items():
        wait_until(lambda at=group, want=of_group: stored(at) == want, f"{group} is at {of_group}")  # type: ignore[misc]
