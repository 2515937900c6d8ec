"""The messages between sink and broker over the local socket.

    sink    a HandOver: the staged batch, by the names of its files, and the identity of the store that the sink expects
    broker  {"state": "waiting"}                     once a second, while other batches are committed
            {"state": "taken", "logEnd": …}          the commit begins
            {"state": "working"}                     once a second
            {"done": [already done, rows]}  or  {"error": …}, and the broker hangs up

Every message is checked before use; an invalid one raises ValueError.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, SupportsIndex, TypeVar

from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import ANSWER_BYTES_MOST, REQUEST_BYTES_MOST, FrameError
from storage import errors
from storage.batch.commit import CommitOutcome, commit_batch
from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.ledger import Batch
from storage.batch.sink_progress import end_behind
from storage.batch.slices import Turn
from storage.batch.staged_segment import StagedBatch, StagedSegment
from storage.errors import StorageError, StoreServedError
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_retry_or_dead_letter_topic, validate_group
from storage.rules.topics import RowWish
from storage.store import MessageStore
from storage.tables.put_statistics import PutStatistics
from storage.tables.sink_notes import BatchNote, add_batch_note
from storage.transaction.progress import save_counts

# What a sink's commit does on an open store: groups, the batch, its counts, a note of it. The store may be a broker's.
#
# Exactly once is `commit_batch`'s: intent, slices and ledger are the same, whichever process has the store open.


_LOG = logging.getLogger("spark_mq.sink")


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """A batch that tasks have staged, and what the sink's options say of its commit."""

    staged: StagedBatch
    wish: RowWish | None
    """The user's settings for topics that are made or get more queues; None: rows are sent back."""
    takeover: bool = False
    mirrored: bool = True
    unresolved: Mapping[str, int] = field(default_factory=dict)
    """Number of half messages without an end, by topic."""
    started_at: int | None = None
    """The log's end at the start of an earlier try at this commit whose answer was lost; None = no such try."""


def commit_staged(
    store: MessageStore, commit: StagedCommit, *, waited_s: float = 0.0, turn: Turn = nullcontext
) -> CommitOutcome:
    """Append the batch, as `commit_batch` does; its errors are raised. `turn` takes the put lock where others put meanwhile.

    A batch that an earlier try has brought to its END is done, also a batch without a name, which is not in the ledger.
    """
    writer, counts, began_s = store.writer, PutStatistics(), time.monotonic()
    turn = _counting(store, counts, turn)
    with turn():
        if commit.started_at is not None and commit.staged.has_rows:
            staged = commit.staged
            if end_behind(writer, staged.batch, staged.segments, commit.started_at) is not None:
                return CommitOutcome(True, 0)
        _ensure_groups(store, commit.staged.topics)
    outcome = commit_batch(
        writer, commit.staged, wish=commit.wish, takeover=commit.takeover, mirrored=commit.mirrored, turn=turn
    )
    if not outcome.already_done and commit.unresolved:
        save_counts(store, commit.unresolved, now_ms=writer.clock())
    if outcome.row_count:
        took_s = time.monotonic() - began_s
        _note(store, commit.staged.batch, outcome.row_count, counts, waited_s=waited_s, took_s=took_s)
    return outcome


def _counting(store: MessageStore, counts: PutStatistics, turn: Turn) -> Turn:
    """The turn, within which what is put is the batch's and counts as such."""
    writer = store.writer
    if turn is nullcontext:  # no other thread can put, and `commit_batch` must know
        writer.statistics = counts
        return turn

    @contextmanager
    def counted() -> Iterator[None]:
        with turn():
            others, writer.statistics = writer.statistics, counts
            try:
                yield
            finally:
                writer.statistics = others

    return counted


def _note(
    store: MessageStore, batch: Batch, row_count: int, counts: PutStatistics, *, waited_s: float, took_s: float
) -> None:
    """Remember what the batch was, for `spark-mq sink-status`. The batch is there already, so an error is logged and no more."""
    writer = store.writer
    topics = {name: found for name, found in counts.topics.items() if name != LEDGER_TOPIC}
    waited_ms, took_ms = round(waited_s * 1_000), round(took_s * 1_000)
    note = BatchNote(batch.query_id, batch.batch_id, writer.clock(), row_count, waited_ms, took_ms, topics)
    try:
        add_batch_note(writer.file_system, store.root, batch.sink_id, note)
    except OSError as error:
        _LOG.warning("batch %d of sink %s is stored; the note of it is not: %s", batch.batch_id, batch.sink_id, error)


def _ensure_groups(store: MessageStore, topics: Mapping[str, int]) -> None:
    """Groups whose retry or dead-letter topics these are have their entries. Java: SubscriptionGroupManager.

    Raises NameIllegalError for a new one that is too long for the store's release, as the rules for rows do; with nothing written.
    """
    of_groups = {topic: count for topic, count in topics.items() if is_retry_or_dead_letter_topic(topic)}
    if not of_groups:
        return
    groups = {topic.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX) for topic in of_groups}
    new = sorted(groups - store.groups.keys())
    for group in new:
        validate_group(group, store.config.release.longest_group)
    store.writer.topic_entries.ensure(of_groups)
    for group in new:
        store.save_group(SubscriptionGroupConfig(group))


