"""Groups that read too far behind the log's end, at Apache's broker and at ours: which are switched off, and what they are answered.

Each broker looks once, after all groups have pulled: Apache's by its own `protectBroker` (tests/oracle/src/ProtectingBroker.java).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_mq.broker import broker as broker_module
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue, RemotingCommand, make_request
from spark_mq.remoting.codes import RequestCode
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import Oracle, free_ports, wait_until
from tests.support.own_servers import our_name_server
from tests.support.waiting import await_route

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SETTINGS = {"disableConsumeIfConsumerReadSlowly": "true", "consumerFallbehindThreshold": 3_000}
COUNT, BODY = 10, b"x" * 500
GROUPS = {"slow": (0,), "at-the-end": (0, COUNT), "near": (COUNT - 3,), "came-back": (0, COUNT - 1)}
"""By group the offsets that it pulls one message from, one after the other."""


def asked(address: str, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
    """A broker's answer."""
    command = make_request(code, {name: str(value) for name, value in fields.items()}, body)
    with closing(BlockingConnection[None](address, ClientSettings(("127.0.0.1:1",)))) as connection:
        connection.send([(command, None)])
        ((_, answer),) = connection.receive()
    return answer


def pulled(address: str, group: str, offset: int) -> tuple[int, str | None]:
    """Code and remark of a pull of one message."""
    fields = {"consumerGroup": group, "topic": "Slow", "queueId": 0, "queueOffset": offset, "maxMsgNums": 1}
    fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    answer = asked(address, RequestCode.PULL_MESSAGE, fields)
    return answer.code, answer.remark


def enabled(address: str) -> dict[str, bool]:
    """Which of the groups may consume, as the broker tells operators."""
    answer = asked(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
    table = json.loads(bytes(answer.body))["subscriptionGroupTable"]
    return {group: table[group]["consumeEnable"] for group in GROUPS}


class Seen(NamedTuple):
    """What a broker showed."""

    first: dict[str, list[tuple[int, str | None]]]
    """Answers to the pulls of each group, before the broker looked."""
    enabled: dict[str, bool]
    afterwards: dict[str, tuple[int, str | None]]
    """Answers to a pull of the next message."""
    switched_on: tuple[int, str | None]
    """Answer to the slow group's pull once an operator has switched it on."""


def seen(name_server: str, address: str, look: Callable[[], None]) -> Seen:
    """What the broker at `address` shows; `look` makes it look for slow groups once."""
    settings = ClientSettings((name_server,))
    with Admin(settings) as admin:
        admin.create_topic(NewTopic("Slow", 1, 1), address=address)
        await_route(admin, "Slow", 1)
    with Producer(settings, "P") as producer:
        queue = producer.send(Message("Slow", BODY)).queue
        for _ in range(COUNT - 1):
            producer.send(Message("Slow", BODY), MessageQueue("Slow", queue.broker_name, 0))
    for group in GROUPS:
        asked(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": group}).encode())
    first = {group: [pulled(address, group, offset) for offset in offsets] for group, offsets in GROUPS.items()}
    look()
    found = enabled(address)
    afterwards = {group: pulled(address, group, offsets[-1]) for group, offsets in GROUPS.items()}
    text = {"groupName": "slow", "consumeEnable": True, "consumeFromMinEnable": True}
    asked(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(text).encode())
    return Seen(first, found, afterwards, pulled(address, "slow", COUNT))


@contextmanager
def protecting_broker(oracle: Oracle, home: Path, name_server: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Apache's; yields its address, and what makes it look."""
    order = home / "look"

    def look() -> None:
        order.touch()
        wait_until(lambda: not order.exists(), "Apache's broker has looked", 60)

    port, conf = free_ports(), home / "broker.conf"
    conf.write_text(oracle.broker_conf(home / "store", name_server, port, **SETTINGS), "utf-8")
    with oracle.java_running("ProtectingBroker", order, "-c", conf), Admin(ClientSettings((name_server,))) as admin:

        def is_registered() -> bool:
            return bool(admin.cluster_info().broker_address_table)

        wait_until(is_registered, "Apache's broker is registered", 90)
        yield f"127.0.0.1:{port}", look


def test_the_same_groups_are_switched_off(oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with (
        our_name_server(tmp_path / "1") as names,
        protecting_broker(oracle, tmp_path / "1", names.address) as (address, look),
    ):
        at_apaches = seen(names.address, address, look)
    text = "".join(f"{name}={value}\n" for name, value in SETTINGS.items())
    with (
        our_name_server(tmp_path / "2") as names,
        running(tmp_path / "2" / "store", free_ports(), names.address, text) as broker,
    ):
        address = "{}:{}".format(*broker.address)

        def look_soon() -> None:
            with monkeypatch.context() as patch:
                patch.setattr(broker_module, "PROTECTION_MS", 0)
                wait_until(lambda: not all(enabled(address).values()), "a group is switched off", 60)

        at_ours = seen(names.address, address, look_soon)
    assert at_ours.enabled == {"slow": False, "at-the-end": True, "near": True, "came-back": True}
    assert at_ours.afterwards["slow"] == (16, "subscription group no permission, slow")
    assert at_apaches == at_ours
