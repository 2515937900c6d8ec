"""Batches of a sink: staged, committed, finished after a crash, and the ledger's upkeep."""

from __future__ import annotations

from collections.abc import Sequence

from storage.format.record_block import OwnBlock
from tests.torture.steps import Order, Step, path_ends, path_has

_FILES = "storage.files.local_file_system:LocalFileSystem"
_WRITER = "storage.put.store_writer:StoreWriter"
_COMMIT = "storage.batch.commit"
_PROGRESS = "storage.batch.sink_progress"
_SEGMENT = "storage.batch.staged_segment:SegmentWriter"
_INTENT = "storage.batch.intent"
_SLICES = "storage.batch.slices"


def _is_directory(*arguments: object, **named: object) -> bool:
    return not str(arguments[-1]).endswith(".segment")


def _is_ledger_message(writer: object, runs: Sequence[object], **named: object) -> bool:
    return not isinstance(runs[0], OwnBlock)


ORDERS = (
    Order(
        "A batch (`storage/batch/commit.py`)",
        f"{_SEGMENT}.append {_SEGMENT}.finish",
        (
            Step("segment written", "storage.files.file_system:LocalWriter.write"),
            Step("synced", "storage.files.file_system:LocalWriter.sync"),
            Step("directory synced", f"{_FILES}.sync", within=f"{_SEGMENT}.finish", when=_is_directory),
        ),
        title="Order of a task",
        stories=("committing under SYNC_FLUSH",),
    ),
    Order(
        "A batch (`storage/batch/commit.py`)",
        f"{_COMMIT}:commit_batch",
        (
            Step("ledger read", f"{_COMMIT}:is_done", gives=lambda *_, **__: False),
            Step("staged files looked for", f"{_COMMIT}:check_staged"),
            Step("segments compared with their sums", "storage.batch.commit:check_segments"),
            Step("queues checked", "storage.batch.commit:check_queues"),
            Step("slices of another attempt compared with the rows", "storage.batch.commit:check_started"),
            Step("topics made", "storage.put.settings:TopicEntries.ensure"),
            Step("room reserved", f"{_WRITER}.reserve"),
            Step("log synced", f"{_WRITER}.sync_log", within=f"{_COMMIT}:settle"),
            Step("the predecessor's intent dropped", f"{_COMMIT}:drop_intent", within=f"{_COMMIT}:settle"),
            Step("its segments given back", f"{_COMMIT}:_drop_staged", within=f"{_COMMIT}:settle"),
            Step("ledger claimed, before a store's first batch", f"{_COMMIT}:claim_ledger"),
            Step("**intent**, synced, renamed, directory synced", f"{_COMMIT}:save_intent"),
            Step(
                "slices, each a SLICE",
                f"{_WRITER}.append_records",
                within=f"{_SLICES}:_append_slice",
                when=_is_ledger_message,
            ),
            Step("and its rows", "storage.log.writer:CommitLogWriter._write", within=f"{_SLICES}:_append_slice"),
            Step(
                "their queue entries and index items",
                "storage.dispatch.writer:DerivedWriter.enter",
                within=f"{_SLICES}:append_slices",
            ),
            Step("dead letters renamed", f"{_COMMIT}:_publish", within=f"{_COMMIT}:_append"),
            Step("END", "storage.log.writer:CommitLogWriter._write", within=f"{_WRITER}.append"),
            Step("consumer offset of the sink", f"{_PROGRESS}:_mirror"),
            Step("note of its last batch (`ledger.json`)", f"{_PROGRESS}:_note"),
            Step(
                "under SYNC_FLUSH, and without a consumer offset, log synced",
                f"{_WRITER}.sync_log",
                within=f"{_COMMIT}:_finish",
            ),
            Step("intent dropped", f"{_COMMIT}:drop_intent", within=f"{_COMMIT}:_finish"),
            Step("segments given back", f"{_COMMIT}:_drop_staged", within=f"{_COMMIT}:_finish"),
        ),
        stories=(
            "committing under ASYNC_FLUSH",
            "committing a store's first batch",
            "committing under SYNC_FLUSH",
            "committing without a consumer offset",
        ),
    ),
    Order(
        "A batch (`storage/batch/commit.py`)",
        f"{_COMMIT}:drop_intent",
        (
            Step("deleted", f"{_FILES}.unlink"),
            Step("directory synced", f"{_FILES}.sync"),
        ),
        title="Order of dropping an intent",
        stories=("closing",),
    ),
    Order(
        "A batch (`storage/batch/commit.py`)",
        f"{_COMMIT}:finish_open_intents",
        (
            Step("intents that were never renamed deleted", f"{_COMMIT}:remove_undecided"),
            Step("queue entries and keys of torn rows put right", f"{_WRITER}.mend"),
            Step("these synced, with a checkpoint", f"{_WRITER}.checkpoint"),
            Step("note of torn rows deleted", f"{_COMMIT}:drop_torn_rows"),
            Step(
                "directory of intents synced", f"{_FILES}.sync", when=path_ends("/intents"), within=f"{_COMMIT}:_redo"
            ),
            Step("segments compared with their sums", "storage.batch.staged_segment:SegmentReader.verify_data"),
            Step("room reserved", f"{_WRITER}.reserve"),
            Step("rows that are not there, with their ledger messages", "storage.log.writer:CommitLogWriter._write"),
            Step("the rest as in a commit", f"{_COMMIT}:_finish"),
        ),
        title="Order of finishing a batch",
        stories=(
            "opening after a kill amid a batch",
            "opening with a torn row",
        ),
    ),
    Order(
        "A batch (`storage/batch/commit.py`)",
        f"{_INTENT}:mend_batches",
        (
            Step("segments compared with their sums", "storage.batch.staged_segment:SegmentReader.verify_data"),
            Step("torn rows noted", f"{_INTENT}:_save_torn_rows"),
            Step("rows written again", f"{_FILES}.write", when=path_has("log/")),
            Step("synced", f"{_INTENT}:_Mending.sync"),
        ),
        title="Order of mending torn rows",
        stories=("opening with a torn row",),
    ),
    Order(
        "Expired files (`retention.py`)",
        "storage.retention:apply_expiry",
        (
            Step("newest ENDs of sinks written again", "storage.retention:apply_renewals"),
            Step("open intents settled", "storage.batch.commit:settle"),
            Step("log, queues and index synced, checkpoint", f"{_WRITER}.checkpoint"),
            Step(
                "log files unlinked, the oldest first",
                f"{_FILES}.unlink",
                within="storage.retention:_unlink",
                when=path_has("log/"),
            ),
            Step("directory synced after each", f"{_FILES}.sync", within="storage.retention:_unlink"),
            Step("files of queues and their extensions", "storage.retention:_unlink", when=path_has("/consumequeue")),
            Step("index files", "storage.retention:_unlink", when=path_has("/index/")),
        ),
        stories=("expiring",),
    ),
)
