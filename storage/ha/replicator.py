"""A log served to slaves beside its writer: a Spark sink's store, a broker's. Reads only; takes no lock."""

from __future__ import annotations

import logging
import threading

from storage.errors import StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.ha.listener import ListenerSettings, ReplicationListener
from storage.ha.log_reader import LogReader
from storage.ha.replicas import Replicas
from storage.put.settings import DEFAULT_LOG_FILE_SIZE
from storage.store import MessageStore

_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


class Replicator:
    """Serves what of a store's log is whole, from now until `close`. `store` is open for reading, and closed at the end."""

    def __init__(self, store: MessageStore, settings: ListenerSettings, replicas: Replicas | None = None) -> None:
        """Raises OSError where it cannot listen."""
        self._store = store
        self._end = store.log_end
        files = store.layout
        file_size = files.log_file_size_bytes or store.log.file_size_bytes or DEFAULT_LOG_FILE_SIZE
        reader = LogReader(lambda: files.commit_log(LocalFileSystem()), lambda: self._end, file_size)
        self.listener = ReplicationListener(reader, settings, replicas)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="replicator", daemon=True)

    @property
    def log_end(self) -> int:
        """Behind the last whole record that was seen."""
        return self._end

    def start(self) -> None:
        self.listener.start()
        self._thread.start()

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                self._store.refresh()
            except (StorageError, OSError):
                _LOG.exception("how far %s goes is not known for now", self._store.root)
                self._closing.wait(_PAUSE_SECONDS)
                continue
            if self._store.log_end != self._end:
                self._end = self._store.log_end
                self.listener.wake()

    def close(self) -> None:
        """Hangs up on all slaves."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.listener.close()
        self._store.close()
