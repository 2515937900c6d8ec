"""Commands that only a running cluster has: groups, brokers, reset-offset, consume."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from spark_mq.cli.live_place import LivePlace, together
from spark_mq.cli.message_lines import Format, Printer, message_line, printer_of
from spark_mq.cli.places import AsJson, Everything, RequiredTopic, refuse_unknown_topic
from spark_mq.client.admin import AsyncAdmin
from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.client.event_loop import run
from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.pulls import ExpressionType
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PullSettings, PushSettings
from spark_mq.command_options import NO_CLUSTER, Connection
from spark_mq.lag.figures import GroupLag
from spark_mq.lag.of_cluster import ClusterLag
from spark_mq.options import parse_duration_ms, parse_time
from spark_mq.remoting.administration import ConsumerConnection
from spark_mq.remoting.consumers import ConsumeType
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import (
    CommandError,
    UsageError,
    end_with,
    print_json,
    print_table,
    say,
    stop_on_signal,
    time_in_words,
    time_text,
)
from storage.epoch_times import current_time_ms
from storage.names import MASTER_ID, is_rocketmqs_group, nearest
from storage.rules.response_codes import ResponseCode

_TYPES: dict[str | None, str] = {ConsumeType.CONSUME_PASSIVELY: "push", ConsumeType.CONSUME_ACTIVELY: "pull"}


def groups(
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="One consumer group, with its clients.")
    ] = None,
    every_group: Everything = False,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """List the consumer groups of a running cluster.

    A row has how many clients are online, how they consume, their topics, and how many messages are unread.
    """
    place = LivePlace(connection.settings())
    try:
        known = place.groups()
        if group is not None and group not in known:
            like = nearest(group, known)
            raise CommandError(f"there is no group {group}", f"did you mean {like}?" if like else None)
        listed = [name for name in known if every_group or not is_rocketmqs_group(name)] if group is None else [group]
        connections = together([partial(connection_of, place, name) for name in listed])
        lags = _lags_of(place, group)
        found = [_group_entry(place, name, online, lags) for name, online in zip(listed, connections, strict=True)]
    finally:
        place.close()
    if as_json:
        print_json(found)
        return
    columns = "group", "clients", "type", "model", "topics", "messages"
    print_table(columns, [_group_row(entry) for entry in found])
    if group is not None:
        say("")
        _print_clients(found[0])
    elif hidden := len(known) - len(listed):
        say(f"RocketMQ's own groups are left out: {hidden}. --all shows them")


async def connection_of(place: LivePlace, group: str, address: str | None = None) -> ConsumerConnection | None:
    """The clients that are online, at the broker of that address or at all; None if none is."""
    try:
        return await place.admin.consumer_connection(place.at_brokers(group), address=address)
    except ResponseError as error:
        if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
            return None
        raise


def _lags_of(place: LivePlace, group: str | None) -> dict[str, GroupLag]:
    """The lag of one group or of all that have an offset, by name. Raises the first broker's error."""
    with ClusterLag(place.settings, ages_a_look=0, with_rates=False) as looks:
        report = looks.look(None if group is None else [group])
    for error in report.errors:
        raise error
    return {each.reader.name: each for each in report.groups}


def _group_entry(
    place: LivePlace, group: str, online: ConsumerConnection | None, lags: Mapping[str, GroupLag]
) -> dict[str, Any]:
    """A group as an object. Unread are the messages of the queues where it has an offset; null where it has none."""
    own = lags.get(group)
    subscribed = {} if online is None else online.subscription_table
    return {
        "group": group,
        "consume_type": None if online is None else _TYPES.get(online.consume_type),
        "message_model": None if online is None else online.message_model,
        "topics": sorted({place.here(name) for name in subscribed} | set(() if own is None else own.topics)),
        "lag": None if own is None else own.lag,
        "subscriptions": {place.here(name): each.sub_string for name, each in sorted(subscribed.items())},
        "clients": [
            {
                "client_id": each.client_id,
                "address": each.client_address,
                "language": each.language,
                "version": each.version,
            }
            for each in (() if online is None else online.connections)
        ],
    }


