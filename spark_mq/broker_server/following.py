"""What a slave does beside answering: it follows its master's log and copies its state files. Java: SlaveSynchronize."""

from __future__ import annotations

from spark_mq.broker.broker import Broker
from spark_mq.broker_server.settings import Configuration
from spark_mq.broker_server.state_copies import PERIOD_S, ElectedMaster, KnownMaster, Master, StateCopies
from spark_mq.client.settings import ClientSettings
from storage.ha.follower import Follower, MasterAsks, Switching
from storage.ha.session import RECONNECT_MS, Timing
from storage.service.put_service import PutService

_PERIOD_S_CONTROLLED = 3.0  # Java: 10
_RECONNECT_MS_CONTROLLED = 500


class Following:
    """A slave's follower and copies, from `start` to `close`. The service stays open."""

    def __init__(
        self,
        service: PutService,
        broker: Broker,
        configuration: Configuration,
        master: Master,
        switching: Switching | None = None,
    ) -> None:
        """With `switching` in controller mode."""
        settings = configuration.store.replication
        is_controlled = switching is not None
        self.follower = Follower(
            service,
            master.ha_address,
            Timing(settings.ha_send_heartbeat_interval, settings.ha_housekeeping_interval),
            asks=MasterAsks(master.bounds, master.record),
            reconnect_ms=_RECONNECT_MS_CONTROLLED if is_controlled else RECONNECT_MS,
            switching=switching,
        )
        period_s = _PERIOD_S_CONTROLLED if is_controlled else PERIOD_S
        self._copies = StateCopies(
            service, master, period_s, copied=broker.heed_copy, follows=lambda: self.follower.agrees
        )
        self._is_controlled = is_controlled

    def start(self) -> None:
        """Follows from now on."""
        self.follower.start()
        self._copies.start()

    def close(self) -> None:
        """Hangs up; copies once more where a master can be asked, but not of one that a controller has replaced."""
        self._copies.end_soon(copies=not self._is_controlled)
        if self._is_controlled:
            self.follower.close()
        self._copies.close(copies=not self._is_controlled)
        self.follower.close()


def known_master(configuration: Configuration) -> KnownMaster:
    """The master that name servers name when the broker registers, or that serves at haMasterAddress."""
    ha_address = configuration.process.ha_master_address
    asking = configuration.client or ClientSettings((ha_address or "",))  # then nobody is asked
    return KnownMaster(asking, ha_address)


def elected_master(configuration: Configuration, address: str) -> ElectedMaster:
    """The master that a controller has named."""
    asking = configuration.client or ClientSettings((address,), credentials=configuration.access.credentials)
    return ElectedMaster(asking, address)
