"""The programs of `python -m bench.live`, but for those that need Java or Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.client_peer import python_peer
from bench.counting_proxy import counting_proxy
from bench.rocketmq_broker import Oracle, RunningBroker
from spark_mq.remoting import RequestCode
from tests.client.planned_cluster import planned_cluster


@pytest.mark.slow
def test_our_client_program_sends_as_it_is_told_and_the_proxy_counts(tmp_path: Path) -> None:
    with (
        planned_cluster("broker-a") as cluster,
        counting_proxy(("127.0.0.1", 0), cluster.name_server.address) as proxy,
    ):
        broker = RunningBroker(Oracle(tmp_path, {}), proxy.address, "127.0.0.1:1", 0, tmp_path)
        with python_peer(broker, tmp_path) as peer:
            assert peer.run("sync", "T", 20, 2).messages == 20
            assert peer.run("async", "T", 30, 4).messages == 30
            assert peer.run("batch", "T", 70, 1, 32).messages == 70
            with pytest.raises(RuntimeError, match="AttributeError"):
                peer.run("nothing", "T", 1)
        assert len(cluster.commands(RequestCode.SEND_MESSAGE_V2)) == 50
        assert len(cluster.commands(RequestCode.SEND_BATCH_MESSAGE)) == 3
        assert proxy.requests == {RequestCode.GET_ROUTEINFO_BY_TOPIC: len(cluster.asked)}
        assert proxy.answer_bytes > 0
