"""Our producer and consumers as a program that does what JavaPeer.java does; the commands stand in `client_peer.py`.

python -m bench.python_peer NAME_SERVER BODIES BODY_SIZE
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.client_peer import Done
from bench.messages import TAGS, key_of
from spark_mq.client import (
    ClientSettings,
    ConcurrentContext,
    ConsumeFrom,
    ConsumeStatus,
    Message,
    MessageExt,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullSettings,
    PushConsumer,
    PushSettings,
    SendResult,
    SendStatus,
)

TIMEOUT_MS = 30_000
PATIENCE_S = 600.0
POLL_MS = 1_000


class PythonPeer:
    """The clients of one name server."""

    def __init__(self, name_server: str, bodies: Sequence[bytes]) -> None:
        self._settings = ClientSettings((name_server,))
        self._bodies = bodies
        self._producers: dict[int, Producer] = {}

    def run(self, name: str, topic: str, *numbers: int) -> Done:
        command: Callable[..., Done] = getattr(self, name)
        return command(topic, *numbers)

    def sync(self, topic: str, count: int, threads: int) -> Done:
        producer = self._producer()

        def send(numbers: range) -> None:
            for number in numbers:
                _expect_ok(producer.send(self._message(topic, number)))

        return _in_threads(send, count, threads)

    def batch(self, topic: str, count: int, threads: int, size: int) -> Done:
        producer = self._producer()

        def send(numbers: range) -> None:
            for first in numbers[::size]:
                batch = range(first, min(first + size, numbers.stop))
                _expect_ok(producer.send_batch([self._message(topic, number) for number in batch]))

        return _in_threads(send, count, threads)

    def async_(self, topic: str, count: int, in_flight: int) -> Done:
        producer = self._producer(in_flight)
        begun = time.perf_counter()
        futures = [producer.send_async(self._message(topic, number)) for number in range(count)]
        for future in futures:
            _expect_ok(future.result())
        return Done(time.perf_counter() - begun, count, 0, 0)

    def pull(self, topic: str, count: int, checked: int) -> Done:
        consumed = Consumed(is_checked=bool(checked))
        pull = PullSettings(consume_from=ConsumeFrom.FIRST)
        with PullConsumer(self._settings, _new_group("pull"), pull) as consumer:
            queues = consumer.queues(topic)
            begun = time.perf_counter()
            consumer.assign(queues)
            while consumed.messages < count and time.perf_counter() < begun + PATIENCE_S:
                consumed.add(consumer.poll(POLL_MS))
            return consumed.done(time.perf_counter() - begun)

    def push(self, topic: str, count: int, checked: int, size: int) -> Done:
        consumed = Consumed(is_checked=bool(checked))
        is_all = threading.Event()
        begun: list[float] = []

        def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
            if not begun:
                begun.append(time.perf_counter())
            if consumed.add(messages) >= count:
                is_all.set()
            return ConsumeStatus.SUCCESS

        push = PushSettings(consume_from=ConsumeFrom.FIRST, batch_size=size)
        consumer = PushConsumer(self._settings, _new_group("push"), listen, options=push)
        consumer.subscribe(topic)
        with consumer:
            is_all.wait(PATIENCE_S)
            return consumed.done(time.perf_counter() - begun[0])

    def idle(self, prefix: str, topics: int, seconds: int) -> Done:
        consumer = PushConsumer(
            self._settings, _new_group("idle"), lambda messages, context: ConsumeStatus.SUCCESS, options=PushSettings()
        )
        for number in range(topics):
            consumer.subscribe(f"{prefix}_{number}")
        with consumer:
            time.sleep(seconds)
        return Done(seconds, 0, 0, 0)

    def _producer(self, in_flight: int = 10_000) -> Producer:
        """Kept for the next round."""
        if in_flight not in self._producers:
            options = ProducerSettings(send_timeout_ms=TIMEOUT_MS, max_in_flight=in_flight)
            self._producers[in_flight] = Producer(self._settings, f"bench_python_{in_flight}", options)
        return self._producers[in_flight]

    def _message(self, topic: str, number: int) -> Message:
        body = self._bodies[number % len(self._bodies)]
        return Message(topic, body, tags=TAGS[number // 7 % len(TAGS)], keys=key_of(number))


class Consumed:
    """What was consumed so far, by any thread."""

    def __init__(self, *, is_checked: bool) -> None:
        self._is_checked = is_checked
        self._lock = threading.Lock()
        self.messages = 0
        self.body_bytes = 0
        self.crc_sum = 0

    def add(self, messages: Sequence[MessageExt]) -> int:
        """How many there are now."""
        size = sum(len(message.body) for message in messages)
        crcs = sum(zlib.crc32(message.body) for message in messages) if self._is_checked else 0
        with self._lock:
            self.messages += len(messages)
            self.body_bytes += size
            self.crc_sum += crcs
            return self.messages

    def done(self, seconds: float) -> Done:
        return Done(seconds, self.messages, self.body_bytes, self.crc_sum)


def _in_threads(send: Callable[[range], None], count: int, threads: int) -> Done:
    shares = [range(count * each // threads, count * (each + 1) // threads) for each in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        begun = time.perf_counter()
        list(pool.map(send, shares))
        return Done(time.perf_counter() - begun, count, 0, 0)


def _expect_ok(result: SendResult) -> None:
    if result.status is not SendStatus.SEND_OK:
        raise RuntimeError(f"sent: {result.status}")


def _new_group(kind: str) -> str:
    return f"bench_{kind}_{time.monotonic_ns()}"


def main(name_server: str, bodies_file: str, body_size: str) -> None:
    all_bodies, size = Path(bodies_file).read_bytes(), int(body_size)
    bodies = [all_bodies[start : start + size] for start in range(0, len(all_bodies), size)]
    peer = PythonPeer(name_server, bodies)
    for line in sys.stdin:
        name, topic, *numbers = line.split()
        try:
            done = peer.run("async_" if name == "async" else name, topic, *map(int, numbers))
        except Exception as error:
            print("FAILED", f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
        else:
            print("DONE", *done, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
