"""Producers that note what was acknowledged, and consumers of one group that join and leave, for the soak of a broker."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from spark_mq.client.errors import ClientError
from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.producer import Producer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.send_results import SendResult, SendStatus
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PushSettings

TOPIC, GROUP, PRODUCERS = "Soaked", "SoakConsumers", "SoakProducers"
_LONGEST_BODY = 6_000
"""Above what is compressed."""
_BATCH, _ASYNC = 8, 24
_LATER_ONE_IN = 997
"""So many messages are consumed only when they come the second time."""


def key_of(producer: int, number: int) -> str:
    """Which message of which producer it is."""
    return f"{producer}-{number}"


def body_of(key: str) -> bytes:
    """What a message of that key holds."""
    length = Random(key).choice((0, 10, 200, 1_000, 1_000, 2_000, _LONGEST_BODY))
    return (key.encode() + b" ") * (1 + length // (len(key) + 1))


class Book:
    """What happened to each message. Keys of two producers fit into memory for hours."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acknowledged: set[str] = set()
        self.consumed: set[str] = set()
        self.sent_count = 0
        self.consumed_count = 0
        """With those that came more than once."""
        self.wrong: list[str] = []
        """Messages that hold what nobody sent."""
        self.failures: Counter[str] = Counter()
        """Of sends, by the kind of error."""


class Sending(threading.Thread):
    """A producer that sends by turns waiting, in the background and in batches, until `stop` is set."""

    def __init__(self, number: int, settings: ClientSettings, book: Book, seed: int, per_second: float) -> None:
        super().__init__(name=f"producer-{number}", daemon=True)
        self._number = number
        self._book = book
        self._random = Random(seed)
        self._per_second = per_second
        self._next = 0
        self.stop = threading.Event()
        self._producer = Producer(settings, f"{PRODUCERS}-{number}", topics=(TOPIC,))

    def run(self) -> None:
        with self._producer:
            began, sent = time.monotonic(), 0
            while not self.stop.is_set():
                sent += self._random.choice((self._send_waiting, self._send_async, self._send_batch))()
                self.stop.wait(max(0.0, min(1.0, began + sent / self._per_second - time.monotonic())))
                if sent / self._per_second < time.monotonic() - began - 1:  # what was missed is not caught up
                    began, sent = time.monotonic(), 0

    def _made(self, count: int) -> list[Message]:
        keys = [key_of(self._number, self._next + at) for at in range(count)]
        self._next += count
        with self._book.lock:
            self._book.sent_count += count
        return [Message(TOPIC, body_of(key), keys=key) for key in keys]

    def _send_waiting(self) -> int:
        (message,) = self._made(1)
        self._note([message], lambda: self._producer.send(message))
        return 1

    def _send_batch(self) -> int:
        messages = self._made(_BATCH)
        self._note(messages, lambda: self._producer.send_batch(messages))
        return _BATCH

    def _send_async(self) -> int:
        messages = self._made(_ASYNC)
        for message in messages:
            try:
                future = self._producer.send_async(message)
            except ClientError as error:
                self._fail(error)
                continue
            future.add_done_callback(lambda ended, message=message: self._note([message], ended.result))
        return _ASYNC

    def _note(self, messages: Sequence[Message], result: object) -> None:
        assert callable(result)
        try:
            found = result()
        except ClientError as error:
            self._fail(error)
            return
        assert isinstance(found, SendResult)
        if found.status is SendStatus.SEND_OK:
            with self._book.lock:
                self._book.acknowledged.update(message.keys[0] for message in messages)
        else:
            with self._book.lock:
                self._book.failures[found.status.name] += 1

    def _fail(self, error: ClientError) -> None:
        with self._book.lock:
            self._book.failures[type(error).__name__] += 1


class Coming(threading.Thread):
    """A place in the group: a consumer is there for a while, leaves, and another one comes, until `stay` or `stop` is set."""

    def __init__(self, number: int, settings: Sequence[ClientSettings], book: Book, seed: int, stay_s: float) -> None:
        """Each consumer of the place has other settings, of those given, so that it is another client."""
        super().__init__(name=f"consumer-{number}", daemon=True)
        self._settings = settings
        self._book = book
        self._random = Random(seed)
        self._stay_s = stay_s
        self.joined = 0
        self.stay = threading.Event()
        """Who comes from now on does not leave."""
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            settings = self._settings[self.joined % len(self._settings)]
            push = PushSettings(consume_from=ConsumeFrom.FIRST, thread_count=4, batch_size=4)
            consumer = PushConsumer(settings, GROUP, self._listen, options=push)
            try:
                consumer.subscribe(TOPIC)
                consumer.start()
            except ClientError:
                consumer.close()
                self.stop.wait(0.5)
                continue
            self.joined += 1
            until = time.monotonic() + self._random.uniform(0.3, 1.7) * self._stay_s
            while not self.stop.wait(0.2) and (self.stay.is_set() or time.monotonic() < until):
                pass
            consumer.close(5_000)
            self.stop.wait(self._random.uniform(0, 0.3) * self._stay_s)

    def _listen(self, messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        keys = [message.keys[0] for message in messages]
        wrong = [key for key, message in zip(keys, messages, strict=True) if message.body != body_of(key)]
        number = int(keys[0].partition("-")[2])
        is_too_soon = number % _LATER_ONE_IN == _LATER_ONE_IN - 1 and messages[0].reconsume_times == 0
        with self._book.lock:
            self._book.wrong += wrong
            self._book.consumed_count += len(keys)
            if not is_too_soon:
                self._book.consumed.update(keys)
        return ConsumeStatus.LATER if is_too_soon else ConsumeStatus.SUCCESS
