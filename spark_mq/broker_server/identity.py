"""Which id a broker has at its controller, in ROOT/brokerIdentity; applied for under a check code that ROOT/brokerIdentity-temp keeps.

    brokerIdentity-temp   cluster#name#id#address;ms     applied for, and perhaps given; there until the broker has registered
    brokerIdentity        cluster#name#id                given

So whoever is killed amid it applies again under the same code, and gets the same id. Java: BrokerMetadata, TempBrokerMetadata.
Departure: Java deletes the first file when it writes the second. Here an id lapses that nobody registers, and the code says that this
one was never registered.
"""

from __future__ import annotations

from typing import NamedTuple

from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem

_FILE, _APPLIED = "brokerIdentity", "brokerIdentity-temp"


class Applied(NamedTuple):
    """An id, and the code under which it is applied for."""

    broker_id: int
    check_code: str


class IdentityFiles:
    """The identity that a store keeps for one broker name of one cluster."""

    def __init__(self, files: LocalFileSystem, root: str, cluster: str, broker_name: str) -> None:
        self._files = files
        self._root = root
        self._names = cluster, broker_name

    def broker_id(self) -> int | None:
        """The one that was given. Raises StoreRefusedError for another broker's store."""
        found = self._read(_FILE, 3)
        return None if found is None else int(found[2])

    def applied(self) -> Applied | None:
        """What was applied for. Raises StoreRefusedError."""
        found = self._read(_APPLIED, 4)
        return None if found is None else Applied(int(found[2]), found[3])

    def apply(self, applied: Applied) -> None:
        """Before the controller is asked. Durable on return."""
        self._write(_APPLIED, str(applied.broker_id), applied.check_code)

    def give_up(self) -> None:
        """Another broker has that id."""
        self._forget(_APPLIED)

    def keep(self, broker_id: int) -> None:
        """The id was given. Durable on return."""
        self._write(_FILE, str(broker_id))

    def registered(self) -> None:
        """The controller has the address, too: the id is this broker's for good."""
        self._forget(_APPLIED)

    def lapsed(self) -> bool:
        """The controller does not know the id: it is applied for again, as long as it was never registered. Whether it is."""
        if self.applied() is None:
            return False
        self._forget(_FILE)
        return True

    def _forget(self, name: str) -> None:
        if self._files.exists(f"{self._root}/{name}"):
            self._files.unlink(f"{self._root}/{name}")
            self._files.sync(self._root)

    def _write(self, name: str, *texts: str) -> None:
        self._files.make_directories(self._root)
        self._files.replace(f"{self._root}/{name}", "#".join((*self._names, *texts)).encode())

    def _read(self, name: str, parts: int) -> list[str] | None:
        content = self._files.read_file(f"{self._root}/{name}")
        if not content:
            return None
        found = content.decode(errors="replace").strip().split("#")
        if len(found) != parts or not found[2].isdigit():
            raise StoreRefusedError(self._root, f"{name} says {content[:80]!r}, which is no broker's identity")
        if tuple(found[:2]) != self._names:
            raise StoreRefusedError(self._root, f"it is broker {found[1]}'s of cluster {found[0]}, as {name} says")
        return found
