"""A broker in controller mode: a controller makes it master or slave, and the broker restarts in that role.

    identity ─▶ registered (1003) ─▶ heartbeats (904) ─▶ a term (1003, 1002, 1004; 1008 wakes) ─▶ `RunningBroker` in its role
    store failed ─▶ closed, controllers left ─▶ silent until another term ─▶ opened, which recovers ─▶ heartbeats …

Between two roles the broker does not listen and acknowledges nothing: puts that still wait for copies get FLUSH_SLAVE_TIMEOUT.
Departure: Java keeps its listeners and its clients' connections. Java: ReplicasManager, BrokerController.changeToMaster.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import count
from typing import NamedTuple

from spark_mq.broker_server.controllers import Controllers, Position
from spark_mq.broker_server.metrics_page import MetricsPage
from spark_mq.broker_server.opening import ControllerMode, StorePlace, check_lock, opened_store
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import Configuration
from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.remoting import RemotingError
from storage.epoch_times import current_time_ms
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.ha.epochs import EpochFile, lost_epoch
from storage.ha.follower import truncate_store
from storage.ha.replicas import Role, Term, next_role
from storage.rules.response_codes import ResponseCode

HEARTBEAT_SECONDS = 1.0
_LITTLE_SECONDS = 60.0
_ASK_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_LEAST_SECONDS = 0.05
_SILENT_SECONDS = 30.0
"""Longest wait of a broker whose store has failed for the election of another one; it waits the whole time if it failed recently."""
_BEATS_OF_SILENCE = 30
"""A silent broker still sends one heartbeat of so many: a controller that does not know it elects no other broker."""
_UNKNOWN = (ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
_FILE, _APPLIED = "brokerIdentity", "brokerIdentity-temp"
_LOG = logging.getLogger(__name__)


class ControlledBroker:
    """One broker of a group, from `start` to `close`."""

    def __init__(self, configuration: Configuration, page: MetricsPage | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._configuration = configuration
        self._page = page
        settings = configuration.controllers
        assert settings is not None
        self.address = configuration.address
        self.name, cluster = configuration.broker_name, configuration.store.identity.broker_cluster_name
        self._connect = partial(Controllers, settings, cluster, self.name, self.address)
        self._controllers = self._connect()
        self._files = LocalFileSystem()
        self._root = configuration.process.store_path_root_dir
        self._identity = IdentityFiles(self._files, self._root, cluster, self.name)
        self._own_id: int | None = None
        self.role: Role | None = None
        """The current role; None = fenced."""
        self.running: RunningBroker | None = None
        self._position = Position()
        self._must_recover = True
        """Whether it is not known how far the log is: then no controller is to take this broker for alive."""
        self._place: StorePlace | None = None
        """The identity of the store's directory; None = never opened."""
        self._failure: str | None = None
        """The failure after which the store must be opened again."""
        self._is_refused = False
        """Whether its store has failed, and an opening would not heal that."""
        self._failed_term: Term | None = None
        self._failed_at = -math.inf
        self._rests_s = _RETRY_SECONDS
        self._lost_in: int | None = None
        """The epoch whose end this broker may have lost; it stays nearly silent until there is a later one."""
        self._cut_to: int | None = None
        self._due = threading.Event()
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="controllers' heartbeats", daemon=True)
        self._thread = threading.Thread(target=self._work, name="controlled broker", daemon=True)

    @classmethod
    async def start(cls, configuration: Configuration) -> ControlledBroker:
        """Returns when the store's lock is seen to be free: the broker listens when a controller has said what it is.

        Raises StoreLockedError, OSError; ListenError or ConfigurationError if its page of metrics cannot be served.
        """
        await asyncio.to_thread(check_lock, configuration)
        found = cls(configuration, await asyncio.to_thread(MetricsPage.of, configuration))
        found._heart.start()
        found._thread.start()
        return found

    async def close(self) -> None:
        """Closes the store cleanly, then leaves the controllers."""
        self._closing.set()
        self._due.set()
        await asyncio.to_thread(self._thread.join)
        try:
            await self._stop()
            await asyncio.to_thread(self._heart.join)
            await asyncio.to_thread(self._controllers.close)
        finally:
            if self._page is not None:
                await asyncio.to_thread(self._page.close)

    def look(self) -> None:
        """Ask the controller now, because something may have changed. Any thread may call this; the hint itself is not trusted."""
        self._due.set()

    # Heartbeats, in a thread of their own: a change of role takes its time

    def _beat(self) -> None:
        for number in count(1):
            if self._closing.wait(HEARTBEAT_SECONDS):
                return
            if self._lost_in is not None and number % _BEATS_OF_SILENCE:
                continue
            try:
                self._beat_once()
            except (ClientError, RemotingError) as error:
                _LOG.info("no heartbeat: %s", error)
            except Exception:  # whatever it is, the next one is sent
                _LOG.exception("no heartbeat")

    def _beat_once(self) -> None:
        """No heartbeat while the broker takes no messages: another broker must be elected."""
        if self._own_id is None or self._must_recover:
            return
        running = self.running
        if running is not None:
            if running.failure is not None:
                self.look()
                return
            self._position = running.position()
        self._controllers.heartbeat(self._own_id, self._position)

    # What the controller says

    def _work(self) -> None:
        trouble: str | None = None
        silence: str | None = None
        while not self._closing.is_set():
            waits_s, before, trouble = _ASK_SECONDS, trouble, None
            silent, silence = silence, None
            try:
                self._look()
                if silent is not None:
                    _LOG.warning("a controller has said what this broker is")
            except (ClientError, RemotingError) as error:
                if (silence := str(error)) != silent:
                    _LOG.warning("no controller says what this broker is: %s; it will ask again", error)
                waits_s = _RETRY_SECONDS
            except Exception as error:  # after any failure, ask the controller again
                if (trouble := str(error)) != before:
                    _LOG.exception("the broker cannot take its role")
                self.role, waits_s = None, _ASK_SECONDS
            if self.running is None:
                waits_s = min(waits_s, _RETRY_SECONDS)
            self._closing.wait(_LEAST_SECONDS)  # any client may send notices: limit their effect
            self._due.wait(waits_s)
            self._due.clear()

    def _look(self) -> None:
        if self.running is not None and (failure := self.running.failure) is not None:
            if not self.running.fails_by_disk:
                self._stay_refused(failure)
                return
            self._failure = failure
            self._give_way(failure, self.role)
        if self._failed_term is not None and not self._may_return(self._failed_term):
            return
        if was_away := self._must_recover:
            self._position = self._recovered()
            self._must_recover, self._failed_term = False, None
        if self._own_id is None:
            own_id = self._registered_id()
            term = self._registered(own_id)
            self._own_id = own_id  # now that the controller has the address, too
            if self._lost_in is not None:
                term = self._term()  # 1003 names no master that is not alive, be it this one
        else:
            term = self._term()
        if was_away:
            self._beat_once()
        if self._stands_aside(term):
            return
        if term.master_id is None:
            term = self._controllers.elect(self._own_id)
        role = next_role(self._own_id, self.role, term)
        cut_to, self._cut_to = self._cut_to, None
        if role is not None:  # in which it is compared anew
            self._become(role, None)
        elif self.role is not None and cut_to is not None:
            self._become(self.role, cut_to)
        elif self.running is not None:
            self.running.on_term(term)

    def _stay_refused(self, failure: str) -> None:
        """It serves reads, and is silent, so that another one is elected. For what is in its log an operator has to see to."""
        if not self._is_refused:
            self._is_refused = True
            _LOG.error(
                "%s takes nothing more (%s): its disk has not failed, so an operator opens it", self._root, failure
            )

    def _give_way(self, failure: str, role: Role | None) -> None:
        """The store takes nothing until it is opened again. A master's place is another one's then, so the controllers are left."""
        _LOG.error("%s takes nothing more (%s): it is closed, and opened again", self._root, failure)
        self._must_recover = True
        now = time.monotonic()
        self._rests_s = _RETRY_SECONDS if now - self._failed_at >= _LITTLE_SECONDS else _SILENT_SECONDS
        self._failed_at = now
        self.role = None
        self._failed_term = None if role is None else role.term
        left, self._controllers = self._controllers, self._connect()
        try:
            left.close()
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()

    def _may_return(self, failed: Term) -> bool:
        """Whether a store that has failed may be opened: the controller has said something else since, or says nothing new for long."""
        away_s = time.monotonic() - self._failed_at
        if away_s < self._rests_s or failed.master_id != self._own_id:
            return away_s >= self._rests_s
        term = self._controllers.term()
        return term.epoch > failed.epoch or term.master_id != failed.master_id or away_s >= _SILENT_SECONDS

    def _stands_aside(self, term: Term) -> bool:
        """A master that may have lost the end of its log does not write on in that epoch, where slaves may have more.

        It is silent for as long as a controller believes in brokers, again and again, until there is another epoch.
        Departure: Java begins the epoch anew, behind what slaves have of it.
        """
        if self._lost_in is None:
            return False
        if term.epoch == self._lost_in and term.master_id == self._own_id:
            _LOG.warning("the end of epoch %d may be lost here: another one is waited for", term.epoch)
            return True
        self._lost_in = None
        return False

    def _term(self) -> Term:
        assert self._own_id is not None
        try:
            return self._controllers.term()
        except ResponseError as error:
            if error.code not in _UNKNOWN:
                raise
            return self._controllers.register(self._own_id)

    def _recovered(self) -> Position:
        """The log's end before any election. Creates a missing store; at the first opening only."""
        if self._configuration.store.flush.flush_disk_type != "SYNC_FLUSH":
            self._lost_in = lost_epoch(self._files, self._root)
        epochs = EpochFile(self._files, self._root)
        with opened_store(self._configuration, "candidate", place=self._place) as store:
            self._place = self._place or StorePlace.of(store)
            end = store.writer.log_end if store.log.files else 0
            return Position(epochs.last_epoch, end, min(end, store.writer.dispatched_end))

    def _registered_id(self) -> int:
        """The identity in the store, or a new one. Raises ClientError, StoreRefusedError, OSError."""
        found = self._identity.broker_id()
        if found is not None:
            return found
        while True:
            applied = self._identity.applied()
            if applied is None:
                code = f"{self.address};{current_time_ms()}"
                applied = Applied(self._controllers.next_id(), code)
                self._identity.apply(applied)
            if self._controllers.apply_id(*applied):
                self._identity.keep(applied.broker_id)
                return applied.broker_id
            self._identity.give_up()

    def _registered(self, own_id: int) -> Term:
        """Raises ResponseError where the controller does not know the id; the next look applies anew for one that has lapsed."""
        try:
            term = self._controllers.register(own_id)
        except ResponseError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED and self._identity.lapsed():
                _LOG.warning("id %d has lapsed before it was registered: it is applied for again", own_id)
            raise
        self._identity.registered()
        return term

    # Roles

    def _become(self, role: Role, cut_to: int | None) -> None:
        try:
            self._start_as(role, cut_to)
        except Exception as error:
            if role.is_master:  # who cannot start must not be taken for one
                self._give_way(str(error), role)
            raise

    def _start_as(self, role: Role, cut_to: int | None) -> None:
        _LOG.info("%s of epoch %d: master is %s", self.name, role.term.epoch, role.term.master_address)
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self.role = self._cut_to = None  # what a follower of before has said counts no longer
        configuration = self._configured(role)
        if cut_to is not None:
            with opened_store(configuration, "controlled", place=self._place) as store:
                store.lower_for_cut(cut_to)
            holds_back = not configuration.store.replication.read_un_committed
            truncate_store(
                self._root, cut_to, config=configuration.store, writes_as="controlled", holds_back=holds_back
            )
            _LOG.warning("the log is cut at %d: what no master has confirmed behind it is gone", cut_to)
        epochs = EpochFile(self._files, self._root)
        mode = ControllerMode(role, epochs, self._controllers, self.look, self._diverged)
        starting = RunningBroker.start(configuration, mode, self._place, page=self._page)
        self.running = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.role = role
        if self._failure is not None:
            self.running.note_reopened(self._failure)
            self._failure = None
        _LOG.info("%s is %s", self.name, "master" if role.is_master else "slave")

    async def _stop(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            self._position = running.position()
            self._configuration = running.configuration  # with what operators have changed
            await running.close()

    def _configured(self, role: Role) -> Configuration:
        store = self._configuration.store
        mode = replace(store.mode, broker_role="SYNC_MASTER" if role.is_master else "SLAVE")
        return replace(self._configuration, store=replace(store, mode=mode))

    def _diverged(self, agreed: int, confirmed: int) -> None:
        """Raises StoreRefusedError: what was confirmed is not cut."""
        if agreed < confirmed:
            reason = f"the master's log ends at {agreed}, and {confirmed} was confirmed here"
            raise StoreRefusedError(self._root, reason)
        self._cut_to = agreed
        self._due.set()


class Applied(NamedTuple):
    """An id, and the code under which it is applied for."""

    broker_id: int
    check_code: str


class IdentityFiles:
    """The id of a store's broker at its controller, for one name and cluster, and the check code of its application.

        ROOT/brokerIdentity-temp   cluster#name#id#address;ms     applied for, and perhaps given; kept until the broker has registered
        ROOT/brokerIdentity        cluster#name#id                given

    So a broker that is killed meanwhile applies again under the same code, and gets the same id.
    Java: BrokerMetadata, TempBrokerMetadata.
    Departure: Java deletes the first file when it writes the second. Here an id lapses if no broker registers with it, and the code
    shows that this id was never registered.
    """

    def __init__(self, files: LocalFileSystem, root: str, cluster: str, broker_name: str) -> None:
        self._files = files
        self._root = root
        self._names = cluster, broker_name

    def broker_id(self) -> int | None:
        """The one that was given. Raises StoreRefusedError for another broker's store."""
        found = self._read(_FILE, 3)
        return None if found is None else int(found[2])

    def applied(self) -> Applied | None:
        """The noted application. Raises StoreRefusedError."""
        found = self._read(_APPLIED, 4)
        return None if found is None else Applied(int(found[2]), found[3])

    def apply(self, applied: Applied) -> None:
        """Note the application before the request to the controller. Durable on return."""
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
