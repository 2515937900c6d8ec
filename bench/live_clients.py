"""Our producer and consumers beside Java's, without Spark: the same commands to both programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.client_peer import ClientPeer, Done
from bench.live_sinks import FreshTopic
from bench.live_sources import expect_all
from bench.measure import BY_JAVA, Case, Peer
from bench.messages import BATCH_MESSAGES, QUEUES
from bench.rocketmq_broker import RunningBroker

TITLE = "Clients"
HEADINGS = ("client", "way")
RATIOS = (BY_JAVA,)
NAMES: dict[Peer, str] = {"java": "Java's", "spark_mq": "ours (Python)"}
IN_FLIGHT = 512
CONSUMED_TOPIC = "bench_consumed"


@dataclass(frozen=True, slots=True)
class Way:
    """What a client is asked to do with messages: `command` and, behind topic and count, `numbers`."""

    name: str
    command: str
    numbers: tuple[int, ...]
    messages: int
    """A part of those asked for, where the way is slow."""


def producer_ways(messages: int) -> list[Way]:
    return [
        Way("send, 1 thread", "sync", (1,), messages // 5),
        Way(f"send_async, {IN_FLIGHT} in flight", "async", (IN_FLIGHT,), messages),
        Way(f"send_batch of {BATCH_MESSAGES}, 1 thread", "batch", (1, BATCH_MESSAGES), messages),
    ]


def consumer_ways(messages: int) -> list[Way]:
    """The first of the numbers says whether the bodies' CRCs are summed up."""
    return [
        Way("pull consumer", "pull", (0,), messages),
        Way("push consumer, 1 a call", "push", (0, 1), messages),
        Way(f"push consumer, {BATCH_MESSAGES} a call", "push", (0, BATCH_MESSAGES), messages),
    ]


@dataclass(slots=True)
class ProducerCase:
    """One client sends to a new topic."""

    peer: Peer
    client: ClientPeer
    way: Way
    topic: FreshTopic

    @property
    def labels(self) -> tuple[str, ...]:
        return NAMES[self.peer], self.way.name

    def prepare(self) -> None:
        self.topic.make()

    def run(self) -> float:
        return self.client.run(self.way.command, self.topic.name, self.way.messages, *self.way.numbers).seconds

    def check(self) -> None:
        self.topic.check(self.way.messages)

    def clear(self) -> None:
        self.topic.clear()


@dataclass(slots=True)
class ConsumerCase:
    """One client consumes a topic from its beginning, as a new group."""

    peer: Peer
    client: ClientPeer
    way: Way

    @property
    def labels(self) -> tuple[str, ...]:
        return NAMES[self.peer], self.way.name

    def prepare(self) -> None:
        """Nothing: what is read was made before."""

    def run(self) -> float:
        return self._consume(*self.way.numbers).seconds

    def check(self) -> None:
        expect_all(self._consume(1, *self.way.numbers[1:]), self.way.messages)

    def clear(self) -> None:
        """Nothing: what is read is kept."""

    def _consume(self, *numbers: int) -> Done:
        return self.client.run(self.way.command, CONSUMED_TOPIC, self.way.messages, *numbers)


def client_cases(
    broker: RunningBroker, peers: Mapping[Peer, ClientPeer], messages: int
) -> Iterator[tuple[int, list[Case]]]:
    """For each way how many messages it moves, and the cases that take turns.

    The topic that is consumed is made by Java's producer behind the producers' rounds, which delete the broker's older log files.
    """
    topic = FreshTopic(broker, peers["java"])
    for way in producer_ways(messages):
        yield way.messages, [ProducerCase(peer, client, way, topic) for peer, client in peers.items()]
    broker.make_topics([CONSUMED_TOPIC], QUEUES)
    peers["java"].run("batch", CONSUMED_TOPIC, messages, 1, BATCH_MESSAGES)
    for way in consumer_ways(messages):
        yield way.messages, [ConsumerCase(peer, client, way) for peer, client in peers.items()]
