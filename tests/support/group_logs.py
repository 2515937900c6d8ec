"""The store of one member of a DLedger group, without the group: a test says what is committed, and when the member's files change."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import make_entry
from storage import open_store
from storage.errors import StoreNotWritableError
from storage.format.dledger import ENTRY_HEAD_SIZE, place_of_next
from storage.format.record import HEADER_STRUCTS, Message, encode_record
from storage.service.put_service import PutService
from storage.store import MessageStore

FILE_BYTES = 4_096
CONFIG = (
    f"mappedFileSizeCommitLog={FILE_BYTES}\nmappedFileSizeConsumeQueue=2000\nbrokerIP1=127.0.0.1\nlistenPort=10911\n"
    "brokerName=b\nenableDLegerCommitLog=true\ndLegerGroup=g\ndLegerSelfId=n0\nmessageDelayLevel=1s 2s\n"
)


class FakeGroupLog:
    """A `GroupLog` on a real member's files."""

    def __init__(self, root: Path, *, leads: bool = True) -> None:
        self.root = root
        self.files = MemberFiles(f"{root}/dledger-n0", file_size_bytes=FILE_BYTES)
        self.leads = leads
        self.has_own_queues = True
        self.committed_end = 0
        self.commits = True
        """Whether a majority takes entries at once."""
        self.refusal: str | None = None
        self.is_full = False
        self.lost: str | None = None
        self.term = 1
        found = self.files.restored()
        self._index, self._end = found.end_index, found.end_place
        self._changed = threading.Condition()

    def refuse(self) -> None:
        if self.refusal is not None:
            raise StoreNotWritableError(str(self.root), self.refusal)

    def propose(self, bodies: Sequence[bytes], place: int) -> None:
        entries = []
        for body in bodies:
            size = ENTRY_HEAD_SIZE + len(body)
            start = place_of_next(self._end, size, FILE_BYTES)
            self._index += 1
            entries.append(make_entry(self._index, self.term, start, body))
            self._end = start + size
        assert entries[0].place == place
        self.files.append(entries)
        if self.commits:
            self.commit()

    def commit(self) -> None:
        with self._changed:
            self.committed_end = self._end
            self._changed.notify_all()

    def receive(self, topic: str, number: int, *, body: bytes = b"x" * 100) -> None:
        """An entry of the leader's comes: message `number` of the topic's queue 0. It is not committed yet."""
        size = len(record_at(topic, number, 0, body=body)) + ENTRY_HEAD_SIZE
        start = place_of_next(self._end, size, FILE_BYTES)
        self._index, self._end = self._index + 1, start + size
        record = record_at(topic, number, start, body=body)
        self.files.append([make_entry(self._index, self.term, start, record)])

    @property
    def end(self) -> int:
        return self._end

    @property
    def end_index(self) -> int:
        return self._index

    def cut(self, index: int) -> None:
        """Another leader's log ends with this entry."""
        self.files.cut(index)
        self._index, self._end, self.term = index, self.files.end_of(index), self.term + 1

    def wait(self, end: int, seconds: float | None = None) -> bool:
        with self._changed:
            while self.committed_end < end:
                if self.lost is not None:
                    raise StoreNotWritableError(str(self.root), self.lost)
                if not self._changed.wait(10 if seconds is None else min(seconds, 0.05)):
                    assert seconds is not None, "it waits without a limit"
                    return False
        return True

    def lose(self, reason: str) -> None:
        with self._changed:
            self.lost = reason
            self._changed.notify_all()

    def trim(self, minimum: int) -> None:
        self.files.trim(self.files.first_index_in(minimum))


def member_store(log: FakeGroupLog) -> MessageStore:
    """The store of that member, opened for writing."""
    conf = log.root.parent / "member.conf"
    conf.write_text(CONFIG, "utf-8")
    return open_store(
        log.root,
        config=str(conf),
        read_only=False,
        create=True,
        holder="broker",
        writes_as="owner" if log.leads else "follower",
        group=log,
        flush_disk_type="SYNC_FLUSH" if log.leads else "ASYNC_FLUSH",
    )


@contextmanager
def served(log: FakeGroupLog, *, starts_duties: bool = True) -> Iterator[PutService]:
    """With the threads that serve it."""
    service = PutService(member_store(log), starts_duties=starts_duties)
    try:
        yield service
    finally:
        log.lose("the test is over")
        with suppress(StoreNotWritableError):
            service.close()
        log.files.close()


def record_at(topic: str, number: int, place: int, *, store_time_ms: int = 1_000, body: bytes = b"x" * 100) -> bytes:
    """A record of queue 0 as another member's store stamps it; its entry's head stands at `place`."""
    message = Message(
        topic=topic,
        queue_id=0,
        queue_offset=number,
        commitlog_offset=place + ENTRY_HEAD_SIZE,
        size_bytes=HEADER_STRUCTS[0].size + len(body) + 1 + len(topic) + 2,
        flag=0,
        sys_flag=0,
        born_time_ms=store_time_ms,
        born_host=HOST,
        store_time_ms=store_time_ms,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=zlib.crc32(body) & 0x7FFFFFFF,
        body=body,
    )
    return encode_record(message)


HOST = b"\x7f\0\0\x01" + (10911).to_bytes(4, "big")
