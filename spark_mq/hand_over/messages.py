"""What sink and broker say to each other over the local socket.

    sink    a HandOver: the staged batch, by the names of its files, and whose store the sink takes it for
    broker  {"state": "waiting"}                     once a second, while other batches are committed
            {"state": "taken", "logEnd": …}          the commit begins
            {"state": "working"}                     once a second
            {"done": [already done, rows]}  or  {"error": …}, and the broker hangs up

Everything is looked through before it is used: an error is a ValueError.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeVar

from spark_mq.hand_over.staged_commit import StagedCommit
from storage import errors
from storage.batch.commit import CommitOutcome
from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch, StagedSegment
from storage.errors import StorageError
from storage.rules.topics import RowWish

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
    """How long it may wait for other batches."""
    is_sync: bool = False
    """Whether the log is to be on the disk before the answer, whatever the broker's flush policy is."""
    copies: int | None = None
    """How many the batch has when it is done, the master's among them; None = as the broker's settings say."""
    slave_timeout_ms: int | None = None
    """How long it may lack them; None = as the broker's settings say."""


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
        "begunAt": commit.begun_at,
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


def begun_at(document: Mapping[str, Any]) -> int | None:
    """Where the log ended when the commit began, if that is what the broker says."""
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
    """How the commit ended: its outcome, or the error that a commit of the sink's own would raise; None = it goes on.

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
