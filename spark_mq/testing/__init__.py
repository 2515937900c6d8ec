"""A RocketMQ cluster for tests: a name server and brokers that start in a moment and leave nothing behind.

    from spark_mq.testing import Cluster

    with Cluster() as cluster:
        cluster.create_topic("orders")
        cluster.send("orders", b"one", b"two", tags="Paid")
        assert [message.body for message in cluster.messages("orders", count=2)] == [b"one", b"two"]

It needs neither Spark nor pytest. `pytest_spark_mq.py` has it as fixtures; docs/testing.md has recipes.
Begin with `cluster.py`; `servers.py` starts one broker, `ports.py` finds ports.
"""

from __future__ import annotations

from spark_mq.testing.cluster import Cluster, ClusterBroker
from spark_mq.testing.servers import ClusterError

__all__ = ["Cluster", "ClusterBroker", "ClusterError"]