def _group_row(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    topics = " ".join(entry["topics"]) or None
    return entry["group"], len(entry["clients"]), entry["consume_type"], entry["message_model"], topics, entry["lag"]


def _print_clients(entry: Mapping[str, Any]) -> None:
    rows = [tuple(client.values()) for client in entry["clients"]]
    print_table(("client", "address", "language", "version"), rows, title="clients that are online")
    if entry["subscriptions"]:
        print_table(("topic", "subscribed to"), list(entry["subscriptions"].items()))


BROKER_HEADINGS = "cluster", "broker", "id", "role", "address", "version", "in/s", "out/s", "disk", "since"


def brokers(as_json: AsJson = False, connection: Connection = NO_CLUSTER) -> None:
    """List the brokers of a running cluster.

    A row has address, version, messages a second in and out, and how full the disk is. A broker that does not answer has dashes (null),
    its error is on stderr, and the exit code is 1.
    """
    lines, errors = broker_lines(connection.settings())
    if as_json:
        print_json(lines)
    else:
        print_table(BROKER_HEADINGS, [broker_row(line) for line in lines])
    end_with(errors)


def broker_lines(settings: ClientSettings) -> tuple[list[dict[str, Any]], list[ClientError]]:
    """The brokers as objects, without figures where one does not answer; and why these do not."""
    admin = AsyncAdmin(settings)
    try:
        table = run(admin.cluster_info()).broker_address_table
        known = [
            (data.cluster, name, broker_id, address)
            for name, data in sorted(table.items())
            for broker_id, address in sorted(data.broker_addresses.items())
        ]
        found = together([partial(figures_at, admin, address) for *_, address in known])
    finally:
        run(admin.close())
    lines = [
        _broker_entry(*who, {} if isinstance(answer, ClientError) else answer)
        for who, answer in zip(known, found, strict=True)
    ]
    return lines, [error for error in found if isinstance(error, ClientError)]


async def figures_at(admin: AsyncAdmin, address: str) -> Mapping[str, str] | ClientError:
    """The figures of one broker, or why it does not answer."""
    try:
        return await admin.runtime_info(address)
    except ClientError as error:
        return error


def _broker_entry(
    cluster: str | None, broker_name: str, broker_id: int, address: str, figures: Mapping[str, str]
) -> dict[str, Any]:
    """A broker as an object. Rates are those of the last ten seconds, as mqadmin clusterList has them."""
    boot = figures.get("bootTimestamp", "")
    return {
        "cluster": cluster,
        "broker_name": broker_name,
        "broker_id": broker_id,
        "address": address,
        "version": figures.get("brokerVersionDesc"),
        "in_tps": first_number(figures.get("putTps", "")),
        "out_tps": first_number(figures.get("getTransferredTps", "")),
        "disk_ratio": first_number(figures.get("commitLogDiskRatio", "")),
        "boot_timestamp": int(boot) if boot.isdecimal() and len(boot) < 20 else None,
    }


def first_number(text: str) -> float | None:
    """The first of `0.1 0.2 0.3`, which are rates over 10 s, 1 min and 10 min."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None


def role_of(broker_id: int) -> str:
    """What a broker of that id is called."""
    return "master" if broker_id == MASTER_ID else "slave"


def broker_row(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """A broker as people read it."""
    disk = line["disk_ratio"]
    rates = ("–" if line[name] is None else f"{line[name]:,.1f}" for name in ("in_tps", "out_tps"))
    return (
        line["cluster"],
        line["broker_name"],
        line["broker_id"],
        role_of(line["broker_id"]),
        line["address"],
        line["version"],
        *rates,
        None if disk is None else f"{disk:.0%}",
        time_text(line["boot_timestamp"]),
    )


_END = -1
"""The time that means the end of a queue. Java: ResetOffsetByTimeCommand."""
_OFFSET_TIMES = {"earliest": 0, "latest": _END}


class _Step(NamedTuple):
    """The reset of one queue: its offset before and after."""

    queue: QueueId
    before: int | None
    after: int


def reset_offset(
    group: Annotated[
        str, typer.Option("--group", metavar="GROUP", show_default=False, help="The consumer group that goes on there.")
    ],
    topic: RequiredTopic,
    moment: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TIME",
            show_default=False,
            help="earliest, latest, or a time: ms since 1970, ISO-8601, or -10m.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")] = False,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Move a consumer group to another place of a topic.

    This is for a running cluster, and for all queues of the topic. The table has for each queue the group's offset now and afterwards.
    Messages in between are skipped, or consumed once more. Brokers from 5.x on set the offsets themselves. Older ones notify the
    group's consumers; if none is online, the command stores the offsets, as mqadmin does.
    """
    now_ms = current_time_ms()
    time_ms = _OFFSET_TIMES[moment] if moment in _OFFSET_TIMES else parse_time(moment, "--to").at(now_ms)
    place = LivePlace(connection.settings())
    try:
        refuse_unknown_topic(place, topic)
        _refuse_unknown_group(place, group)
        steps = together([partial(_planned, place, group, queue, time_ms) for queue in place.queues(topic)])
        if not as_json:
            where = moment if moment in _OFFSET_TIMES else time_in_words(time_ms, now_ms)
            _print_steps(steps, f"group {group} goes on in topic {topic} at {where}")
        if not dry_run:
            done = _reset(place, group, topic, time_ms, steps)
            if done != steps and not as_json:
                _print_steps(done, "the queues have gone on meanwhile; the group goes on at")
            steps = done
    finally:
        place.close()
    if as_json:
        print_json([_reset_entry(group, step, is_done=not dry_run) for step in steps])
    else:
        say("nothing was changed: --dry-run" if dry_run else "done")


def _refuse_unknown_group(place: LivePlace, group: str) -> None:
    known = place.groups()
    if group not in known and group not in _lags_of(place, group):
        like = nearest(group, known)
        raise CommandError(f"there is no group {group}", f"did you mean {like}?" if like else None)


async def _planned(place: LivePlace, group: str, queue: QueueId, time_ms: int) -> _Step:
    at_broker = MessageQueue(place.at_brokers(queue.topic), queue.broker_name, queue.queue_id)
    before = await place.admin.group_offset(place.at_brokers(group), at_broker)
    if time_ms == _END:
        return _Step(queue, before, await place.admin.max_offset(at_broker))
    return _Step(queue, before, await place.admin.search_offset(at_broker, time_ms))


def _reset(place: LivePlace, group: str, topic: str, time_ms: int, steps: list[_Step]) -> list[_Step]:
    """Reset the group's offsets; returns the steps with the offsets that hold now."""
    named_group, named_topic = place.at_brokers(group), place.at_brokers(topic)
    try:
        new = run(place.admin.reset_offsets(named_group, named_topic, time_ms))
    except ResponseError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        queues = [(MessageQueue(named_topic, step.queue.broker_name, step.queue.queue_id), step) for step in steps]
        together([partial(place.admin.store_group_offset, named_group, at, step.after) for at, step in queues])
        return steps
    after = {(queue.broker_name, queue.queue_id): offset for queue, offset in new.items()}
    return [step._replace(after=after.get((step.queue.broker_name, step.queue.queue_id), step.after)) for step in steps]


def _print_steps(steps: list[_Step], title: str) -> None:
    rows = [
        (*step.queue, step.before, step.after, None if step.before is None else step.after - step.before)
        for step in steps
    ]
    print_table(("topic", "broker", "queue", "now", "then", "change"), rows, title=title)


def _reset_entry(group: str, step: _Step, *, is_done: bool) -> dict[str, Any]:
    return {
        "group": group,
        "topic": step.queue.topic,
        "broker_name": step.queue.broker_name,
        "queue_id": step.queue.queue_id,
        "before": step.before,
        "after": step.after,
        "done": is_done,
    }


_POLL_MS = 300
_FIRST_OFFSETS = {"earliest": ConsumeFrom.FIRST, "latest": ConsumeFrom.LAST}


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
    form: Format = None,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Join a consumer group and print its messages.

    The group is one of a running cluster, and the lines are those of dump. A printed message is consumed: its offset is stored after
    the line was written. If the command is killed between the two, the group gets the message once more. The group's members share
    the queues. SIGINT and SIGTERM end the command with exit code 0, after the offsets are stored; a second signal ends it at once. With
    --format a body that does not decompress is named on stderr, and the exit code is 1 in the end.
    """
    if tags is not None and sql is not None:
        raise UsageError("give --tags or --sql, not both")
    if push and limit is not None:
        raise UsageError("--push takes no --limit: what is over it would go back as failed")
    wait_ms = None if follow else parse_duration_ms(wait, "--wait")
    kind: ExpressionType = "TAG" if sql is None else "SQL92"
    consumed = _Consumed(topic, group, sql or tags or "*", kind, *_beginning(begin))
    settings = connection.settings()
    _check_consumed(settings, topic, group)
    printer = printer_of(form)
    printed = _Printed(printer, bodies=bodies or form is not None)
    with stop_on_signal() as is_stopping:
        goes_on = _GoesOn(is_stopping, printed, wait_ms, limit)
        (_push if push else _pull)(settings, consumed, printed, goes_on)
    if printer.hidden:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Consumed:
    """The topics and the group that the command consumes."""

    topic: str
    group: str
    expression: str
    kind: ExpressionType
    begin: ConsumeFrom
    time_ms: int


class _Printed:
    """Messages as lines, whole ones, whatever thread they come from."""

    def __init__(self, printer: Printer, *, bodies: bool) -> None:
        self.count = 0
        self.last_s = time.monotonic()
        self.error: BaseException | None = None
        self._printer = printer
        self._bodies = bodies
        self._lock = threading.Lock()

    def add(self, messages: Sequence[MessageExt]) -> None:
        """Print them and empty the buffer. Raises what stdout raises."""
        with self._lock:
            for message in messages:
                line = message_line(message.record, broker_name=message.broker_name, body=self._bodies)
                self._printer.print(line | {"topic": message.topic})
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
        """Number of messages that may still be printed."""
        return None if self._limit is None else self._limit - self._printed.count


def _beginning(text: str) -> tuple[ConsumeFrom, int]:
    now_ms = current_time_ms()
    if text in _FIRST_OFFSETS:
        return _FIRST_OFFSETS[text], now_ms
    return ConsumeFrom.TIMESTAMP, parse_time(text, "--from").at(now_ms)


def _check_consumed(settings: ClientSettings, topic: str, group: str) -> None:
    """Raises for a topic that is not there, and where the brokers do not let this user see the group's offsets."""
    place = LivePlace(settings)
    try:
        refuse_unknown_topic(place, topic)
        named = [MessageQueue(place.at_brokers(topic), *queue[1:]) for queue in place.queues(topic)]
        together([partial(place.admin.group_offset, place.at_brokers(group), queue) for queue in named])
    finally:
        place.close()


def _pull(settings: ClientSettings, consumed: _Consumed, printed: _Printed, goes_on: _GoesOn) -> None:
    pull = PullSettings(auto_commit=False, consume_from=consumed.begin, consume_time_ms=consumed.time_ms)
    with PullConsumer(settings, consumed.group, pull) as consumer:
        consumer.subscribe(consumed.topic, consumed.expression, expression_type=consumed.kind)
        while goes_on():
            if messages := consumer.poll(_POLL_MS, goes_on.left):
                printed.add(messages)
            consumer.commit()


def _push(settings: ClientSettings, consumed: _Consumed, printed: _Printed, goes_on: _GoesOn) -> None:
    def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        try:
            printed.add(messages)
        except BaseException as error:  # stdout is gone: the command ends, and others get them
            printed.error = error
            return ConsumeStatus.LATER
        return ConsumeStatus.SUCCESS

    push = PushSettings(consume_from=consumed.begin, consume_time_ms=consumed.time_ms, thread_count=1, batch_size=32)
    consumer = PushConsumer(settings, consumed.group, listen, options=push)
    consumer.subscribe(consumed.topic, consumed.expression, expression_type=consumed.kind)
    with consumer:
        while goes_on():
            time.sleep(_POLL_MS / 1000)
    if printed.error is not None:
        raise printed.error
