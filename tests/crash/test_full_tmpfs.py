"""A tmpfs without room, mounted in a namespace of its own: the kernel's own errors, page by page, and no signal.

On a tmpfs a hole takes a page even from a reader that looks at it through a map; there is none on a full one, and the process ends by
SIGBUS. So each story is told by a process of its own.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.verify_store import verify_store
from storage import MessageStore, open_store
from storage.errors import StorageError, StoreNotWritableError
from tests.crash.sink_store import SETTINGS, SinkStore, assert_holds_exactly, found_rows, rows_of
from tests.support.places import PROJECT

pytestmark = [pytest.mark.crash, pytest.mark.slow]

NOT_MOUNTED = 77
IN_A_SMALL_TMPFS = f'mount -t tmpfs -o size=16m none "$0" || exit {NOT_MOUNTED}; exec "$1" -m {__name__} "$0" "$2"'
PAGE_BYTES = mmap.PAGESIZE
QUEUES = 16
BIG_FILES = SETTINGS.replace("mappedFileSizeCommitLog=8192", f"mappedFileSizeCommitLog={256 << 20}")
"""Of a log file larger than the disk nearly all is a hole."""


class Ballast:
    """A file that takes all the room that is left, but for some pages."""

    def __init__(self, place: Path) -> None:
        self._path = place / "ballast"

    def leave(self, pages: int) -> None:
        with self._path.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(PAGE_BYTES))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            file.truncate(max(0, os.fstat(file.fileno()).st_size // PAGE_BYTES - pages) * PAGE_BYTES)

    def drop(self) -> None:
        self._path.unlink()


def place_without_room(error: BaseException) -> str:
    """The kind of file that had no room, as the error tells it. Any other error comes out."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno == errno.ENOSPC):
        cause = cause.__cause__
    named = re.search("store/([a-z_]+)", str(error))
    if cause is None or named is None:
        raise error
    return named[1]


class Putter:
    """Puts message after message, and knows which were acknowledged."""

    def __init__(self, place: Path, settings: str, *, sync_flush: bool) -> None:
        self.sinks = SinkStore(SinkStore.make_place(place, settings), sync_flush=sync_flush)
        self.acknowledged: dict[str, bytes] = {}
        self.asked: dict[str, bytes] = {}

    def put(self, store: MessageStore, body_bytes: int = 700) -> None:
        """Each into another queue, a topic at a time: that takes room in every kind of file."""
        number, key = len(self.asked), f"key-{len(self.asked)}"
        self.asked[key] = body = key.encode().ljust(body_bytes, b".")
        topic, queue_id = f"topic-{number // QUEUES}", number % QUEUES
        store.put(topic, body, keys=key, queue_id=queue_id, queue_count=QUEUES)
        self.acknowledged[key] = body

    def judge(self) -> None:
        """A reader is served all that was acknowledged and nothing that was not asked for, each once and whole."""
        with open_store(self.sinks.root) as store:
            served = [(found.row.key, found.row.body.encode()) for found in found_rows(store)]
            assert len(dict(served)) == len(served), "a message is served twice"
            assert self.acknowledged.items() <= dict(served).items() <= self.asked.items()


def puts_into_a_store_that_is_open(place: Path, sync_flush: bool) -> None:
    _puts(place, sync_flush=sync_flush, opens_when_full=False)


def puts_into_a_store_that_is_opened(place: Path, sync_flush: bool) -> None:
    _puts(place, sync_flush=sync_flush, opens_when_full=True)


