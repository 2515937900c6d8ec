"""An open store that follows a writer, another process or its own: its ends move from look to look."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable

from storage.ends.queue_ends import QueueEnds
from storage.ends.recovery_plan import RecoveryPlan
from storage.errors import OffsetOutOfRangeError, StoreNotFoundError
from storage.log.commit_log import LOOKS
from storage.log.gaps import warning_of
from storage.recovery.opening import read_plan
from storage.settings.load import StoreConfig
from storage.store_layout import StoreLayout
from storage.store_reader import StoreReader


class FollowedStore(StoreReader):
    """The looking half of a `MessageStore`. Changes no file."""

    config: StoreConfig
    layout: StoreLayout
    plan: RecoveryPlan
    _clock: Callable[[], int]
    _queue_ends: QueueEnds | None = None
    _has_had_files = False
    _followed_end = 0
    """Up to where `_queue_ends` has looked at what the own writer has dispatched."""

    @property
    @abstractmethod
    def _own_end(self) -> int:
        """Up to where the own writer has dispatched; 0 without one."""

    @property
    def log_end(self) -> int:
        """Where the validated log ends. The own writer knows; nothing is read for it then."""
        return self._own_end or self._ends.log_end

    def refresh(self) -> bool:
        """Look at what a running writer did meanwhile: new records, queues and topics. Returns whether anything changed.

        Cheap when nothing did, and otherwise in proportion to the queues that got messages. A log that was cut below what was
        seen (a broker's recovery) is opened anew. Raises StoreNotFoundError where the log had files and has none: its last file never
        expires, so the store is not mounted any more.
        """
        self._has_had_files |= bool(self.log.files)
        self.log.list_files()
        if self._has_had_files and not self.log.files:
            raise StoreNotFoundError(self.root, "the log, which was there before,")
        if not self._ends.log_was_cut():
            return self._ends.follow()
        self.log.close()
        self.queues.close()
        self.queues = self.layout.consume_queues(self._file_system)
        self._look_at_all()
        return True

    def _look_at_all(self) -> None:
        """Where log and queues end, from the beginning; once more where files expired meanwhile."""
        for left in reversed(range(LOOKS)):
            try:
                self.plan = read_plan(self.root, self.config, self._file_system, self.log, self.queues)
                self._queue_ends = self._ends_of_plan()
                if (text := warning_of(self.root, self.plan.gaps)) is not None:
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
                return
            except OffsetOutOfRangeError:
                if not left:
                    raise
                self.log.list_files()
                self.queues.close()
                self.queues = self.layout.consume_queues(self._file_system)

    @property
    def _ends(self) -> QueueEnds:
        if self._queue_ends is None:
            self._queue_ends = self._ends_of_plan()
            self._followed_end = self.plan.dispatch_end
        if self._followed_end < self._own_end:
            self._followed_end = self._own_end
            self._queue_ends.follow()
        return self._queue_ends

    def _ends_of_plan(self) -> QueueEnds:
        check_crc = self.config.commit_log.check_crc_on_recover
        return QueueEnds(self.log, self.queues, self.plan, self._clock, check_crc=check_crc)
