"""The command quarantine: what recoveries and repairs copied before they cut it, as lines that `produce --json` takes."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import typer

from spark_mq.cli.app import AsJson, CommandError, OneStorePath, Topic, app, one_store
from spark_mq.cli.output import print_json, print_table, say, time_in_words
from spark_mq.message_json import message_line
from storage.epoch_times import current_time_ms
from storage.files.remote import file_system_of
from storage.recovery.quarantine import Quarantine, list_quarantines, quarantine_directory, read_quarantine


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
    """List what was copied before it was cut from a store; with NAME print the messages in it, as dump does with --bodies.

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
        print_json(message_line(message, body=True))


def _print_list(root: str, found: list[Quarantine], *, as_json: bool) -> None:
    if as_json:
        print_json([_describe(one) for one in found])
    elif found:
        now_ms = current_time_ms()
        print_table(
            ("name", "made", "intact messages", "bytes", "cut at", "because of"),
            [
                (
                    one.name,
                    time_in_words(one.made_ms, now_ms),
                    one.intact_records,
                    one.size_bytes,
                    one.commitlog_offset,
                    one.reason,
                )
                for one in found
            ],
        )
    else:
        say(f"nothing was cut from {root} that may have been a message")


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
