"""How many requests wait for each pool, and for how long the first: a line each. Java: BrokerController.printWaterMark."""

from __future__ import annotations

from collections.abc import Mapping

from spark_mq.broker.request_table import Pool
from spark_mq.remoting_server.pools import RequestPool

_TOLD = (
    *(Pool.SEND, Pool.PULL, Pool.QUERY, Pool.LITE_PULL, Pool.END_TRANSACTION),
    *(Pool.CLIENT_MANAGE, Pool.HEARTBEAT, Pool.ADMIN),
)
"""Java's, in its order; there is no Ack."""


def watermarks(pools: Mapping[Pool, RequestPool]) -> list[str]:
    """The lines of now."""
    return [
        f"[WATERMARK] {pool.label} Queue Size: {pools[pool].size} SlowTimeMills: {pools[pool].head_wait_ms()}"
        for pool in _TOLD
    ]
