"""What a broker knows of a topic's queues at all brokers: by a name server's answer, for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spark_mq.broker_server.name_servers import SubscribedQueues
from spark_mq.client.errors import NameServerUnreachableError, TopicRouteNotFoundError
from spark_mq.client.routes import TopicRoute
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.routes import QueueData, TopicRouteData


class NameServer:
    """Says how many queues each topic has at broker b; None: no name server answers."""

    def __init__(self, **counts: int) -> None:
        self.counts: dict[str, int] | None = counts
        self.asked: list[str] = []

    async def route(self, topic: str, timeout_ms: int | None = None) -> TopicRoute:
        self.asked.append(topic)
        await asyncio.sleep(0.01)
        if self.counts is None:
            raise NameServerUnreachableError([])
        if topic not in self.counts:
            raise TopicRouteNotFoundError(topic, "127.0.0.1:1", None)
        queues = QueueData(broker_name="b", read_queue_count=self.counts[topic], write_queue_count=1, perm=6)
        return TopicRoute(topic, TopicRouteData(queue_datas=(queues,), broker_datas=()))


@contextmanager
def asking(name_server: NameServer, now_ms: list[int]) -> Iterator[SubscribedQueues]:
    queues = SubscribedQueues(ClientSettings(("127.0.0.1:1",)), lambda: 1_000, steady=lambda: now_ms[0])
    queues._name_servers = name_server  # type: ignore[assignment]
    try:
        yield queues
    finally:
        queues.close()


def of(topic: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, "b", queue_id) for queue_id in range(count)]


def test_an_answer_counts_for_a_while_and_one_without_queues_for_no_time() -> None:
    name_server, now_ms = NameServer(T=2, Empty=0), [0]
    with asking(name_server, now_ms) as queues:
        assert [list(queues.of("T") or ()) for _ in range(2)] == [of("T", 2)] * 2
        assert [queues.of("Empty"), queues.of("None"), queues.of("Empty"), queues.of("None")] == [(), None, (), None]
        assert name_server.asked == ["T", "Empty", "None", "Empty", "None"]
        name_server.counts, now_ms[0] = {"T": 3}, 1_000
        assert list(queues.of("T") or ()) == of("T", 3)


def test_what_was_said_before_counts_on_while_no_name_server_answers() -> None:
    name_server, now_ms = NameServer(T=2), [0]
    with asking(name_server, now_ms) as queues:
        queues.of("T")
        name_server.counts, now_ms[0] = None, 5_000
        assert list(queues.of("T") or ()) == of("T", 2)
        now_ms[0] = 5_999
        assert queues.of("Other") is None  # nobody is asked within a second of that
        assert name_server.asked == ["T", "T"]
        now_ms[0] = 6_000
        assert queues.of("Other") is None
        assert list(queues.of("T") or ()) == of("T", 2)
        assert name_server.asked == ["T", "T", "Other"]


def test_a_topic_that_is_gone_is_gone_but_for_retry_topics() -> None:
    name_server, now_ms = NameServer(**{"T": 2, "%RETRY%g": 1}), [0]
    with asking(name_server, now_ms) as queues:
        queues.of("T")
        queues.of("%RETRY%g")
        name_server.counts, now_ms[0] = {}, 1_000
        assert queues.of("T") is None
        assert list(queues.of("%RETRY%g") or ()) == of("%RETRY%g", 1)


def test_those_who_ask_for_one_topic_together_ask_once() -> None:
    name_server = NameServer(T=2)
    with asking(name_server, [0]) as queues:
        threads = [threading.Thread(target=queues.of, args=("T",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert name_server.asked == ["T"]


def test_those_who_ask_together_wait_for_one_question_that_nobody_answers() -> None:
    name_server = NameServer()
    name_server.counts = None
    with asking(name_server, [0]) as queues:
        threads = [threading.Thread(target=queues.of, args=("T",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert name_server.asked == ["T"]