VERSION = 1
WAITING: Mapping[str, Any] = {"state": "waiting"}
WORKING: Mapping[str, Any] = {"state": "working"}
_MOST_TEXT = 4_096
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HandOver:
    """A batch for the broker."""

    commit: StagedCommit
    directory: tuple[int, int]
    """Device and inode of the ROOT that the sink has staged under."""
    patience_ms: int
    """Longest wait for other batches."""
    is_sync: bool = False
    """Whether to sync the log before the answer, whatever the broker's flush policy is."""
    copies: int | None = None
    """Number of copies that complete the batch, the master's included; None = the broker's settings."""
    slave_timeout_ms: int | None = None
    """Longest wait for these copies; None = the broker's settings."""


def request_document(request: HandOver) -> dict[str, Any]:
    commit, staged = request.commit, request.commit.staged
    return {
        "version": VERSION,
        "directory": list(request.directory),
        "patienceMs": request.patience_ms,
        "sync": request.is_sync,
        "copies": request.copies,
        "slaveTimeoutMs": request.slave_timeout_ms,
        "batch": list(staged.batch),
        "segments": [list(segment) for segment in staged.segments],
        "topics": dict(staged.topics),
        "grown": dict(staged.grown),
        "destinations": [list(queue) for queue in staged.destinations],
        "deadLetters": [list(names) for names in staged.dead_letters],
        "refused": staged.refused,
        "write": staged.is_write,
        "wish": None if commit.wish is None else [commit.wish.create_topic, commit.wish.queue_count],
        "takeover": commit.takeover,
        "mirrored": commit.mirrored,
        "unresolved": dict(commit.unresolved),
        "begunAt": commit.started_at,
    }


