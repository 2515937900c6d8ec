"""The queues of topics at all brokers, as a name server says, kept for a while: what a broker shares among a group's clients.

Java: TopicRouteInfoManager. Departure: it is asked for what somebody asks for, where Java asks for all that was ever asked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spark_mq.broker.turns import Turns
from spark_mq.client.errors import ClientError, NameServerUnreachableError, TopicRouteNotFoundError
from spark_mq.client.event_loop import run
from spark_mq.client.remoting_client import NameServers, RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue
from storage.epoch_times import is_time, steady_time_ms
from storage.names import RETRY_PREFIX

_TIMEOUT_MS = 3_000
_KEPT_MOST = 10_000
_SILENCE_MS = 1_000
"""So long nobody is asked after a question that no name server has answered: each one takes a thread for seconds."""
_LOG = logging.getLogger(__name__)


class _Kept(NamedTuple):
    queues: Sequence[MessageQueue]
    asked_ms: int


class SubscribedQueues:
    """Thread-safe: those who ask for one topic wait for one answer."""

    def __init__(
        self, client: ClientSettings, poll_ms: Callable[[], int], *, steady: Callable[[], int] = steady_time_ms
    ) -> None:
        """`poll_ms`: so long an answer counts."""
        self._client = RemotingClient(client)
        self._name_servers = NameServers(self._client, client)
        self._poll_ms = poll_ms
        self._steady = steady
        self._turns = Turns()
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._silent_ms: int | None = None
        """When the last question was given up that no name server had answered."""

    def of(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues that can be read; None where no name server has the topic, or none has ever answered. It may wait."""
        if (kept := self._fresh(topic)) is not None:
            return kept.queues
        with self._turns.of(topic):
            if (kept := self._fresh(topic)) is not None:
                return kept.queues
            return self._asked(topic)

    def close(self) -> None:
        """Hangs up."""
        run(self._client.close())

    def _fresh(self, topic: str) -> _Kept | None:
        """What was said of it, unless that is long ago or was nothing."""
        kept = self._kept.get(topic)
        if kept is None or not kept.queues or is_time(self._steady(), kept.asked_ms, self._poll_ms()):
            return None
        return kept

    def _asked(self, topic: str) -> Sequence[MessageQueue] | None:
        before = self._kept.get(topic)
        if self._silent_ms is not None and not is_time(self._steady(), self._silent_ms, _SILENCE_MS):
            return None if before is None else before.queues
        try:
            queues: Sequence[MessageQueue] = run(self._name_servers.route(topic, _TIMEOUT_MS)).subscribe_queues
        except TopicRouteNotFoundError:
            if before is None or not topic.startswith(RETRY_PREFIX):
                with self._lock:
                    self._kept.pop(topic, None)
                return None
            queues = before.queues
        except ClientError as error:  # the ones before count on, and are asked for after as long again
            _LOG.warning("no name server says where the queues of topic %s are: %s", topic, error.describe())
            if isinstance(error, NameServerUnreachableError):
                self._silent_ms = self._steady()
            if before is None:
                return None
            queues = before.queues
        with self._lock:
            self._kept.pop(topic, None)
            self._kept[topic] = _Kept(queues, self._steady())
            if len(self._kept) > _KEPT_MOST:
                del self._kept[next(iter(self._kept))]
        return queues
