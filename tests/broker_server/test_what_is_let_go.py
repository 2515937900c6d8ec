"""A request that is answered is let go at once: what stands in a circle stays until the garbage collector looks, which is seldom."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from spark_mq.client.errors import ClientError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

SERVER = "spark_mq.broker", "spark_mq.remoting_server", "storage.service", "storage.rules", "storage.put"
FEW, SOME = 3, 60


@contextmanager
def _nobody_looks() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _garbage() -> Counter[str]:
    """What of a server's stands in circles that nothing leads to, by its kind."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        kinds = ((_module(each), getattr(each, "__qualname__", type(each).__qualname__)) for each in gc.garbage)
        return Counter(f"{module}.{name}" for module, name in kinds if module.startswith(SERVER))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _module(each: object) -> str:
    return str(getattr(each, "__module__", None) or type(each).__module__)


def _has_route(consumer: PullConsumer) -> bool:
    with suppress(ClientError):
        return bool(consumer.queues("Topic"))
    return False


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_requests_that_were_answered_wait_for_no_garbage_collector(tmp_path: Path, flush: str) -> None:
    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        with (
            running(tmp_path / "store", free_ports(), names.address, f"flushDiskType={flush}\n"),
            Producer(settings, "producers") as producer,
            PullConsumer(settings, "consumers") as consumer,
        ):

            def ask(count: int) -> None:
                for number in range(count):
                    queue = producer.send(Message("Topic", b"waits %d" % number, keys="key")).queue
                    later = [producer.send_async(Message("Topic", b"%d" % at)) for at in range(4)]
                    producer.send_batch([Message("Topic", b"a"), Message("Topic", b"b")])
                    assert all(each.result(30).queue_offset >= 0 for each in later)
                    assert consumer.end_offset(queue) > 0
                got = 0
                while got < 7 * count:
                    got += len(consumer.poll(30_000))
                consumer.commit()

            producer.send(Message("Topic", b"makes the topic"))
            wait_until(lambda: _has_route(consumer), "the name server has heard of the topic")
            consumer.assign(consumer.queues("Topic"))
            ask(FEW)  # makes what is made once
            with _nobody_looks():
                ask(SOME)
                left = {kind: count for kind, count in _garbage().items() if count >= SOME}
    assert left == {}, "of each request"
