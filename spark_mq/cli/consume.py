"""The command consume: a member of a consumer group that prints what it gets.

What is printed is consumed: its offsets are stored after the lines were written. Where the command is killed between the two, the
group gets those messages once more.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from spark_mq.cli.app import RequiredTopic, UsageError, app
from spark_mq.cli.connection import NO_CLUSTER, Connection, takes_connection
from spark_mq.cli.live_place import LivePlace, together
from spark_mq.cli.output import print_json
from spark_mq.cli.places import refuse_unknown_topic
from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.pulls import ExpressionType
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PullSettings, PushSettings
from spark_mq.message_line import message_line
from spark_mq.source.option_values import parse_duration_ms, parse_time
from spark_mq.stop_signals import stop_on_signal
from storage.epoch_times import current_time_ms

_POLL_MS = 300
_PLACES = {"earliest": ConsumeFrom.FIRST, "latest": ConsumeFrom.LAST}


@app.command()
@takes_connection
def consume(
    topic: RequiredTopic,
    group: Annotated[
        str, typer.Option("--group", metavar="GROUP", show_default=False, help="The consumer group to join.")
    ],
    tags: Annotated[
        str | None, typer.Option("--tags", metavar="A || B", help="Only messages with one of these tags.")
    ] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="SQL92", help="Only messages for which this is true, by the broker.")
    ] = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="Where a group begins that has no offsets: earliest, latest, or a time."
        ),
    ] = "earliest",
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many messages.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")] = False,
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="Without --follow: end when nothing has come for so long.")
    ] = "5s",
    push: Annotated[
        bool, typer.Option("--push", help="As a push consumer: retries of the group too, in no order.")
    ] = False,
    bodies: Annotated[bool, typer.Option("--bodies", help="The bodies too, decompressed.")] = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Join a consumer group of a running cluster and print its messages, as dump does. What is printed is consumed.

    The queues are shared with the group's other members. SIGINT and SIGTERM end it with exit code 0 after the offsets of what was
    printed are stored; a second one ends it at once.
    """
    connection.check_given()
    if tags is not None and sql is not None:
        raise UsageError("give --tags or --sql, not both")
    if push and limit is not None:
        raise UsageError("--push takes no --limit: what is over it would go back as failed")
    wait_ms = None if follow else parse_duration_ms(wait, "--wait")
    kind: ExpressionType = "TAG" if sql is None else "SQL92"
    asked = _Asked(topic, group, sql or tags or "*", kind, *_beginning(begin))
    settings = connection.settings()
    _check(settings, topic, group)
    printed = _Printed(bodies=bodies)
    with stop_on_signal() as is_stopping:
        goes_on = _GoesOn(is_stopping, printed, wait_ms, limit)
        (_push if push else _pull)(settings, asked, printed, goes_on)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is consumed, and by whom."""

    topic: str
    group: str
    expression: str
    kind: ExpressionType
    begin: ConsumeFrom
    time_ms: int


class _Printed:
    """Messages as lines, whole ones, whatever thread they come from."""

    def __init__(self, *, bodies: bool) -> None:
        self.count = 0
        self.last_s = time.monotonic()
        self.error: BaseException | None = None
        self._bodies = bodies
        self._lock = threading.Lock()

    def add(self, messages: Sequence[MessageExt]) -> None:
        """Print them and empty the buffer. Raises what stdout raises."""
        with self._lock:
            for message in messages:
                line = message_line(message.record, broker_name=message.broker_name, body=self._bodies)
                print_json(line | {"topic": message.topic})
            sys.stdout.flush()
            self.count += len(messages)
            self.last_s = time.monotonic()


class _GoesOn:
    """Whether there is a reason to end."""

    def __init__(
        self, is_stopping: Callable[[], bool], printed: _Printed, wait_ms: int | None, limit: int | None
    ) -> None:
        self._is_stopping = is_stopping
        self._printed = printed
        self._wait_ms = wait_ms
        self._limit = limit

    def __call__(self) -> bool:
        idle_ms = (time.monotonic() - self._printed.last_s) * 1000
        is_idle = self._wait_ms is not None and idle_ms >= self._wait_ms
        return not (self._is_stopping() or is_idle or self.left == 0 or self._printed.error)

    @property
    def left(self) -> int | None:
        """How many more may be printed."""
        return None if self._limit is None else self._limit - self._printed.count


def _beginning(text: str) -> tuple[ConsumeFrom, int]:
    now_ms = current_time_ms()
    if text in _PLACES:
        return _PLACES[text], now_ms
    return ConsumeFrom.TIMESTAMP, parse_time(text, "--from").at(now_ms)


def _check(settings: ClientSettings, topic: str, group: str) -> None:
    """Raises for a topic that is not there, and where the brokers do not let this user see the group's offsets."""
    place = LivePlace(settings)
    try:
        refuse_unknown_topic(place, topic)
        named = [MessageQueue(place.at_brokers(topic), *queue[1:]) for queue in place.queues(topic)]
        together([partial(place.admin.group_offset, place.at_brokers(group), queue) for queue in named])
    finally:
        place.close()


def _pull(settings: ClientSettings, asked: _Asked, printed: _Printed, goes_on: _GoesOn) -> None:
    pull = PullSettings(auto_commit=False, consume_from=asked.begin, consume_time_ms=asked.time_ms)
    with PullConsumer(settings, asked.group, pull) as consumer:
        consumer.subscribe(asked.topic, asked.expression, expression_type=asked.kind)
        while goes_on():
            if messages := consumer.poll(_POLL_MS, goes_on.left):
                printed.add(messages)
            consumer.commit()


def _push(settings: ClientSettings, asked: _Asked, printed: _Printed, goes_on: _GoesOn) -> None:
    def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        try:
            printed.add(messages)
        except BaseException as error:  # stdout is gone: the command ends, and others get them
            printed.error = error
            return ConsumeStatus.LATER
        return ConsumeStatus.SUCCESS

    push = PushSettings(consume_from=asked.begin, consume_time_ms=asked.time_ms, thread_count=1, batch_size=32)
    consumer = PushConsumer(settings, asked.group, listen, options=push)
    consumer.subscribe(asked.topic, asked.expression, expression_type=asked.kind)
    with consumer:
        while goes_on():
            time.sleep(_POLL_MS / 1000)
    if printed.error is not None:
        raise printed.error
