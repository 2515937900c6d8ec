"""The log of a store that follows a master: bytes appended as they come, records checked and dispatched, a torn end cut.

    received* ─▶ settle: whole records checked, in queues and index, acknowledged as far as their bytes stand here

A crash leaves a prefix of the master's log; the next opening cuts it behind its last whole record, and zeroes the rest.
Java: DefaultHAClient.dispatchReadRequest, ReputMessageService.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.ha.events import Received
from storage.put.raw_records import RawCheck
from storage.put.store_writer import StoreWriter
from storage.service.put_service import PutService


class LastRecord(NamedTuple):
    """The last whole record of a log, byte for byte."""

    commitlog_offset: int
    topic: str
    content: bytes


class FollowedLog:
    """The end of a follower's log. `service` has the store, opened by holder "follower"; one thread appends."""

    def __init__(self, service: PutService) -> None:
        self._service = service
        self._taken: list[Received] = []
        with service.exclusive() as store:
            config = store.config
            self._check = RawCheck(store.log, config.delay.delays_ms, config.commit_log.check_crc_on_recover)
            self.file_size_bytes = store.settings.log_file_size_bytes
            self.end = self.raw_end = store.writer.log_end if store.log.files else 0

    @property
    def failure(self) -> BaseException | None:
        """Why the store takes nothing more until it is opened again; None = it does."""
        return self._service.failure

    def begin_at(self, start: int) -> None:
        """Of a log without bytes: the master is asked for what stands from there on, where a record or a file begins.

        1 stands for 0: a master of Java's sends no more than its last file to who asks for 0, and the first byte of a log is 0.
        """
        assert self.raw_end == 0
        self.raw_end = start
        self.end = 0 if start == 1 else start

    def take(self, received: Received) -> None:
        """Bytes that follow `raw_end`, within one file. `settle` writes them."""
        if received.body:
            if not self.raw_end:
                self.end = received.commitlog_offset
            self._taken.append(received)
            self.raw_end = received.commitlog_offset + len(received.body)

    def settle(self, confirmed: int | None = None) -> int:
        """Write, check and dispatch what was taken; returns up to where it may be acknowledged.

        `confirmed` is up to where a controller's master calls the log confirmed: what lies behind waits in the log.

        Raises CorruptRecordError for what is no record, which is cut then; nothing of it was acknowledged. StoreNotWritableError where
        the disk has no room: `cut_torn_end` then begins anew. If the service has failed, and with OSError, the store is at its end.
        """
        if confirmed is not None:
            self._service.heed_confirmed(confirmed)
        if self.raw_end == self.end:
            return self.end
        with self._service.exclusive() as store:
            self._write(store.writer)
            try:
                found = self._check.whole_records(self.end, self.raw_end)
            except CorruptRecordError:
                self._cut(store.writer)
                raise
            if found.end > self.end:
                store.writer.enter_raw(found)
                self.end = found.end
        return self.raw_end

    def cut_torn_end(self) -> int:
        """What is no whole record goes; returns where the log ends then: there a master goes on."""
        with self._service.exclusive() as store:
            self._cut(store.writer)
        return self.end

    def last_record(self) -> LastRecord | None:
        """None where it is not known which one that is."""
        with self._service.exclusive() as store:
            last = store.writer.ends.last_record
            if last is None or not self.end:
                return None
            store.log.list_files()
            try:
                message = store.log.message_at(last.commitlog_offset, self.end)
                content = store.log.bytes_at(last.commitlog_offset, message.size_bytes)
            except (OffsetOutOfRangeError, CorruptRecordError):
                return None
            return LastRecord(last.commitlog_offset, message.topic, content)

    def _write(self, writer: StoreWriter) -> None:
        """What was taken, as few pieces as there are files."""
        taken, self._taken = self._taken, []
        for _, of_file in groupby(taken, lambda received: received.commitlog_offset // self.file_size_bytes):
            pieces = list(of_file)
            writer.append_raw(pieces[0].commitlog_offset, b"".join(piece.body for piece in pieces))

    def _cut(self, writer: StoreWriter) -> None:
        self._taken.clear()
        if self.raw_end > self.end:
            writer.cut_raw(self.end)
            self.raw_end = self.end
