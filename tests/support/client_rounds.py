"""What a client does with a cluster, once round: for servers that want to know who asks, that speak TLS, or are of another release.

Messages and transactions go out and come back to each kind of consumer; the command does what it can do, in one sequence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus, OrderlyContext
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PullSettings, PushSettings
from spark_mq.client.transaction_producer import TransactionProducer, TransactionState
from tests.support.java_broker import wait_until

_SENT = [b"first", b"second", b"commit", b"when asked"]
"""All that is to come of what `_send` sends: two plain messages, and those of the transactions that are committed."""


class _Bookkeeper:
    """Ends one transaction at once, takes one back, and commits the third when the broker asks."""

    def execute(self, message: Message, transaction_id: str, arg: object) -> TransactionState | None:
        return {b"commit": TransactionState.COMMIT, b"roll back": TransactionState.ROLLBACK}.get(message.body)

    def check(self, message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT


def consume_round(settings: ClientSettings, topic: str) -> None:
    """Transactions with check-back; then a push consumer that has one message delivered again, an orderly one, and a pull consumer."""
    with Admin(settings) as admin, TransactionProducer(settings, f"P{topic}", _Bookkeeper()) as producer:
        wait_until(lambda: bool(admin.cluster_info().broker_address_table), "the broker is registered")
        admin.create_topic(NewTopic(topic, 1, 1))
        wait_until(lambda: topic in admin.topics(), "the topic is registered")
        for body in _SENT[:2]:
            producer.send(Message(topic, body))
        for body in (b"commit", b"roll back", b"when asked"):
            producer.send_in_transaction(Message(topic, body))
        (queue,) = admin.max_offsets(topic)
        wait_until(
            lambda: admin.max_offset(queue) == len(_SENT), "the broker has asked, and the transaction is committed", 120
        )
        _push(settings, topic)
        _push_in_order(settings, topic)
        _pull(settings, topic)
        for group in (f"Push{topic}", f"Orderly{topic}", f"Pull{topic}"):
            wait_until(lambda group=group: admin.group_offset(group, queue) == len(_SENT), f"{group} has stored")  # type: ignore[misc]


_PUSH = PushSettings(consume_from=ConsumeFrom.FIRST)


def _push(settings: ClientSettings, topic: str) -> None:
    got: list[bytes] = []

    def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        got.extend(message.body for message in messages)
        context.delay_level = 1
        is_first_try = messages[0].body == b"second" and messages[0].reconsume_times == 0
        return ConsumeStatus.LATER if is_first_try else ConsumeStatus.SUCCESS

    with PushConsumer(settings, f"Push{topic}", listen, options=_PUSH) as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: len(got) > len(_SENT), "each message, and one of them again", 90)
    assert sorted(got) == sorted([*_SENT, b"second"])


def _push_in_order(settings: ClientSettings, topic: str) -> None:
    got: list[bytes] = []

    def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeStatus:
        got.extend(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    with PushConsumer(settings, f"Orderly{topic}", orderly_listener=listen, options=_PUSH) as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: len(got) >= len(_SENT), "each message in order", 90)
    assert got == _SENT


def _pull(settings: ClientSettings, topic: str) -> None:
    got: list[bytes] = []
    with PullConsumer(settings, f"Pull{topic}", PullSettings(consume_from=ConsumeFrom.FIRST)) as consumer:
        consumer.subscribe(topic)
        wait_until(
            lambda: got.extend(each.body for each in consumer.poll(500)) or len(got) >= len(_SENT), "all polled", 90
        )  # type: ignore[func-returns-value]
        consumer.commit()
    assert got == _SENT


class Command:
    """The command with the name server of a running cluster, and with what it is told about security."""

    def __init__(self, name_server: str, *security: str) -> None:
        self._given = ("--name-server", name_server, *security)

    def run(self, *words: str, stdin: str = "", exit_code: int = 0) -> str:
        """Its output, of a failure what it says of it."""
        result = CliRunner().invoke(app, [words[0], *self._given, *words[1:]], input=stdin)
        assert result.exit_code == exit_code, result.output
        return result.stdout if exit_code == 0 else result.stderr

    def are_known(self, *broker_names: str) -> bool:
        """Whether these brokers are registered, and answer: Apache's fail at first, while they have no figures yet."""
        result = CliRunner().invoke(app, ["brokers", *self._given, "--json"])
        return result.exit_code == 0 and [each["broker_name"] for each in json.loads(result.stdout)] == [*broker_names]

    def json(self, *words: str, stdin: str = "") -> Any:
        return json.loads(self.run(*words, "--json", stdin=stdin))

    def lines(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words).splitlines()]


def command_round(command: Command, topic: str) -> None:
    """A topic made, filled, shown, looked through and consumed; its group shown and set back; the brokers listed."""
    group = f"G{topic}"
    wait_until(lambda: command.are_known("broker-lab"), "the broker is registered")
    assert command.json("create-topic", topic, "--queues", "1")["created"]
    command.run("produce", "--topic", topic, stdin="a\nb\nc\n")
    (told,) = [each for each in command.json("topics") if each["topic"] == topic]
    assert [(each["min_offset"], each["max_offset"]) for each in told["queues"]] == [(0, 3)]
    dumped = command.lines("dump", "--topic", topic, "--bodies")
    assert sorted(line["body"] for line in dumped) == ["a", "b", "c"]
    one = dumped[1]
    found = command.lines("query", "--json", "--topic", topic, "--unique-key", one["unique_key"])
    assert [each["queue_offset"] for each in found] == [1]
    (place,) = command.json("offset-by-time", "--topic", topic, "--time", "2020-01-01")
    assert place["queue_offset"] == 0
    consumed = command.lines("consume", "--topic", topic, "--group", group, "--limit", "3", "--bodies")
    assert sorted(line["body"] for line in consumed) == ["a", "b", "c"]
    assert _lag(command, group, topic) == [(3, 0)]
    assert [each["group"] for each in command.json("groups", "--group", group)] == [group]
    assert [
        step["after"] for step in command.json("reset-offset", "--group", group, "--topic", topic, "--to", "earliest")
    ] == [0]
    assert _lag(command, group, topic) == [(0, 3)]
    (of_all,) = [each for each in command.json("lag", "--topic", topic) if each["group"] == group]
    assert (of_all["lag"], of_all["unknown_queues"]) == (3, 0)
    assert of_all["oldest_unread_ms"] > 0


def _lag(command: Command, group: str, topic: str) -> list[tuple[int, int]]:
    lines = command.json("lag", "--queues", "--group", group)
    return [(line["group_offset"], line["lag"]) for line in lines if line["topic"] == topic]


class AlwaysCommit:
    """Keeps no book."""

    def execute(self, message: Message, transaction_id: str, arg: object) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT
