"""A RocksDB directory of a broker, opened as it lies: no lock is taken, and no file of the broker's is made or changed.

RocksDB opens a temporary directory of links to the broker's files, so that what it and its Python package write goes there. It opens
every data file at once; from then on the links are not needed, and a file that the broker deletes stays readable. What the broker holds in
memory is not seen: entries of queues have no write-ahead log (Java: AbstractRocksDBStorage, setDisableWAL).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocksdict import AccessType, Options, Rdict

_LOOKS = 5
"""How often a directory is opened whose files are replaced meanwhile."""
INSTALL = 'pip install "spark_mq[rocksdb]"'


class RocksDBUnreadable(Exception):
    """Why a RocksDB directory cannot be read; the text begins with the reason."""


def is_rocksdb(names: set[str]) -> bool:
    """Whether a directory with these names is a RocksDB."""
    return "CURRENT" in names


class RocksDB:
    """The column families of one directory, as they were when it was opened. Java: AbstractRocksDBStorage."""

    def __init__(self, directory: str, families: Sequence[str]) -> None:
        """Raises RocksDBUnreadable without the package `rocksdict`, and for files that it cannot read."""
        try:
            from rocksdict import AccessType, Options, Rdict
        except ImportError as error:
            raise RocksDBUnreadable(f"the package rocksdict is not installed: {INSTALL}") from error
        for left in reversed(range(_LOOKS)):
            try:
                self._database = _open(directory, families, Rdict, Options, AccessType)
                break
            except Exception as error:  # rocksdict raises no narrower class
                if not left:
                    raise RocksDBUnreadable(f"{directory} cannot be read: {error}") from error
        try:
            self._families = {family: self._database.get_column_family(family) for family in families}
        except Exception as error:
            self._database.close()
            raise RocksDBUnreadable(f"{directory} cannot be read: {error}") from error

    def items(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """All keys with their values, in the order of the keys. Raises RocksDBUnreadable."""
        try:
            yield from self._families[family].items()
        except Exception as error:
            raise RocksDBUnreadable(f"{self._database.path()}: {error}") from error

    def joined(self, family: str, start: bytes, end: bytes) -> bytes:
        """The keys in [start, end), each followed by its value, as one buffer. Raises RocksDBUnreadable."""
        from rocksdict import ReadOptions

        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        try:
            return b"".join(chain.from_iterable(self._families[family].items(from_key=start, read_opt=options)))
        except Exception as error:
            raise RocksDBUnreadable(str(error)) from error

    def first_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        """The first key in [start, end). Raises RocksDBUnreadable."""
        try:
            key: bytes | None = next(self._families[family].keys(from_key=start), None)
        except Exception as error:
            raise RocksDBUnreadable(str(error)) from error
        return key if key is not None and key < end else None

    def close(self) -> None:
        for family in self._families.values():
            family.close()
        self._database.close()


def _open(
    directory: str,
    families: Sequence[str],
    database: type[Rdict],
    options: type[Options],
    access: type[AccessType],
) -> Rdict:
    def plain() -> Options:
        chosen = options(raw_mode=True)
        chosen.create_if_missing(False)
        chosen.set_max_open_files(-1)  # each data file is opened now
        return chosen

    links = tempfile.mkdtemp(prefix="spark_mq-rocksdb-")
    try:
        for name in os.listdir(directory):
            if name != "LOCK":
                os.symlink(os.path.abspath(f"{directory}/{name}"), f"{links}/{name}")
        others = {family: plain() for family in families if family != "default"}
        return database(links, plain(), column_families=others, access_type=access.read_only(False))
    finally:
        shutil.rmtree(links, ignore_errors=True)
