"""A master in controller mode: keeps its SyncStateSet and the controller's alike. Java: AutoSwitchHAService, ReplicasManager.

What is decided is decided in `storage/ha/sync_state.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from spark_mq.broker_server.controllers import Controllers
from spark_mq.client.errors import ClientError, ResponseError
from storage.epoch_times import steady_time_ms
from storage.ha.replicas import Replicas, Snapshot
from storage.ha.roles import Role, Term
from storage.ha.sync_state import SyncState
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.service.replica_acks import ReplicaAcks

_LOOK_SECONDS = 0.5
_LEAST_SECONDS = 0.02
_DEPOSED = (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ResponseCode.CONTROLLER_INVALID_MASTER)
_LOG = logging.getLogger(__name__)


class SyncKeeper:
    """Runs from `start` to `close`. `doubt` is called when the controller says that another one is master."""

    def __init__(
        self,
        service: PutService,
        replicas: Replicas,
        role: Role,
        controllers: Controllers,
        doubt: Callable[[], None],
        behind_ms: int,
    ) -> None:
        self._service = service
        self._replicas = replicas
        self._role = role
        self._controllers = controllers
        self._doubt = doubt
        self._lock = threading.Lock()
        term = role.term
        self._state = SyncState(role.own_id, term.members, term.set_epoch, steady_time_ms(), behind_ms)
        self._in_force: frozenset[int] | None = None
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sync state set", daemon=True)
        self._apply()

    def start(self) -> None:
        """Looks at once when replicas change, else twice a second."""
        self._replicas.listen(self._replicas_changed)
        self._thread.start()

    def told(self, term: Term) -> None:
        """The controller's set, as somebody has heard it."""
        if term.epoch == self._role.term.epoch:
            with self._lock:
                self._state.holds(term.members, term.set_epoch, steady_time_ms())
                self._apply()

    def close(self) -> None:
        """Ends."""
        self._closing.set()
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _replicas_changed(self, replicas: Snapshot) -> None:
        if {each.broker_id for each in replicas if each.acknowledged >= 0} != self._state.members - {self._role.own_id}:
            self._due.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            self._due.wait(_LOOK_SECONDS)
            self._due.clear()
            if self._closing.is_set():
                return
            try:
                self._look()
            except Exception:  # whatever it is, the next look is made
                _LOG.exception("the SyncStateSet is not kept")
            time.sleep(_LEAST_SECONDS)

    def _look(self) -> None:
        with self._lock:
            end = self._service.log_end
            wanted = self._state.look(self._replicas.snapshot(), end, steady_time_ms())
            if wanted is not None:
                self._state.asks(wanted)
            self._apply()
            set_epoch = self._state.epoch
        if wanted is None:
            return
        role = self._role
        _LOG.info("in sync are now %s: the controller is told", sorted(wanted))
        try:
            found = self._controllers.alter(role.own_id, role.term.epoch, wanted, set_epoch)
        except ResponseError as error:
            _LOG.warning("the controller keeps its SyncStateSet: %s", error.describe())
            self._refused(error)
        except ClientError as error:
            self._unanswered(error)
        else:
            with self._lock:
                self._state.holds(frozenset(found.broker_ids), found.epoch, steady_time_ms())
                self._apply()

    def _refused(self, error: ResponseError) -> None:
        """Also one whose answer was lost may be why: what the controller says now comes behind all that it was asked before."""
        if error.code in _DEPOSED:
            self._doubt()
            return
        try:
            found = self._controllers.term()
        except ClientError as failure:
            self._unanswered(failure)
            return
        if found.epoch != self._role.term.epoch:
            self._doubt()
        elif found.set_epoch > self._state.epoch:
            self.told(found)
        else:
            with self._lock:
                self._state.holds(found.members, found.set_epoch, steady_time_ms())
                self._state.refused(steady_time_ms())
                self._apply()

    def _unanswered(self, error: ClientError) -> None:
        _LOG.warning("the controller may know of it or not: %s", error.describe())
        with self._lock:
            self._state.unanswered()

    def _apply(self) -> None:
        if self._state.union != self._in_force:
            self._in_force = self._state.union
            wait_for(self._service.acks, self._in_force, self._role.own_id)


def wait_for(acks: ReplicaAcks, broker_ids: frozenset[int], own_id: int) -> None:
    """Puts wait for these brokers from now on, and readers too."""
    acks.set_members(f"id:{each}" for each in broker_ids - {own_id})
