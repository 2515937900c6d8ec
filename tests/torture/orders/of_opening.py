"""Opening, closing, releasing, and what an opening mends."""

from __future__ import annotations

from contextlib import nullcontext

from tests.torture.steps import Order, Step, is_file, path_ends, path_has

_FILES = "storage.files.local_file_system:LocalFileSystem"
_WRITER = "storage.put.store_writer:StoreWriter"
_OPENING = "storage.recovery.opening"
_MENDING = "storage.recovery.mending"
_STORE = "storage.store:MessageStore"


def _is_root(*arguments: object, **named: object) -> bool:
    return str(arguments[-1]).endswith("store")


ORDERS = (
    Order(
        "Opening for writing",
        f"{_STORE}.__init__",
        (
            Step("lock", f"{_STORE}._take_lock"),
            Step(
                "directory of the tables synced",
                f"{_FILES}.sync",
                when=path_ends("/config"),
                within=f"{_OPENING}:open_for_writing",
            ),
            Step("the four reading passes of `storage/recovery/passes.py`; damage is refused here"),
            Step('what is to be cut and may hold messages copied ("Quarantine")', f"{_OPENING}:_keep_what_is_cut"),
            Step("hint deleted", f"{_OPENING}:drop_hint"),
            Step("`abort`, synced, with ROOT", f"{_FILES}.replace", when=path_ends("/abort")),
            Step("files of a failed sync written again", f"{_OPENING}:write_again"),
            Step("of a damaged log what the records to be cut had delivered lowered in the tables"),
            Step('rows of open intents written again ("A batch")', f"{_OPENING}:mend_batches"),
            Step(
                "checkpoint lowered where something is to be built that it would not have built again",
                "storage.recovery.passes:StoreParts.save_checkpoint",
                within=f"{_MENDING}:apply_recovery",
            ),
            Step('log cut ("Cutting the log")', f"{_MENDING}:cut_log", gives=lambda *_, **__: (0, [])),
            Step("after an unclean stop log synced", f"{_MENDING}:_sync_unsynced_log"),
            Step("queues cut", "storage.recovery.mending:QueueWriters._truncate"),
            Step(
                "index files that cannot be trusted deleted",
                f"{_FILES}.unlink",
                when=path_has("/index/"),
                within="storage.recovery.mending:Indexer.__init__",
            ),
            Step("chains of the others made whole", "storage.recovery.mending:mend_chains"),
            Step("missing queue entries written", "storage.recovery.mending:QueueWriters.append"),
            Step("missing index keys written", "storage.recovery.mending:Indexer.append"),
            Step(
                "queues synced, with the directories up to ROOT",
                f"{_FILES}.sync_all",
                within="storage.recovery.mending:QueueWriters.finish",
            ),
            Step(
                "index synced",
                "storage.index.store:IndexWriter.sync",
                within="storage.recovery.mending:Indexer.finish",
            ),
            Step("after an unclean stop what a killed writer left of queues synced", f"{_MENDING}:_sync_unflushed"),
            Step("`checkpoint`, written in place and synced", f"{_OPENING}:_write_checkpoint"),
            Step("`index_synced.json` deleted", f"{_OPENING}:drop_index_trust", within=f"{_OPENING}:open_for_writing"),
            Step("after a start of the machine that noted in `abort`", f"{_OPENING}:note_start"),
            Step(
                'tables that count further than the log goes lowered ("Tables ahead of the log")',
                "storage.store:lower_offsets",
                gives=lambda *_, **__: (),
            ),
            Step("`topics.json`, where it does not tell the broker's name"),
            Step(
                'open intents finished ("A batch")',
                "storage.store:finish_open_intents",
                gives=lambda *_, **__: 0,
            ),
            Step("open intents settled", "storage.batch.commit:settle"),
        ),
        stories=(
            "opening after a kill",
            "opening with a bad record amid others",
            "opening after a kill amid a batch",
            "opening after a start of the machine",
            "opening after a failed sync",
            "putting under SYNC_FLUSH",
        ),
    ),
    Order(
        "Opening for writing",
        f"{_OPENING}:open_for_writing",
        (
            Step("files written again", "storage.files.syncs:_write_again"),
            Step("synced", f"{_FILES}.sync", within="storage.files.syncs:write_again"),
            Step("note deleted", f"{_FILES}.unlink", within="storage.files.syncs:write_again"),
        ),
        title="Order after a failed sync",
        stories=("opening after a failed sync",),
    ),
    Order(
        "Closing",
        f"{_STORE}.close",
        (
            Step("log synced", f"{_WRITER}.sync_log"),
            Step("intents whose batches are in it dropped", "storage.batch.commit:drop_intent"),
            Step("queues, index, new directory entries synced", "storage.dispatch.writer:DerivedSync.run"),
            Step("`checkpoint`", f"{_WRITER}._save_checkpoint"),
            Step("`index_synced.json` deleted", "storage.index.store:drop_index_trust"),
            Step("hint deleted", f"{_OPENING}:drop_hint"),
            Step("`abort` deleted", f"{_FILES}.unlink", when=path_ends("/abort")),
            Step("ROOT synced", f"{_FILES}.sync", within=f"{_OPENING}:close_cleanly", when=_is_root),
            Step("lock given back", f"{_STORE}._give_back"),
        ),
        stories=("closing",),
    ),
    Order(
        "Releasing",
        f"{_STORE}.release",
        (
            Step("once a minute log, queues and index synced and `checkpoint` written", f"{_WRITER}.checkpoint_if_due"),
            Step("hint written", f"{_OPENING}:save_hint"),
            Step("lock given back", f"{_STORE}._give_back"),
        ),
        stories=(
            "releasing",
            "releasing after a minute",
        ),
    ),
    Order(
        "Cutting the log",
        f"{_MENDING}:cut_log",
        (
            Step("later files deleted, the last first", f"{_FILES}.unlink"),
            Step("zeros from the end of the log on", f"{_FILES}.zero"),
            Step("synced", f"{_FILES}.sync", when=is_file),
            Step("directories synced", f"{_FILES}.sync_all"),
        ),
        stories=(
            "opening with a bad record amid others",
            "opening after a kill",
        ),
    ),
    Order(
        "Quarantine (`quarantine.py`)",
        "storage.recovery.quarantine:keep_what_is_cut",
        (
            Step(
                "copies of a former attempt without a manifest deleted",
                "storage.recovery.quarantine:_remove_unfinished",
            ),
            Step(
                "bytes of the log from its end to the end of the data, whole later files copied",
                "storage.recovery.quarantine:_Copy.copy_log",
            ),
            Step("entries behind the queues' ends copied", "storage.recovery.quarantine:_Copy.copy_queues"),
            Step(
                "index files that go copied, like the others each to a file of its own that is synced",
                "storage.recovery.quarantine:_Copy.copy",
                when=path_has("index/"),
            ),
            Step("directories synced", "storage.recovery.quarantine:_Copy.sync"),
            Step(
                "`manifest.json`, synced, renamed, directory synced",
                f"{_FILES}.replace",
                when=path_ends("/manifest.json"),
            ),
        ),
        stories=("opening with a bad record amid others",),
    ),
    Order(
        "A missing log file (`storage/log/damage.py`)",
        "storage.log.damage:bridge",
        (
            Step("file made beside the log's directory", f"{_FILES}.create_file"),
            Step("filler", f"{_FILES}.write"),
            Step("synced", f"{_FILES}.sync", when=path_ends(".tmp")),
            Step("renamed into it", f"{_FILES}.rename"),
            Step("directory synced", f"{_FILES}.sync", when=path_ends("log")),
        ),
        stories=("opening with a missing log file",),
    ),
    Order(
        "Binding a log (`opening.py`)",
        "storage.recovery.opening:bind_log",
        (
            Step("ROOT's lock", f"{_FILES}.locked", gives=lambda *_, **__: nullcontext()),
            Step("no process has the log's last file open for writing", "storage.recovery.opening:refuse_open_log"),
            Step("queues and checkpoint compared with the log", "storage.recovery.opening:find_disagreement"),
            Step("`log_binding.json`, replaced whole and synced", "storage.recovery.opening:save_binding"),
        ),
        stories=("binding a log",),
    ),
)
