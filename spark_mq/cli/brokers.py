"""The command brokers: who belongs to a running cluster, and how they are doing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import typer

from spark_mq.cli.app import AsJson, app
from spark_mq.cli.connection import NO_CLUSTER, Connection, takes_connection
from spark_mq.cli.live_place import together
from spark_mq.cli.output import print_json, print_table, time_text
from spark_mq.client.admin import AsyncAdmin
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from storage.names import MASTER_ID


@app.command()
@takes_connection
def brokers(as_json: AsJson = False, connection: Connection = NO_CLUSTER) -> None:
    """List a running cluster's brokers: address, version, messages a second in and out, how full the disk is.

    A broker that does not answer has dashes (null), its error stands on stderr, and the exit code is 1.
    """
    connection.check_given()
    admin = AsyncAdmin(connection.settings())
    try:
        table = run(admin.cluster_info()).broker_address_table
        asked = [
            (data.cluster, name, broker_id, address)
            for name, data in sorted(table.items())
            for broker_id, address in sorted(data.broker_addresses.items())
        ]
        found = together([partial(_figures, admin, address) for *_, address in asked])
    finally:
        run(admin.close())
    lines = [_line(*who, {} if isinstance(told, ClientError) else told) for who, told in zip(asked, found, strict=True)]
    if as_json:
        print_json(lines)
    else:
        columns = "cluster", "broker", "id", "role", "address", "version", "in/s", "out/s", "disk", "since"
        print_table(columns, [_row(line) for line in lines])
    errors = [error for error in found if isinstance(error, ClientError)]
    for error in errors:
        typer.echo(f"no answer: {error.describe()}", err=True)
    if errors:
        raise typer.Exit(1)


async def _figures(admin: AsyncAdmin, address: str) -> Mapping[str, str] | ClientError:
    try:
        return await admin.runtime_info(address)
    except ClientError as error:
        return error


def _line(
    cluster: str | None, broker_name: str, broker_id: int, address: str, figures: Mapping[str, str]
) -> dict[str, Any]:
    """A broker as an object. Rates are those of the last ten seconds, as mqadmin clusterList has them."""
    boot = figures.get("bootTimestamp", "")
    return {
        "cluster": cluster,
        "brokerName": broker_name,
        "brokerId": broker_id,
        "address": address,
        "version": figures.get("brokerVersionDesc"),
        "inTps": _first_number(figures.get("putTps", "")),
        "outTps": _first_number(figures.get("getTransferredTps", "")),
        "diskRatio": _first_number(figures.get("commitLogDiskRatio", "")),
        "bootTimestamp": int(boot) if boot.isdecimal() and len(boot) < 20 else None,
    }


def _first_number(text: str) -> float | None:
    """Of `0.1 0.2 0.3`, which are rates over 10 s, 1 min and 10 min."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None


def _row(line: Mapping[str, Any]) -> tuple[Any, ...]:
    disk = line["diskRatio"]
    rates = ("–" if line[name] is None else f"{line[name]:,.1f}" for name in ("inTps", "outTps"))
    return (
        line["cluster"],
        line["brokerName"],
        line["brokerId"],
        "master" if line["brokerId"] == MASTER_ID else "slave",
        line["address"],
        line["version"],
        *rates,
        None if disk is None else f"{disk:.0%}",
        time_text(line["bootTimestamp"]),
    )
