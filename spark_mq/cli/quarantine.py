"""The command quarantine: what recoveries and repairs copied before they cut it, as lines that `produce --json` takes."""

from __future__ import annotations

from base64 import b64encode
from itertools import islice
from typing import Annotated, Any

import typer

from spark_mq.cli.app import AsJson, CommandError, OneStorePath, Topic, app, one_store
from spark_mq.cli.output import console, print_json, print_table, time_text
from storage.errors import CorruptRecordError
from storage.files.remote import file_system_of
from storage.format.record import Message, host_text
from storage.quarantine import Quarantine, list_quarantines, quarantine_directory, read_quarantine


@app.command()
def quarantine(
    path: OneStorePath,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", show_default=False, help="Print the messages of this one.")
    ] = None,
    topic: Topic = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many lines.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what was copied before it was cut from a store; with NAME print the messages in it, a JSON object a line.

    Those lines are what `spark-mq produce PATH --json` reads, so that messages can be put back: pick them first, some may be in
    the store again. Reads only, takes no lock. A quarantine is a directory; delete it when nobody needs it.
    """
    root = one_store(path)
    files = file_system_of(root)
    found = list_quarantines(files, root)
    if name is None:
        _print_list(root, found, as_json=as_json)
        return
    wanted = next((one for one in found if one.name == name), None)
    if wanted is None:
        known = ", ".join(one.name for one in found) or "there is none"
        raise CommandError(f"no quarantine {name} in {quarantine_directory(root)}", f"there: {known}")
    messages = (message for message in read_quarantine(files, wanted) if topic in (None, message.topic))
    for message in islice(messages, limit):
        print_json(_line(message))


def _print_list(root: str, found: list[Quarantine], *, as_json: bool) -> None:
    if as_json:
        print_json([_describe(one) for one in found])
    elif found:
        print_table(
            ("name", "made", "intact messages", "bytes", "cut at", "because of"),
            [
                (one.name, time_text(one.made_ms), one.intact_records, one.size_bytes, one.commitlog_offset, one.reason)
                for one in found
            ],
        )
    else:
        console().print(f"nothing was cut from {root} that may have been a message", markup=False)


def _describe(one: Quarantine) -> dict[str, Any]:
    return {
        "name": one.name,
        "directory": one.directory,
        "madeMs": one.made_ms,
        "intactRecords": one.intact_records,
        "sizeBytes": one.size_bytes,
        "commitlogOffset": one.commitlog_offset,
        "reason": one.reason,
    }


def _line(message: Message) -> dict[str, Any]:
    """The columns of the Spark source, but the body, which JSON cannot hold as it is."""
    line: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commitlog_offset": message.commitlog_offset,
        "msg_id": message.msg_id,
        "unique_key": message.unique_key,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "born_timestamp": message.born_time_ms,
        "store_timestamp": message.store_time_ms,
        "born_host": host_text(message.born_host),
        "store_host": host_text(message.store_host),
    }
    try:
        body = message.plain_body
    except CorruptRecordError:  # stored so by its producer: the record's CRC is right
        body = message.body
    try:
        return line | {"body": body.decode()}
    except UnicodeDecodeError:
        return line | {"body_base64": b64encode(body).decode()}
