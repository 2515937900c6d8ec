"""Every error of the tree says where and why, and crosses a process border whole."""

from __future__ import annotations

import pickle

import pytest

from storage import errors
from storage.errors import (
    AccessDeniedError,
    ColumnIllegalError,
    ConfigurationError,
    CorruptMessageError,
    CorruptRecordError,
    FileFailedError,
    FileSystemUnavailableError,
    ForeignLogError,
    HalvesGoneError,
    IndexElsewhereError,
    IndexGeometryUnknownError,
    LogFileMissingError,
    LogFileNotMadeError,
    MessageIllegalError,
    MovedMessagesMissingError,
    NameIllegalError,
    NotReplicatedError,
    OffsetOutOfRangeError,
    PutRefusedError,
    ReplicasNotEnoughError,
    RowIllegalError,
    SinkAheadError,
    SinkProgressError,
    SinkTakenError,
    SliceMismatchError,
    StagedRowsGoneError,
    StateFileError,
    StorageError,
    StoreDamagedError,
    StoreLockedError,
    StoreNotFoundError,
    StoreNotSharedError,
    StoreNotWritableError,
    StoreRefusedError,
    StoreServedError,
    TopicChangedError,
    TopicNotFoundError,
)
from storage.pending import PutStatus

EXAMPLES: list[tuple[StorageError, list[str], bool]] = [
    (
        ConfigurationError("b.conf", 7, "maxIndexNum", "0 is not greater than 0"),
        ["b.conf", "7", "maxIndexNum"],
        False,
    ),
    (
        StateFileError("topics.json", 3, 4, "no value"),
        ["topics.json", "line 3", "column 4", "no value"],
        False,
    ),
    (NameIllegalError("topic", "a/b", "character"), ["topic", "'a/b'", "character"], False),
    (StoreNotFoundError("/s"), ["/s", "commitlog/"], False),
    (StagedRowsGoneError("/s/spark_mq/staged/a", 7), ["/s/spark_mq/staged/a", "7 rows"], False),
    (StagedRowsGoneError("/dead/a"), ["/dead/a is gone"], False),
    (StoreNotSharedError("h1", "/s", "/s/commitlog is empty"), ["h1", "/s", "is empty", "mount"], False),
    (
        TopicNotFoundError("/s", "orderz", "orders"),
        ["/s", "no topic orderz", "did you mean orders?"],
        False,
    ),
    (
        StoreRefusedError("/s", "storeType=defaultRocksDB", "convert it"),
        ["/s", "RocksDB", "\nconvert it"],
        False,
    ),
    (IndexElsewhereError("/s/index"), ["/s/index", "indexRocksDBEnable", "indexFileWriteEnable"], False),
    (IndexGeometryUnknownError("/s/index/1", 60040), ["/s/index/1", "60040", "maxHashSlotNum"], False),
    (ForeignLogError("/s", "/l/log", "conf names /l/log", "bind it"), ["/s", "conf names /l/log", "bind it"], False),
    (AccessDeniedError("/s", "h", "u", "/ is root's", "chmod it"), ["user u on host h", "/s", "/ is root's"], False),
    (FileFailedError("/s/x", "h", "Input/output error", "look"), ["/s/x on host h", "Input/output error"], False),
    (FileSystemUnavailableError("foo://x", "h", "not known", "s3"), ["host h", "foo://x", "not known"], False),
    (StoreLockedError("/s", 500), ["/s", "500 ms"], True),
    (StoreServedError("/s", "no answer", "process 7"), ["/s", "process 7", "no answer", "nameServer"], True),
    (
        ReplicasNotEnoughError("/s", 3, 1),
        ["/s", "3 copies", "1 are in sync", "nothing was written", "inSyncReplicas"],
        True,
    ),
    (NotReplicatedError("/s", 3, 3000), ["/s", "in the log", "3 copies", "3000 ms", "nothing twice"], True),
    (StoreNotWritableError("/s", "disk full", "free space"), ["/s", "disk full", "\nfree space"], True),
    (LogFileNotMadeError("/s", "no room", "free space"), ["/s", "no room", "\nfree space"], True),
    (
        SinkTakenError("/s", "sink-1", "query-a", "query-b"),
        ["/s", "sink-1", "query-a", "query-b", "sinkTakeover"],
        False,
    ),
    (
        SinkAheadError("/s", "sink-1", 7, 150, 9, None),
        ["/s", "sink-1", "batch 9 ", "batch 7, 150 rows", "Nothing was written", "copy", "sinkTakeover"],
        False,
    ),
    (
        SinkAheadError("/s", "sink-1", 7, 150, 6, 180),
        ["batch 6", "180 rows by another run", "batch 7, 150 rows"],
        False,
    ),
    (
        SinkAheadError("/s", "sink-1", 9, 150, 9, 180),
        [
            "batch 9",
            "with 180 rows",
            "batch 9, 150 rows",
            "\nthe query gives other rows",
            "sinkTakeover=true passes over",
        ],
        False,
    ),
    (
        SliceMismatchError("/s", "sink-1", "query-a", 7, 100, 250, 4096, 900),
        ["/s", "sink-1", "batch 7", "rows 100 to 249", "slice at 4096", "900 in all", "Nothing was written", "sinkId"],
        False,
    ),
    (
        HalvesGoneError("/s", "sink-1", "query-a", 7, 100, 4096),
        [
            "/s",
            "sink-1",
            "batch 7",
            "from number 100 on",
            "slice at 4096",
            "have expired",
            "Nothing was written",
            "sinkId",
        ],
        False,
    ),
    (
        SinkProgressError("/s", "sink-1", 9, 7, "query-a"),
        ["/s", "sink-1", "batch 9", "last is 7", "spark-mq confirm-sink /s sink-1"],
        False,
    ),
    (TopicChangedError("T", 9, "the topic has 8 write queues"), ["queue 9", "topic T", "8 write queues"], False),
    (
        LogFileMissingError("/s/log/2", "/s/log/1", "/s/log/3", 2, 3, 1),
        ["lacks /s/log/2", "between /s/log/1 and /s/log/3", "bytes 2 to 3", "spark-mq repair"],
        False,
    ),
    (StoreDamagedError("/s/log", 12, "body CRC", 3, 1036), ["/s/log", "12", "body CRC", "3 intact"], False),
    (
        CorruptRecordError("magic", 40, "0xDAA320A7", "0x0", "/s/log"),
        ["magic", "/s/log", "40", "0xDAA320A7"],
        False,
    ),
    (CorruptRecordError("magic", 40, 1, 0), ["at byte 40", "expected 1", "found 0"], False),
    (
        CorruptMessageError("TopicA", 3, 17, 4_096, "body", "zlib", "none", "broker-a"),
        ["offset 17 of topic TopicA, queue 3, broker broker-a", "byte 4096", "expected zlib", "found none"],
        False,
    ),
    (ColumnIllegalError("tag", "no such column"), ["column tag", "no such column"], False),
    (RowIllegalError(3, "tags", "too long", 2), ["row 3", "column tags", "too long", "2 more"], False),
    (MessageIllegalError("body", 4194304, 4194305), ["body", "4194304", "4194305"], False),
    (
        PutRefusedError(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, "too far ahead"),
        ["WHEEL_TIMER_MSG_ILLEGAL", "too far"],
        False,
    ),
    (OffsetOutOfRangeError("commit log", None, 5, 9, 10), ["10 of commit log is", "[5, 9)"], False),
    (OffsetOutOfRangeError("T", 1, 5, 9, 10), ["T", "queue 1", "[5, 9)", "10"], False),
    (MovedMessagesMissingError("T", 1, 5, 9, 2, "/t/f"), ["offsets 2 to 4", "T queue 1", "file /t/f"], False),
]


def test_every_class_of_the_tree_has_an_example_here() -> None:
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StorageError)}
    assert classes - {StorageError} == {type(example) for example, _, _ in EXAMPLES}


@pytest.mark.parametrize(("error", "words", "retriable"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_its_text_names_what_and_where(error: StorageError, words: list[str], retriable: bool) -> None:
    assert [word for word in words if word not in str(error)] == []
    assert error.retriable is retriable


@pytest.mark.parametrize("error", [error for error, _, _ in EXAMPLES], ids=range(len(EXAMPLES)))
def test_it_is_the_same_after_a_journey_to_another_process(error: StorageError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_a_known_cure_stands_in_the_text() -> None:
    assert "reading needs no lock" in str(StoreLockedError("/s"))
    assert StoreRefusedError("/s", "reason").hint is None
