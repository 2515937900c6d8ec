"""The command groups: the consumer groups of a running cluster, and who is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import typer

from spark_mq.cli.app import AsJson, CommandError, Everything, app
from spark_mq.cli.connection import NO_CLUSTER, Connection, takes_connection
from spark_mq.cli.live_place import LivePlace, together
from spark_mq.cli.output import print_json, print_table, say
from spark_mq.client.errors import ResponseError
from spark_mq.remoting.administration import ConsumerConnection
from spark_mq.remoting.consumers import ConsumeType
from storage.names import BUILT_IN_GROUPS, is_system_group, nearest
from storage.rules.response_codes import ResponseCode

_TYPES: dict[str | None, str] = {ConsumeType.CONSUME_PASSIVELY: "push", ConsumeType.CONSUME_ACTIVELY: "pull"}


@app.command()
@takes_connection
def groups(
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="One consumer group, with its clients.")
    ] = None,
    every_group: Everything = False,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """List a running cluster's consumer groups: clients that are online, how they consume, topics, and messages that are unread."""
    connection.check_given()
    place = LivePlace(connection.settings())
    try:
        known = place.groups()
        if group is not None and group not in known:
            like = nearest(group, known)
            raise CommandError(f"there is no group {group}", f"did you mean {like}?" if like else None)
        listed = [name for name in known if every_group or not _is_rocketmqs(name)] if group is None else [group]
        connections = together([partial(_connection_of, place, name) for name in listed])
        lags = list(place.group_lags(group))
        found = [_entry(place, name, told, lags) for name, told in zip(listed, connections, strict=True)]
    finally:
        place.close()
    if as_json:
        print_json(found)
        return
    columns = "group", "clients", "type", "model", "topics", "messages"
    print_table(columns, [_row(entry) for entry in found])
    if group is not None:
        say("")
        _print_clients(found[0])
    elif hidden := len(known) - len(listed):
        say(f"RocketMQ's own groups are left out: {hidden}. --all shows them")


def _is_rocketmqs(group: str) -> bool:
    return group in BUILT_IN_GROUPS or is_system_group(group)


async def _connection_of(place: LivePlace, group: str) -> ConsumerConnection | None:
    """Who is online; None where nobody is."""
    try:
        return await place.admin.consumer_connection(place.at_brokers(group))
    except ResponseError as error:
        if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
            return None
        raise


def _entry(
    place: LivePlace, group: str, told: ConsumerConnection | None, lags: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """A group as an object. Unread are the messages of the queues where it has an offset; null where it has none."""
    own = [line for line in lags if line["group"] == group]
    unread = [line["rows"] for line in own if line["rows"] is not None]
    subscribed = {} if told is None else told.subscription_table
    return {
        "group": group,
        "consumeType": None if told is None else _TYPES.get(told.consume_type),
        "messageModel": None if told is None else told.message_model,
        "topics": sorted({place.here(name) for name in subscribed} | {line["topic"] for line in own}),
        "rows": sum(unread) if unread else None,
        "subscriptions": {place.here(name): each.sub_string for name, each in sorted(subscribed.items())},
        "clients": [
            {
                "clientId": each.client_id,
                "address": each.client_address,
                "language": each.language,
                "version": each.version,
            }
            for each in (() if told is None else told.connections)
        ],
    }


def _row(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    topics = " ".join(entry["topics"]) or None
    return entry["group"], len(entry["clients"]), entry["consumeType"], entry["messageModel"], topics, entry["rows"]


def _print_clients(entry: Mapping[str, Any]) -> None:
    rows = [tuple(client.values()) for client in entry["clients"]]
    print_table(("client", "address", "language", "version"), rows, title="clients that are online")
    if entry["subscriptions"]:
        print_table(("topic", "subscribed to"), list(entry["subscriptions"].items()))
