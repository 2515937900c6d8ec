"""The broker's side of a sink's hand-over: commits batches that sinks on this machine have staged into the broker's open store.
It also stores the positions of queries that read the store as their groups' offsets (`hand_over/messages.py`).

    accepting   a thread for each connection ─▶ check of user and directory ─▶ the batch waits for earlier ones
    committing  a thread: one batch after the other, by `commit_staged`; the put lock is released between two slices

As in every commit, the intent and the ledger on disk decide. If a sink hangs up before its batch's turn, the batch is dropped. A batch
that has started is finished, even if its sink has gone. If the broker dies meanwhile, the next opening finishes the intent.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import ANSWER_BYTES_MOST, REQUEST_BYTES_MOST, FrameError
from spark_mq.hand_over.messages import (
    WAITING,
    WORKING,
    HandOver,
    Offsets,
    are_offsets,
    commit_staged,
    error_document,
    outcome_document,
    read_offsets,
    read_request,
    taken_document,
)
from storage.batch.commit import CommitOutcome
from storage.errors import (
    NotReplicatedError,
    ReplicasNotEnoughError,
    StorageError,
    StoreLockedError,
    StoreServedError,
)
from storage.pending import PutStatus
from storage.rules.put_guards import NO_COPIES
from storage.service.put_group import CopiesWanted
from storage.service.put_service import PutService
from storage.store import MessageStore

MOST_CONNECTIONS = 64
BEAT_SECONDS = 1.0
_REQUEST_SECONDS = 10.0
_LOG = logging.getLogger(__name__)
Committed: TypeAlias = tuple[CommitOutcome, CopiesWanted | None]
"""A batch in the log, and the copies that it waits for before the answer to its sink."""


class _SinkGoneError(Exception):
    """The sink has gone before its batch started."""


class BatchServer:
    """Takes batches for one store, from `start` to `close`."""

    def __init__(
        self,
        service: PutService,
        *,
        committed: Callable[[], None] = lambda: None,
        store_offsets: Callable[[str, Offsets], None] | None = None,
    ) -> None:
        """`committed` is called after each appended batch. `store_offsets` stores a query's position as its group's."""
        self._service = service
        self._committed = committed
        self._store_offsets = store_offsets
        self._commits = ThreadPoolExecutor(1, "batch commit")
        self._listener: socket.socket | None = None
        self._accepting = threading.Thread(target=self._accept, name="sinks' batches", daemon=True)
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_ending = False

    def start(self) -> None:
        """Listen. Without a socket the broker runs all the same, with a warning; sinks then report that they cannot reach it."""
        try:
            self._listener = local_socket.listen(self._service.root, self._service.settings.address)
        except (OSError, StorageError) as error:
            _LOG.warning("sinks on this machine cannot write %s while the broker runs: %s", self._service.root, error)
            return
        self._accepting.start()

    def close(self) -> None:
        """Takes nothing more; returns when the batch that is being committed is in the store, and its sink knows."""
        self._is_ending = True
        if self._listener is not None:
            local_socket.remove(self._service.root)
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            self._accepting.join()
            self._listener.close()
        self._commits.shutdown(cancel_futures=True)
        with self._lock:
            connections = dict(self._connections)
        for connection in connections.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # no more requests
        for thread in connections:
            thread.join()

    # Connections

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._is_ending:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._is_ending:
                    _LOG.warning("a sink was not heard: %s", error)
                    time.sleep(BEAT_SECONDS)
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="sink's batch", daemon=True)
            with self._lock:
                is_one_too_many = len(self._connections) >= MOST_CONNECTIONS
                if not is_one_too_many:
                    self._connections[thread] = connection
            try:
                if is_one_too_many:
                    raise RuntimeError(f"{MOST_CONNECTIONS} sinks are connected")
                thread.start()
            except RuntimeError as error:
                _LOG.warning("a sink was not heard: %s", error)
                connection.close()
                with self._lock:
                    self._connections.pop(thread, None)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._answer(_Sink(connection))
        except (OSError, FrameError, ValueError, _SinkGoneError) as error:
            _LOG.warning("the hand-over of a sink's batch is given up: %s", error)
        except Exception:  # whatever it is, the others go on
            _LOG.exception("a sink's batch failed")
        finally:
            with self._lock:
                del self._connections[threading.current_thread()]

    def _answer(self, sink: _Sink) -> None:
        user = local_socket.peer_user(sink.connection)
        if not local_socket.is_own_user(user):
            sink.tell(error_document(StoreServedError(self._service.root, f"batches of user {user} are not taken")))
            return
        document = local_socket.receive_frame(sink.connection, REQUEST_BYTES_MOST, _REQUEST_SECONDS)
        if document is None:
            return
        if are_offsets(document):
            sink.tell(self._take_offsets(document))
            return
        try:
            request = read_request(document)
            self._refuse_other_directory(request.directory)
        except (ValueError, StorageError, OSError) as error:
            sink.tell(error_document(_refusal(self._service.root, error)))
            return
        requested_at_s = time.monotonic()
        try:
            self._wait_for_replicas(request, sink)
            commit = self._commits.submit(self._commit, request, sink, requested_at_s)
        except ReplicasNotEnoughError as error:
            sink.tell(error_document(error))
            return
        except RuntimeError:  # the broker ends
            return
        self._wait(commit, sink, time.monotonic() + request.patience_ms / 1_000)
        if commit.cancelled():
            if not self._is_ending:  # else it hangs up, and the sink looks who has the store then
                sink.tell(error_document(StoreLockedError(self._service.root, request.patience_ms, "its broker")))
            return
        failure = commit.exception()
        if isinstance(failure, _SinkGoneError):
            raise failure
        if failure is not None:
            sink.tell(error_document(failure))
            return
        outcome, wanted = commit.result()
        try:
            self._wait_for_copies(request, wanted, sink)
        except NotReplicatedError as error:
            sink.tell(error_document(error))
        else:
            sink.tell(outcome_document(outcome))

    def _take_offsets(self, document: dict[str, Any]) -> dict[str, Any]:
        """The answer."""
        try:
            handed = read_offsets(document)
            self._refuse_other_directory(handed.directory)
            if self._store_offsets is None:
                raise StoreServedError(self._service.root, "it keeps no offsets")
            self._store_offsets(handed.group, handed.offsets)
        except (ValueError, StorageError, OSError) as error:
            return error_document(_refusal(self._service.root, error))
        return outcome_document(CommitOutcome(False, len(handed.offsets)))

    def _wait(self, commit: Future[Committed], sink: _Sink, deadline_s: float) -> None:
        """Wait until the commit is done, or cancelled before its start. Meanwhile the sink gets a beat each second."""
        while not commit.done():
            wait([commit], BEAT_SECONDS)
            if commit.done() or (time.monotonic() >= deadline_s and commit.cancel()):
                return
            try:
                sink.tell(dict(WORKING if commit.running() else WAITING))
            except OSError:
                if commit.cancel():
                    raise
                wait([commit])

    def _wait_for_replicas(self, request: HandOver, sink: _Sink) -> None:
        """Until so many are in sync that the batch may begin; other sinks' batches go on. Raises ReplicasNotEnoughError."""
        deadline_s = time.monotonic() + self._slave_timeout_ms(request) / 1_000
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                self._admitted(request, max(0.0, min(left_s, BEAT_SECONDS)))
            except ReplicasNotEnoughError:
                if left_s <= 0 or self._is_ending or self._service.acks.is_closed:
                    raise
                sink.tell(dict(WAITING))
            else:
                return

    def _wait_for_copies(self, request: HandOver, wanted: CopiesWanted | None, sink: _Sink) -> None:
        """Raises NotReplicatedError; the batch stands in the log then, and is done to the next try, which waits again."""
        if wanted is None:
            return
        deadline_s = time.monotonic() + self._slave_timeout_ms(request) / 1_000
        while (left_s := deadline_s - time.monotonic()) > 0 and not wanted.done.done():
            wait([wanted.done], min(left_s, BEAT_SECONDS))
            sink.tell(dict(WORKING))
        if self._service.acks.wait(wanted, 0) is not PutStatus.PUT_OK:
            raise NotReplicatedError(self._service.root, wanted.needed, self._slave_timeout_ms(request))

    def _slave_timeout_ms(self, request: HandOver) -> int:
        timeout_ms = request.slave_timeout_ms
        return self._service.config.replication.slave_timeout if timeout_ms is None else timeout_ms

    def _refuse_other_directory(self, directory: tuple[int, int]) -> None:
        """Raises StoreServedError for a batch that was staged in another directory. Rows staged for another address are taken."""
        root = self._service.root
        if local_socket.directory_identity(root) != directory:
            raise StoreServedError(root, f"it is of another directory than the broker's {root}")

    # The commit

    def _commit(self, request: HandOver, sink: _Sink, requested_at_s: float) -> Committed:
        """In the thread of the commits. Raises the errors of `commit_batch`, and _SinkGoneError before the start."""
        service = self._service
        try:
            sink.tell(taken_document(service.dispatched_end))
        except OSError as error:
            raise _SinkGoneError(str(error)) from error
        copies = self._admitted(request, 0)
        self._wait_for_ledger(request, copies)
        waited_s = time.monotonic() - requested_at_s
        outcome = commit_staged(service.store, request.commit, waited_s=waited_s, turn=self._turn)
        if request.is_sync and not service.settings.sync_flush:
            service.flush()
        try:
            self._committed()
        except Exception:  # the batch is there
            _LOG.exception("the broker was not notified of an appended batch")
        return outcome, service.acks.want(service.log_end, copies)

    def _admitted(self, request: HandOver, seconds: float) -> int:
        """The number of copies for the batch. Raises ReplicasNotEnoughError, before any write, if too few are in sync."""
        service = self._service
        copies = service.acks.needed_by_batch(request.copies)
        if copies != NO_COPIES:
            in_sync = service.acks.in_sync_within(service.log_end, copies, seconds)
            if in_sync < copies:
                raise ReplicasNotEnoughError(service.root, copies, in_sync)
        return copies

    def _wait_for_ledger(self, request: HandOver, copies: int) -> None:
        """Until the queues know what earlier batches have left in the log, be it confirmed late. Raises NotReplicatedError."""
        timeout_ms = self._slave_timeout_ms(request)
        if not self._service.readable_within(self._service.log_end, timeout_ms / 1_000):
            raise NotReplicatedError(self._service.root, copies, timeout_ms)

    @contextmanager
    def _turn(self) -> Iterator[MessageStore]:
        """The put lock, and the tables': the sink's consumer offset is written into a file that the broker writes, too."""
        with self._service.exclusive() as store, store.tables_lock:
            yield store


class _Sink:
    """The connection to a sink. The threads of connection and commits use it, one at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def tell(self, document: dict[str, object]) -> None:
        with self._lock:
            local_socket.send_frame(self.connection, document, ANSWER_BYTES_MOST)


def _refusal(root: str, error: Exception) -> Exception:
    return (
        error if isinstance(error, StorageError | OSError) else StoreServedError(root, f"its batch is refused: {error}")
    )
