"""A RocksDB directory of a broker, opened as it lies: no lock is taken, and no file of the broker's is made or changed.

RocksDB opens a temporary directory of links to the broker's files, so that what it and its Python package write goes there. It opens
every data file at once; from then on the links are not needed, and a file that the broker deletes stays readable. What the broker holds
in memory is not seen: entries of queues have no write-ahead log (Java: AbstractRocksDBStorage, setDisableWAL).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocksdict import AccessType, Options, Rdict, ReadOptions

_LOOKS = 5
"""How often a directory is opened whose files are replaced meanwhile."""
INSTALL = 'pip install "spark_mq[rocksdb]"'
_PREFIX = "spark_mq-rocksdb-"
_LINKS = re.compile(rf"\S*/{_PREFIX}[^/\s]*/")
"""The links' directory in RocksDB's texts, which is gone when somebody reads them, and has another name each time."""


class RocksDBUnreadable(Exception):
    """Why a RocksDB directory cannot be read; the text begins with the reason."""


class RocksDB:
    """The column families of one directory, as they were when it was opened. Java: AbstractRocksDBStorage."""

    def __init__(self, directory: str, families: Sequence[str]) -> None:
        """Families that the directory lacks are empty. Raises RocksDBUnreadable without the package `rocksdict`, and for files that it
        cannot read.
        """
        try:
            from rocksdict import AccessType, Options, Rdict
        except ImportError as error:
            raise RocksDBUnreadable(f"the package rocksdict is not installed: {INSTALL}") from error
        for left in reversed(range(_LOOKS)):
            try:
                with _unreadable():
                    self._database, found = _open(directory, families, Rdict, Options, AccessType)
                break
            except RocksDBUnreadable as error:
                if not left:
                    raise RocksDBUnreadable(f"{directory} cannot be read: {error}") from error
        try:
            with _unreadable():
                self._families = {family: self._database.get_column_family(family) for family in found}
        except RocksDBUnreadable:
            self._database.close()
            raise

    def items(self, family: str) -> list[tuple[bytes, bytes]]:
        """All keys with their values, in the order of the keys. Raises RocksDBUnreadable."""
        if family not in self._families:
            return []
        with _unreadable():
            found = list(self._families[family].items())
            self._prove_end(family, found[-1][0] + b"\0" if found else b"", None)
            return found

    def joined(self, family: str, start: bytes, end: bytes, unit_bytes: int, count: int) -> bytes:
        """The keys in [start, end), each followed by its value, as one buffer: `count` units of `unit_bytes` unless some are missing.

        Raises RocksDBUnreadable.
        """
        with _unreadable():
            bound = self._until(end)
            read = b"".join(chain.from_iterable(self._families[family].items(from_key=start, read_opt=bound)))
            if len(read) != unit_bytes * count:
                last = read[-unit_bytes:][: len(start)]
                self._prove_end(family, last + b"\0" if last else start, end)
            return read

    def first_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        """The first key in [start, end). Raises RocksDBUnreadable."""
        with _unreadable():
            key: bytes | None = next(self._families[family].keys(from_key=start, read_opt=self._until(end)), None)
            if key is None:
                self._prove_end(family, start, end)
            return key

    def _prove_end(self, family: str, start: bytes, end: bytes | None) -> None:
        """Raise what RocksDB has found instead of a next key: the iterators above end at a damaged block as at the last key."""
        iterator = self._families[family].iter(None if end is None else self._until(end))
        iterator.seek(start)
        if iterator.valid():
            raise RocksDBUnreadable("an iterator ended before the last key")
        iterator.status()

    @staticmethod
    def _until(end: bytes) -> ReadOptions:
        from rocksdict import ReadOptions

        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        return options

    def close(self) -> None:
        for family in self._families.values():
            family.close()
        self._database.close()


@contextmanager
def _unreadable() -> Iterator[None]:
    try:
        yield
    except RocksDBUnreadable:
        raise
    except Exception as error:  # rocksdict raises no narrower class
        raise RocksDBUnreadable(_LINKS.sub("", str(error))) from error


def _open(
    directory: str,
    families: Sequence[str],
    database: type[Rdict],
    options: type[Options],
    access: type[AccessType],
) -> tuple[Rdict, list[str]]:
    def plain() -> Options:
        chosen = options(raw_mode=True)
        chosen.create_if_missing(False)
        chosen.set_max_open_files(-1)  # each data file is opened now
        return chosen

    links = tempfile.mkdtemp(prefix=_PREFIX)
    try:
        for name in os.listdir(directory):
            if name != "LOCK":
                os.symlink(os.path.abspath(f"{directory}/{name}"), f"{links}/{name}")
        there = database.list_cf(links, plain())
        found = [family for family in families if family in there]
        others = {family: plain() for family in found if family != "default"}
        return database(links, plain(), column_families=others, access_type=access.read_only(False)), found
    finally:
        shutil.rmtree(links, ignore_errors=True)
