"""The command reset-offset: let a consumer group of a running cluster go on elsewhere.

Brokers from 5.x on set the offsets themselves. Older ones tell the group's consumers, and where none is online, this command stores the
offsets, as mqadmin does.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from spark_mq.cli.app import AsJson, CommandError, RequiredTopic, app
from spark_mq.cli.connection import NO_CLUSTER, Connection, takes_connection
from spark_mq.cli.live_place import LivePlace, together
from spark_mq.cli.output import print_json, print_table, say, time_in_words
from spark_mq.cli.places import refuse_unknown_topic
from spark_mq.client.errors import ResponseError
from spark_mq.client.event_loop import run
from spark_mq.client.message import MessageQueue
from spark_mq.source.offsets import QueueId
from spark_mq.source.option_values import parse_time
from storage.epoch_times import current_time_ms
from storage.names import nearest
from storage.rules.response_codes import ResponseCode

_END = -1
"""The time that means the end of a queue. Java: ResetOffsetByTimeCommand."""
_PLACES = {"earliest": 0, "latest": _END}


class _Step(NamedTuple):
    """What happens in one queue."""

    queue: QueueId
    before: int | None
    after: int


@app.command("reset-offset")
@takes_connection
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
    """Let a consumer group of a running cluster go on at another place of a topic, in all of its queues.

    The table says for each queue where the group goes on now, and where afterwards. Messages before that are not consumed, or
    consumed once more.
    """
    connection.check_given()
    now_ms = current_time_ms()
    time_ms = _PLACES[moment] if moment in _PLACES else parse_time(moment, "--to").at(now_ms)
    place = LivePlace(connection.settings())
    try:
        refuse_unknown_topic(place, topic)
        _refuse_unknown_group(place, group)
        steps = together([partial(_planned, place, group, queue, time_ms) for queue in place.queues(topic)])
        if not as_json:
            where = moment if moment in _PLACES else time_in_words(time_ms, now_ms)
            _print(steps, f"group {group} goes on in topic {topic} at {where}")
        if not dry_run:
            done = _reset(place, group, topic, time_ms, steps)
            if done != steps and not as_json:
                _print(done, "the queues have gone on meanwhile; the group goes on at")
            steps = done
    finally:
        place.close()
    if as_json:
        print_json([_entry(group, step, is_done=not dry_run) for step in steps])
    else:
        say("nothing was changed: --dry-run" if dry_run else "done")


def _refuse_unknown_group(place: LivePlace, group: str) -> None:
    known = place.groups()
    if group not in known and not list(place.group_lags(group)):
        like = nearest(group, known)
        raise CommandError(f"there is no group {group}", f"did you mean {like}?" if like else None)


async def _planned(place: LivePlace, group: str, queue: QueueId, time_ms: int) -> _Step:
    at_broker = MessageQueue(place.at_brokers(queue.topic), queue.broker_name, queue.queue_id)
    before = await place.admin.group_offset(place.at_brokers(group), at_broker)
    if time_ms == _END:
        return _Step(queue, before, await place.admin.max_offset(at_broker))
    return _Step(queue, before, await place.admin.search_offset(at_broker, time_ms))


def _reset(place: LivePlace, group: str, topic: str, time_ms: int, steps: list[_Step]) -> list[_Step]:
    """What has happened."""
    named_group, named_topic = place.at_brokers(group), place.at_brokers(topic)
    try:
        told = run(place.admin.reset_offsets(named_group, named_topic, time_ms))
    except ResponseError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        queues = [(MessageQueue(named_topic, step.queue.broker_name, step.queue.queue_id), step) for step in steps]
        together([partial(place.admin.store_group_offset, named_group, at, step.after) for at, step in queues])
        return steps
    after = {(queue.broker_name, queue.queue_id): offset for queue, offset in told.items()}
    return [step._replace(after=after.get((step.queue.broker_name, step.queue.queue_id), step.after)) for step in steps]


def _print(steps: list[_Step], title: str) -> None:
    rows = [
        (*step.queue, step.before, step.after, None if step.before is None else step.after - step.before)
        for step in steps
    ]
    print_table(("topic", "broker", "queue", "now", "then", "change"), rows, title=title)


def _entry(group: str, step: _Step, *, is_done: bool) -> dict[str, Any]:
    return {
        "group": group,
        "topic": step.queue.topic,
        "brokerName": step.queue.broker_name,
        "queueId": step.queue.queue_id,
        "before": step.before,
        "after": step.after,
        "done": is_done,
    }
