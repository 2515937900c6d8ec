"""A store that follows a master, opened and running: the store, its duties and its follower.

    with open_following("/data/replica", "10.0.0.7:10912") as following: …

The store is locked, and readable by anybody meanwhile; nobody else writes there until `promote`.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import SlaveHandshake
from storage.ha.epochs import EpochFile, FollowedEpochs
from storage.ha.follower import Follower, MasterAddress, MasterAsks, Switching
from storage.ha.session import RECONNECT_MS, Timing
from storage.ha.truncation import truncate_store
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.store import open_store
from storage.tables.masters import followed_master, forget_followed_master, note_followed_master


class Following:
    """One store and its follower. A context manager that closes both."""

    def __init__(self, root: str, config: StoreConfig | str | None, service: PutService) -> None:
        self._root = root
        self._config = config
        self.service = service
        self.follower: Follower
        self.reopened: Callable[[PutService], None] = lambda service: None
        """Hears of the store that is open from now on, in the follower's thread."""

    def switching(self, identity: SlaveHandshake) -> Switching:
        """What a follower of a controller's masters needs of this store."""
        return Switching(identity, FollowedEpochs(EpochFile(LocalFileSystem(), self._root)), self._cut)

    def _cut(self, end: int, confirm_offset: int) -> PutService:
        self.service.close()
        truncate_store(self._root, end, config=self._config, confirm_offset=confirm_offset, holds_back=True)
        store = open_store(self._root, config=self._config, read_only=False, holder="follower", holds_back=True)
        self.service = PutService(store)
        self.reopened(self.service)
        return self.service

    def close(self) -> None:
        """Hangs up, and closes the store cleanly."""
        self.follower.close()
        self.service.close()

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_following(
    root: str,
    master: str | MasterAddress,
    *,
    config: StoreConfig | str | None = None,
    timing: Timing | None = None,
    asks: MasterAsks | None = None,
    adopts: bool = False,
    reconnect_ms: int = RECONNECT_MS,
    identity: SlaveHandshake | None = None,
) -> Following:
    """The store at ROOT, made where none is, follows a master from now on: `master` is its listener's address, or says it.

    With `adopts` a store with messages that followed nobody is taken for a copy of the master's. With `identity` the master is one of
    a controller's, who may change, and readers see what they call confirmed.
    Raises what `open_store` raises; StoreRefusedError for a store with messages of its own.
    """
    is_controlled = identity is not None
    store = open_store(root, config=config, read_only=False, create=True, holder="follower", holds_back=is_controlled)
    try:
        files = LocalFileSystem()
        followed = followed_master(files, store.root)
        if followed is None and store.log.files and store.config.mode.broker_role != "SLAVE" and not adopts:
            reason = "it has messages, and has followed no master: what it holds may be its own"
            hint = "begin with an empty directory, or say that it is a copy of the master's store (--adopt)"
            raise StoreRefusedError(store.root, reason, hint=hint)
        note_followed_master(files, store.root, master if isinstance(master, str) else followed or "its master")
        service = PutService(store)
    except BaseException:
        store.close()
        raise
    address = (lambda: master) if isinstance(master, str) else master
    following = Following(store.root, config, service)
    switching = None if identity is None else following.switching(identity)
    following.follower = Follower(service, address, timing, asks=asks, reconnect_ms=reconnect_ms, switching=switching)
    following.follower.start()
    return following


def promote(root: str, *, config: StoreConfig | str | None = None) -> bool:
    """The store at ROOT follows nobody any more, and may be written; whether it followed a master before.

    Opened once more as a follower, so that what a crash has cut off of its last record is no message of its own. What its master's
    tables count further than its log goes is lowered.
    Its follower must have ended. Raises StoreLockedError while it runs, and what `open_store` raises.
    """
    files = LocalFileSystem()
    if followed_master(files, root) is None:
        return False
    with open_store(root, config=config, read_only=False, holder="follower") as store:
        store.lower_offsets()
        return forget_followed_master(files, root)
