"""A store that the Apache broker wrote: made once, then found again.

    HOME/rocketmq-<messages>/store/        the store: a topic with <messages> of `bench.messages`
    HOME/rocketmq-<messages>/broker.conf   what wrote it
    HOME/rocketmq-<messages>/made          exists once the broker has stopped cleanly over the whole of it

HOME is the directory that every run's data stays in.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.messages import BATCH_MESSAGES, BODY_SIZE_BYTES, QUEUES, TOPIC, bodies
from bench.rocketmq_broker import BROKER_NAME, RunningBroker, running_broker


def make_store(home: Path, script: Path, messages: int) -> Path:
    """The store of `messages` messages under `home`, written now unless an earlier run finished it.

    `script` is the oracle's. Needs a JDK, Maven and about 1.5 KB of disk a message. When a step fails, the
    servers' logs lie beside the store until the next try.
    """
    directory = home.resolve() / f"rocketmq-{messages}"
    made = directory / "made"
    if not made.exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        with running_broker(script, directory, directory / "store") as broker:
            load_topic(broker, TOPIC, messages, directory / "bodies")
        made.touch()
    return directory / "store"


def load_topic(broker: RunningBroker, topic: str, messages: int, bodies_file: Path) -> None:
    """Make the topic and send it messages 0 … `messages` - 1 by Java's client, which finds their bodies in `bodies_file`."""
    write_bodies(bodies_file)
    load = (Path(__file__).with_name("LoadRocketMQ.java"), broker.name_server, broker.address, BROKER_NAME)
    broker.oracle.run("java", *load, topic, QUEUES, messages, BATCH_MESSAGES, bodies_file, BODY_SIZE_BYTES)


def write_bodies(file: Path) -> None:
    """All distinct bodies, one behind the other."""
    file.write_bytes(b"".join(bodies()))
