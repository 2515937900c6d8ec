"""A RocketMQ cluster for tests: a name server and brokers that start in a moment and leave nothing behind.

    from spark_mq.testing import Cluster

    with Cluster() as cluster:
        cluster.create_topic("orders", queues=1)
        cluster.send("orders", b"one", b"two", tags="Paid")
        assert [message.body for message in cluster.messages("orders", count=2)] == [b"one", b"two"]

It needs neither Spark nor pytest. docs/testing.md has recipes.
Begin with `cluster.py`; `servers.py` starts one broker, in a thread or as the process of `child.py`; `ports.py` finds ports;
`pytest_spark_mq.py` beside the packages has the fixtures.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_mq.testing.cluster import Cluster, ClusterBroker
    from spark_mq.testing.servers import ClusterError

__all__ = ["Cluster", "ClusterBroker", "ClusterError"]

if not TYPE_CHECKING:
    # Loaded at first use: a child process says first what it does without.
    _LAZY = {"Cluster": "cluster", "ClusterBroker": "cluster", "ClusterError": "servers"}

    def __dir__() -> list[str]:
        """All public names, for `dir` and for completion in a shell."""
        return sorted(__all__)

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            return getattr(import_module(f"spark_mq.testing.{_LAZY[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