def _puts(place: Path, *, sync_flush: bool, opens_when_full: bool) -> None:
    """With no page of room, with one, and so on until there is enough: whatever file has none, the outcome is the same."""
    putter, ballast = Putter(place, SETTINGS, sync_flush=sync_flush), Ballast(place)
    places: set[str] = set()
    for pages in range(9):
        store = putter.sinks.open()
        putter.put(store)
        if opens_when_full:
            store.release()
            os.unlink(f"{putter.sinks.root}/spark_mq/hint.json")  # as after a kill: opening recovers
        ballast.leave(pages)
        try:
            if opens_when_full:
                store = putter.sinks.open()
            for _ in range(6):
                putter.put(store)
        except (StorageError, OSError) as error:
            places.add(place_without_room(error))
        putter.judge()
        try:
            store.close()
        except (StorageError, OSError) as error:
            places.add(place_without_room(error))
        putter.judge()
        ballast.drop()
    assert places >= {"commitlog", "consumequeue"}, places
    store = putter.sinks.open()
    putter.put(store)
    store.close()
    putter.judge()
    assert not verify_store(putter.sinks.root).findings


def puts_until_no_record_fits(place: Path, sync_flush: bool) -> None:
    """The usual way to fill a disk: refused before a byte of the record is written, and taken again as soon as there is room."""
    putter, ballast = Putter(place, BIG_FILES, sync_flush=sync_flush), Ballast(place)
    store = putter.sinks.open()
    putter.put(store)
    ballast.leave(1_000)
    refused = None
    while refused is None:
        try:
            putter.put(store, 60_000)
        except StoreNotWritableError as error:
            refused = error
    assert "more bytes of log" in str(refused)
    assert refused.retriable
    assert len(putter.acknowledged) > 40
    end = store.log_end
    ballast.leave(0)
    with pytest.raises(StoreNotWritableError):
        putter.put(store, 60_000)
    assert store.log_end == end
    putter.judge()  # by a look into a log whose end is followed by a hole
    ballast.drop()
    putter.put(store, 60_000)
    store.close()
    putter.judge()
    assert not verify_store(putter.sinks.root).findings


def commits(place: Path, sync_flush: bool) -> None:
    """A batch of a sink, staged while there was room: a call after the other, until one finds enough of it."""
    store, ballast = SinkStore(SinkStore.make_place(place), sync_flush=sync_flush), Ballast(place)
    store.commit(rows_of(0))
    rows = rows_of(1, 80, 40)
    places: set[str] = set()
    segments = store.stage(rows)
    is_done = False
    for pages in itertools.islice(itertools.cycle((0, 1, 2, 3, 4)), 40):
        ballast.leave(pages)
        try:
            outcome = store.commit(rows, segments)
        except (StorageError, OSError) as error:
            places.add(place_without_room(error))
        else:
            break
        with open_store(store.root) as reader:
            found = found_rows(reader)
        is_decided = any(name.endswith("-1.json") for name in os.listdir(f"{store.root}/spark_mq/intents"))
        is_done = is_decided or any(one.row == rows.rows[0] for one in found)
    assert outcome.already_done == is_done
    assert len(places) >= 3, places
    ballast.drop()
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows])


STORIES: dict[str, Callable[[Path, bool], None]] = {
    story.__name__: story
    for story in (
        puts_into_a_store_that_is_open,
        puts_into_a_store_that_is_opened,
        puts_until_no_record_fits,
        commits,
    )
}


@pytest.mark.parametrize("story", list(STORIES))
def test_a_full_tmpfs_refuses_and_loses_nothing(tmp_path: Path, story: str) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not there")
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", IN_A_SMALL_TMPFS]
    command += [str(tmp_path), sys.executable, story]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if process.returncode == NOT_MOUNTED or "unshare:" in process.stderr:
        pytest.skip(f"no tmpfs can be mounted: {process.stderr.strip()}")
    assert process.returncode != -signal.SIGBUS, "a hole was looked at through a map"
    assert process.returncode == 0, process.stderr


if __name__ == "__main__":
    for sync_flush in (False, True):
        directory = Path(sys.argv[1]) / f"{sync_flush=}"
        directory.mkdir()
        STORIES[sys.argv[2]](directory, sync_flush)
        shutil.rmtree(directory)
