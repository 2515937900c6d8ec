"""Queues, index files, small state files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

from tests.torture.steps import Order, Step, is_directory, is_file, path_ends, path_has

_FILES = "storage.files.local_file_system:LocalFileSystem"
_QUEUE = "storage.queues.writer:ConsumeQueueWriter"
_EXT = "storage.queues.ext:ConsumeQueueExtWriter"
_INDEX = "storage.index.store"
_SYNC = "storage.dispatch.writer:DerivedSync.run"
_CONVERSION = "storage.convert:_Converter"
_PROGRESS = "storage.tables.offline_changes:write_group_offsets"


def _is_index_file(*arguments: object, **named: object) -> bool:
    return str(arguments[-1])[-17:].isdigit()


def _is_index_directory(*arguments: object, **named: object) -> bool:
    return not _is_index_file(*arguments)


def _is_temporary(*arguments: object, **named: object) -> bool:
    return str(arguments[-1]).endswith(".tmp")


def _is_no_temporary(*arguments: object, **named: object) -> bool:
    return not _is_temporary(*arguments)


def _of(directory: str, kind: Callable[..., bool]) -> Callable[..., bool]:
    """Paths of that kind that lie in the directory under ROOT, or are it."""
    return lambda *arguments, **named: f"/{directory}/" in f"{arguments[-1]}/" and kind(*arguments)


ORDERS = (
    Order(
        "Appending to a queue, cutting it",
        f"{_QUEUE}._write",
        (
            Step("a full file synced", f"{_FILES}.sync", within=f"{_QUEUE}._keep_file", when=is_file),
            Step("its directory synced", f"{_FILES}.sync", within=f"{_QUEUE}._keep_file", when=is_directory),
            Step("a new file made at full length, sparse", f"{_FILES}.create_file"),
            Step("entries by position", f"{_FILES}.write"),
        ),
        title="Order of appending",
        stories=("putting under SYNC_FLUSH",),
    ),
    Order(
        "Appending to a queue, cutting it",
        f"{_QUEUE}.truncate",
        (
            Step("later files deleted, the last first", f"{_FILES}.unlink"),
            Step("rest of the last one zeroed", f"{_FILES}.zero"),
        ),
        title="Order of cutting",
        stories=("opening with a bad record amid others",),
    ),
    Order(
        "Extension units (`queues/ext.py`, with `enableConsumeQueueExt`)",
        f"{_QUEUE}._append",
        (
            Step("a full file synced", f"{_FILES}.sync", within=f"{_EXT}._keep_file", when=is_file),
            Step("its directory synced", f"{_FILES}.sync", within=f"{_EXT}._keep_file", when=is_directory),
            Step("a new file made at full length", f"{_FILES}.create_file", within=f"{_EXT}._write"),
            Step("units", f"{_FILES}.write", within=f"{_EXT}._write"),
            Step("the entries that name them", f"{_QUEUE}._write"),
        ),
        stories=("putting with extension units",),
    ),
    Order(
        "Extension units (`queues/ext.py`, with `enableConsumeQueueExt`)",
        _SYNC,
        (
            Step("files of units", f"{_FILES}.sync", when=_of("consumequeue_ext", is_file)),
            Step("their directories", f"{_FILES}.sync", when=_of("consumequeue_ext", is_directory)),
            Step("files of entries", f"{_FILES}.sync", when=_of("consumequeue", is_file)),
            Step("directories of these", f"{_FILES}.sync", when=_of("consumequeue", is_directory)),
            Step("after a new file of units ROOT", f"{_FILES}.sync", when=path_ends("/store")),
        ),
        title="Order of syncing",
        stories=("syncing extension units",),
    ),
    Order(
        "Extension units (`queues/ext.py`, with `enableConsumeQueueExt`)",
        f"{_QUEUE}.truncate",
        (
            Step("the queue cut, as above", f"{_FILES}.unlink {_FILES}.zero", when=path_has("/consumequeue/")),
            Step("later files deleted, the last first", f"{_FILES}.unlink", when=path_has("/consumequeue_ext/")),
            Step("rest of the last one zeroed", f"{_FILES}.zero", when=path_has("/consumequeue_ext/")),
        ),
        title="Order of cutting",
        stories=("opening with a bad record amid others, with extension units",),
    ),
    Order(
        "Index files",
        "",
        (
            Step("a new file", f"{_FILES}.create_file", within=f"{_INDEX}:IndexWriter._create"),
            Step("its header", f"{_INDEX}:_write_header", within=f"{_INDEX}:IndexWriter._create"),
            Step("items as they come", f"{_FILES}.write", within=f"{_INDEX}:IndexWriter._append_part"),
            Step(
                "at the end of a put, a commit's group or a recovery header",
                f"{_INDEX}:_write_header",
                within=f"{_INDEX}:IndexWriter.flush",
            ),
            Step("the pages of slots that changed", f"{_INDEX}:_write_slots", within=f"{_INDEX}:IndexWriter.flush"),
            Step(
                "a full file synced", f"{_FILES}.sync", within=f"{_INDEX}:IndexWriter._close_file", when=_is_index_file
            ),
            Step(
                "directory synced",
                f"{_FILES}.sync",
                within=f"{_INDEX}:IndexWriter._close_file",
                when=_is_index_directory,
            ),
        ),
        stories=("putting under SYNC_FLUSH",),
    ),
    Order(
        "Index files",
        f"{_INDEX}:mend_chains",
        (
            Step(
                "items whose chain is not whole",
                f"{_FILES}.write",
                when=lambda *found: getattr(found[-1], "nbytes", 0) % 20 == 0 and found[2] > 40,
            ),
            Step("slots", f"{_INDEX}:_write_slots"),
            Step("header, where its number of used slots is wrong", f"{_INDEX}:_write_header"),
            Step("synced", f"{_FILES}.sync"),
        ),
        title="Order of mending chains",
        stories=("opening after a kill amid the index",),
    ),
    Order(
        "State files (`config/*.json`)",
        "storage.files.local_file_system:write_with_backup",
        (
            Step("`NAME.bak`, the old content", f"{_FILES}.replace", when=path_ends(".bak", ".bad")),
            Step(
                "`NAME`, the new content",
                f"{_FILES}.replace",
                when=lambda *found, **_: not str(found[1]).endswith((".bak", ".bad")),
            ),
        ),
        stories=("replacing a table",),
    ),
    Order(
        "State files (`config/*.json`)",
        f"{_FILES}.replace",
        (
            Step("written to `NAME.tmp`", f"{_FILES}.write"),
            Step("synced", f"{_FILES}.sync", when=_is_temporary),
            Step("renamed to `NAME`", f"{_FILES}.rename"),
            Step("directory synced", f"{_FILES}.sync", when=_is_no_temporary),
        ),
        title="Order of replacing a file",
        stories=("replacing a table",),
    ),
    Order(
        "A group's offsets",
        _PROGRESS,
        (
            Step("the store's lock", f"{_FILES}.locked", gives=lambda *_, **__: nullcontext()),
            Step(
                "`topics.json` (the group's `%RETRY%` topic)",
                "storage.tables.offline_changes:write_with_backup",
                when=path_ends("topics.json"),
            ),
            Step(
                "`subscriptionGroup.json`",
                "storage.tables.offline_changes:write_with_backup",
                when=path_ends("subscriptionGroup.json"),
            ),
            Step(
                "`consumerOffset.json`, each as above and only where it changes, its DataVersion raised",
                "storage.tables.offline_changes:write_with_backup",
                when=path_ends("consumerOffset.json"),
            ),
        ),
        stories=("setting a group's offsets",),
    ),
    Order(
        "A DLedger store made plain (`convert.py`)",
        "storage.convert:convert",
        (
            Step("the source's lock shared", f"{_FILES}.left_alone", gives=lambda *_, **__: nullcontext(True)),
            Step(
                "TARGET.converting locked",
                f"{_FILES}.locked",
                when=path_ends("converting.lock"),
                gives=lambda *_, **__: nullcontext(),
            ),
            Step(
                "in it a note of the source",
                f"{_FILES}.replace",
                when=lambda *found, **_: str(found[1]).endswith("converted_from.json"),
            ),
            Step(
                "files of the log, each synced",
                f"{_FILES}.sync",
                within=f"{_CONVERSION}._copy_log",
                when=is_file,
            ),
            Step("their directory synced", f"{_FILES}.sync", within=f"{_CONVERSION}._copy_log", when=is_directory),
            Step("tables and timer, each synced", f"{_CONVERSION}._copy_tables"),
            Step(
                "queues, index and checkpoint, as a recovery makes them",
                "storage.store:open_store",
                when=lambda *_, **named: named.get("read_only") is False,
                gives=lambda *_, **__: nullcontext(SimpleNamespace(log_end=0, lowered=())),
            ),
            Step(
                "TARGET.converting synced",
                f"{_FILES}.sync",
                within=f"{_CONVERSION}.convert",
                when=path_ends(".converting"),
            ),
            Step("renamed to TARGET", f"{_FILES}.rename", when=path_ends(".converting")),
            Step("the directory around it synced", f"{_FILES}.sync", when=path_ends("/store")),
        ),
        stories=("converting",),
    ),
)
