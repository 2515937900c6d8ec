"""What a slave does besides answering: it follows its master's log and copies its state files. Java: SlaveSynchronize."""

from __future__ import annotations

import logging

from spark_mq.broker.broker import Broker
from spark_mq.broker_server.masters import Master
from spark_mq.broker_server.settings import Configuration
from spark_mq.broker_server.state_copies import PERIOD_S, StateCopies
from storage.errors import StoreRefusedError
from storage.ha.follower import Follower, MasterAsks, Switching
from storage.ha.sessions import RECONNECT_MS, Timing
from storage.service.put_service import PutService

_PERIOD_S_CONTROLLED = 3.0  # Java: 10
_RECONNECT_MS_CONTROLLED = 500
_LOG = logging.getLogger(__name__)


class Following:
    """A slave's duties besides answering, from `start` to `close`.

    The service stays open.
    """

    def __init__(
        self,
        service: PutService,
        broker: Broker,
        configuration: Configuration,
        master: Master,
        switching: Switching | None = None,
        *,
        copies_log: bool = True,
    ) -> None:
        """With `switching` in controller mode. Without `copies_log` the log comes by a DLedger group."""
        settings = configuration.store.replication
        is_controlled = switching is not None or not copies_log
        self.follower: Follower | None = None
        if copies_log:
            self.follower = Follower(
                service,
                master.ha_address,
                Timing(settings.ha_send_heartbeat_interval, settings.ha_housekeeping_interval),
                asks=MasterAsks(master.bounds, master.record, master.topics),
                reconnect_ms=_RECONNECT_MS_CONTROLLED if is_controlled else RECONNECT_MS,
                switching=switching,
            )
        period_s = _PERIOD_S_CONTROLLED if is_controlled else PERIOD_S
        self._copies = StateCopies(
            service,
            master,
            period_s,
            copied=broker.on_table_copied,
            follows=lambda: self.follower is None or self.follower.agrees,
            refused=self._refuse if self.follower is None else self.follower.refuse,
        )
        self._is_controlled = is_controlled
        self._refusal: StoreRefusedError | None = None

    def _refuse(self, error: StoreRefusedError) -> None:
        self._refusal = error
        _LOG.error("the leader's topics are not copied: %s", error)

    @property
    def failure(self) -> str | None:
        """Why it follows no more until its store is opened again; None = it does."""
        return None if self.follower is None else self.follower.failure

    @property
    def error(self) -> BaseException | None:
        """The error behind `failure`."""
        return None if self.follower is None else self.follower.error

    @property
    def trouble(self) -> str | None:
        """What an operator has to see to."""
        if self.follower is not None:
            return self.follower.status.trouble
        return None if self._refusal is None else str(self._refusal)

    def knows_progress(self, name: str) -> bool:
        """Whether the store has had the master's progress of deliveries, by that file."""
        return self._copies.knows_progress(name)

    def start(self) -> None:
        """Follows from now on."""
        if self.follower is not None:
            self.follower.start()
        self._copies.start()

    def close(self) -> None:
        """Close the connection to the master; copy files once more if it is reachable and no controller has replaced it."""
        self._copies.end_soon(copies=not self._is_controlled)
        if self._is_controlled and self.follower is not None:
            self.follower.close()
        self._copies.close(copies=not self._is_controlled)
        if self.follower is not None:
            self.follower.close()
