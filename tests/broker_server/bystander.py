"""Clients that mean well, while others do harm: a producer that sends all the time, and what became of what it sent."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from spark_mq.client.errors import ClientError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ProducerSettings
from tests.broker_server.own_cluster import OwnCluster

TOPIC = "Bystanders"
_PAUSE_SECONDS = 0.02
_TIMEOUT_MS = 15_000
_LEAST = 5


@contextmanager
def unharmed(cluster: OwnCluster) -> Iterator[None]:
    """A producer sends meanwhile, over one connection, and no send fails or is tried twice. AssertionError otherwise."""
    failed: list[ClientError] = []
    ending = threading.Event()
    count = itertools.count()
    waits: list[float] = []
    once = ProducerSettings(send_timeout_ms=_TIMEOUT_MS, retries=0)
    with Producer(cluster.settings, "bystander", once) as producer:
        producer.send(Message(TOPIC, b"first"))

        def send() -> None:
            while not ending.wait(_PAUSE_SECONDS) or len(waits) < _LEAST:
                began = time.monotonic()
                try:
                    producer.send(Message(TOPIC, b"%d" % next(count)))
                except ClientError as error:
                    failed.append(error)
                waits.append(time.monotonic() - began)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join(2 * _TIMEOUT_MS / 1_000)
    assert not failed, f"{len(failed)} of {next(count)} sends failed, the first: {failed[0].describe()}"
    assert len(waits) >= _LEAST, "sends do not end"
    print(f"{len(waits)} sends beside it, the longest took {max(waits):.2f} s")