def read_request(document: dict[str, Any]) -> HandOver:
    """Raises ValueError for what is no request of this version."""
    try:
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r:.20} is not known, {VERSION} is")
        batch = Batch(*_tuple(document["batch"], str, str, int))
        if batch.batch_id < 0:
            raise ValueError(f"no batch has the number {batch.batch_id}")
        staged = StagedBatch(
            batch,
            tuple(StagedSegment.from_json(values) for values in _list(document["segments"])),
            _counts(document["topics"]),
            _counts(document["grown"]),
            {
                (topic, queue_id)
                for topic, queue_id in (_tuple(one, str, int) for one in _list(document["destinations"]))
            },
            [DeadLetterFile.from_json(values, *batch) for values in _list(document["deadLetters"])],
            _of(document["refused"], int),
            _of(document["write"], bool),
        )
        wish = document["wish"]
        commit = StagedCommit(
            staged,
            None if wish is None else _wish(wish),
            _of(document["takeover"], bool),
            _of(document["mirrored"], bool),
            _counts(document["unresolved"]),
            _place(document["begunAt"]),
        )
        device, inode = _tuple(document["directory"], int, int)
        return HandOver(
            commit,
            (device, inode),
            _of(document["patienceMs"], int),
            _of(document["sync"], bool),
            _maybe(document["copies"], int),
            _maybe(document["slaveTimeoutMs"], int),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no batch to be handed over: {type(error).__name__} {error}") from error


def taken_document(log_end: int) -> dict[str, Any]:
    return {"state": "taken", "logEnd": log_end}


def started_at(document: Mapping[str, Any]) -> int | None:
    """The log's end at the start of the commit, if the broker has sent it."""
    log_end = document.get("logEnd")
    return log_end if document.get("state") == "taken" and type(log_end) is int else None


def outcome_document(outcome: CommitOutcome) -> dict[str, Any]:
    return {"done": list(outcome)}


def error_document(error: BaseException) -> dict[str, Any]:
    """An error by its class, values and text."""
    if isinstance(error, OSError) and error.errno is not None:
        return {"error": {"errno": error.errno, "reason": error.strerror, "file": _name(error.filename)}}
    values = [_plain(value) for value in error.args]
    text = str(error) if isinstance(error, StorageError) else f"{type(error).__name__}: {error}"
    return {"error": {"kind": type(error).__name__, "values": values, "text": text}}


def read_answer(document: Mapping[str, Any]) -> CommitOutcome | StorageError | OSError | None:
    """The result of the commit: its outcome, or the error that the sink's own commit would raise; None = not finished.

    Raises ValueError for what is no answer.
    """
    if "state" in document:
        return None
    if "done" in document:
        return CommitOutcome(*_tuple(document["done"], bool, int))
    said = document.get("error")
    if not isinstance(said, dict):
        raise ValueError(f"it is no answer of a broker: {document!r:.200}")
    if type(said.get("errno")) is int:
        reason, file = said.get("reason"), said.get("file")
        return OSError(said["errno"], str(reason), file if isinstance(file, str) else None)
    return _storage_error(said)


def _storage_error(said: Mapping[str, Any]) -> StorageError:
    """The error of that class and text; one of no class where this version knows none such."""
    text, values = str(said.get("text")), said.get("values")
    kind = getattr(errors, str(said.get("kind")), None)
    if inspect.isclass(kind) and issubclass(kind, StorageError) and isinstance(values, list):
        try:
            error = kind(*values)
            if str(error) == text:
                return error
        except (TypeError, ValueError, AttributeError):
            pass
    return StorageError(text[:_MOST_TEXT])


def _plain(value: object) -> object:
    if isinstance(value, str | int | float | None):
        return value
    return int(value) if isinstance(value, SupportsIndex) else str(value)


def _name(path: object) -> str | None:
    return path if isinstance(path, str) else None


def _of(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} is expected, found {value!r:.80}")
    return value


def _maybe(value: Any, kind: type[_T]) -> _T | None:
    return None if value is None else _of(value, kind)


def _list(value: Any) -> list[Any]:
    return _of(value, list)


def _tuple(value: Any, *kinds: type) -> tuple[Any, ...]:
    if not isinstance(value, list) or [type(one) for one in value] != list(kinds):
        raise ValueError(f"a list of {len(kinds)} values is expected, found {value!r:.80}")
    return tuple(value)


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or any(type(count) is not int for count in value.values()):
        raise ValueError(f"names with numbers are expected, found {value!r:.80}")
    return value


def _place(value: Any) -> int | None:
    if (place := _maybe(value, int)) is not None and place < 0:
        raise ValueError(f"no log ends at {place}")
    return place


def _wish(value: Any) -> RowWish:
    create_topic, queue_count = _of(value, list)
    return RowWish(_maybe(create_topic, bool), _maybe(queue_count, int))


# A query's position as a consumer group's (option commitOffsets), handed to the broker of ours that has the store open.
#
#     query   {"version": 1, "directory": [device, inode], "group": …, "offsets": [[topic, queue id, next offset], …]}
#     broker  {"done": [false, how many]}  or  {"error": …}, and the broker hangs up
#
# They are in the broker's memory and in consumerOffset.json when it answers. Everything is checked before it is used: an error is
# a ValueError.


_SILENCE_SECONDS = 2.0
"""A query waits for so little so long; a batch has more at stake."""
_OFFSETS = "offsets"

Offsets = Mapping[tuple[str, int], int]
"""Next offsets by (topic, queue id)."""


class HandedOffsets(NamedTuple):
    """A query's offsets for the broker to store."""

    group: str
    offsets: Offsets
    directory: tuple[int, int]
    """Device and inode of the ROOT that the query reads."""


# The broker's side


def are_offsets(document: Mapping[str, Any]) -> bool:
    """Whether a request is one of these, and no batch."""
    return _OFFSETS in document


def read_offsets(document: Mapping[str, Any]) -> HandedOffsets:
    """Raises ValueError for what is no request of this version."""
    try:
        version, group, (device, inode) = document["version"], document["group"], document["directory"]
        listed = [(topic, queue_id, offset) for topic, queue_id, offset in document[_OFFSETS]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"these are no offsets to be handed over: {type(error).__name__} {error}") from error
    if version != VERSION:
        raise ValueError(f"version {version!r:.20} is not known, {VERSION} is")
    numbers = [device, inode, *(number for _, *both in listed for number in both)]
    texts = [group, *(topic for topic, _, _ in listed)]
    if any(type(number) is not int or number < 0 for number in numbers) or any(type(text) is not str for text in texts):
        raise ValueError("a group, and of each queue its topic, number and next offset are expected")
    return HandedOffsets(group, {(topic, queue_id): offset for topic, queue_id, offset in listed}, (device, inode))


# The query's side


def hand_offsets(root: str, group: str, offsets: Offsets, holder: str | None) -> None:
    """Returns when the broker has stored them. `holder` is the process that has the store's lock, for texts.

    Raises the error that it answers with, StoreServedError where it takes nothing from here.
    """
    document = {
        "version": VERSION,
        "directory": list(local_socket.directory_identity(root)),
        "group": group,
        _OFFSETS: [[topic, queue_id, offset] for (topic, queue_id), offset in offsets.items()],
    }
    try:
        with local_socket.connect(root, _SILENCE_SECONDS) as connection:
            if not local_socket.is_own_user(user := local_socket.peer_user(connection)):
                reason = f"it is run by user {user}, and this process by user {os.geteuid()}"
                raise StoreServedError(root, reason, holder)
            local_socket.send_frame(connection, document, REQUEST_BYTES_MOST)
            said = local_socket.receive_frame(connection, ANSWER_BYTES_MOST, _SILENCE_SECONDS)
        if said is None:
            raise StoreServedError(root, "it has ended before it answered", holder)
        answer = read_answer(said)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise StoreServedError(root, local_socket.why_none_listens(root, error), holder) from error
    except (OSError, FrameError, ValueError) as error:
        raise StoreServedError(root, f"it has not taken the group's offsets: {error}", holder) from error
    if isinstance(answer, Exception):
        raise answer
    if not isinstance(answer, CommitOutcome):
        raise StoreServedError(root, "its answer is none", holder)
