"""The command lag: how far consumer groups are behind, by the offsets that stores or brokers keep of them."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Annotated

import typer

from spark_mq.cli.app import AsJson, CommandError, Conf, Everything, app
from spark_mq.cli.connection import NO_CLUSTER, Connection, takes_connection
from spark_mq.cli.opening import ReadPath, open_place
from spark_mq.cli.output import console, duration_in_words, print_json, print_table, say, time_text
from spark_mq.cli.places import Place
from spark_mq.stop_signals import interrupt_on_signal
from storage.epoch_times import current_time_ms
from storage.names import is_system_group, nearest


@app.command()
@takes_connection
def lag(
    path: ReadPath = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="One consumer group; without it all.")
    ] = None,
    every_group: Everything = False,
    watch: Annotated[
        float | None,
        typer.Option("--watch", metavar="SECONDS", min=0.1, help="Look again every so many seconds, until Ctrl-C."),
    ] = None,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """How far consumer groups are behind in each queue: messages, bytes, and time (newest message − last consumed one).

    What cannot be known is a dash (null), never 0: no stored offset, the message before it has expired, or bytes at a running cluster.
    RocketMQ's own groups and topics, and what Spark sinks keep as groups, are left out.
    """
    with open_place(path, conf, connection) as place:
        if watch is None:
            _print_lags(place, group, every_group=every_group, as_json=as_json)
            return
        with interrupt_on_signal(), suppress(KeyboardInterrupt):
            while True:
                if not as_json:
                    console().clear()  # does nothing but on a terminal
                    say(str(time_text(current_time_ms())))
                _print_lags(place, group, every_group=every_group, as_json=as_json)
                sys.stdout.flush()
                time.sleep(watch)
                place.refresh()


def _print_lags(place: Place, group: str | None, *, every_group: bool, as_json: bool) -> None:
    found = list(place.group_lags(group))
    if group is not None and not found:
        like = nearest(group, set(place.groups()) - {group})
        raise CommandError(f"no offset of group {group} is stored", f"did you mean {like}?" if like else None)
    lines = found
    if not every_group and group is None:
        lines = [line for line in found if not (is_system_group(line["group"]) or place.is_system_topic(line["topic"]))]
    if as_json:
        print_json(lines)
        return
    columns = "group", "topic", "broker", "queue", "next", "end", "messages", "bytes", "time"
    print_table(columns, [(*list(line.values())[:-1], _time_behind(line["timeMs"])) for line in lines])
    hidden = 0 if group is not None else len({line["group"] for line in found} - {line["group"] for line in lines})
    if hidden:
        say(f"groups of RocketMQ itself and of Spark sinks are left out: {hidden}. --all shows them")


def _time_behind(time_ms: int | None) -> str | None:
    return None if time_ms is None else duration_in_words(time_ms)
