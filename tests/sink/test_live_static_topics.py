"""Queries on running brokers with a static topic: the source reads physical queues, the sink sends to logical ones."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.consumer_calls import QueueCalls
from spark_mq.client.event_loop import run
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.direct_writer import send_over
from spark_mq.sink.live_routes import live_routes, route_rules
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.source.live_cluster import LiveCluster
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.query_cluster import Piece
from spark_mq.source.rows import RowRequest
from storage.format.typed_json import SubscriptionGroupConfig
from tests.broker_server.test_static_topics import (
    BLOCK,
    GROUP,
    ONE,
    TOPIC,
    TWO,
    Cluster,
    cluster,
    logical,
    move_first,
    pulled,
    send,
)

__all__ = ["cluster"]


def options(cluster: Cluster, **given: str) -> LiveSinkOptions:
    return LiveSinkOptions.parse({"nameServer": cluster.settings.name_servers[0], "topic": TOPIC, **given}, "batch")


def test_a_query_reads_each_message_of_a_moved_queue_once_by_physical_queues(cluster: Cluster) -> None:
    send(cluster, b"a", b"b")
    move_first(cluster, 2)
    send(cluster, b"c")
    with Admin(cluster.settings) as admin:
        admin.create_group(SubscriptionGroupConfig(GROUP))
    run(QueueCalls(cluster.instance).store_group_offset(GROUP, logical(0), BLOCK + 1))
    asked = {"nameServer": cluster.settings.name_servers[0], "subscribe": TOPIC}
    live = LiveCluster(SourceOptions.parse(asked, "batch"))
    try:
        request = RowRequest(("body",))
        found = {
            queue: [
                body
                for batch in live.split(Piece(queue, (live.bounds(queue),)), request).read()
                for body in batch.column("body").to_pylist()
            ]
            for queue in live.queues()
        }
        assert {queue: bodies for queue, bodies in found.items() if bodies} == {
            QueueId(TOPIC, ONE, 0): [b"a", b"b"],
            QueueId(TOPIC, TWO, 1): [b"c"],
        }
        moved = QueueId(TOPIC, TWO, 1)
        assert live.bounds(moved) == (0, 1)
        assert live.offset_by_time(moved, 1) == 0
        assert live.group_offset(GROUP, moved) == 1
    finally:
        live.close()


def test_rows_go_to_the_logical_queues_of_all_brokers(cluster: Cluster) -> None:
    rows = pa.record_batch({"body": [b"%d" % number for number in range(40)], "queue_id": [0, 1] * 20})
    asked = options(cluster)
    with live_routes(asked) as routes:
        assert [(queue.broker_name, queue.queue_id) for queue in routes.queues_of(TOPIC)] == [(ONE, 0), (TWO, 1)]
        send_over(routes, asked, InputColumns(("body", "queue_id")), 0, bytes(8), iter([rows]))
    counts = Counter({queue_id: len(pulled(cluster, queue_id)) for queue_id in (0, 1)})
    assert counts == {0: 20, 1: 20}


def test_exactly_once_is_refused_for_a_static_topic(cluster: Cluster, tmp_path: object) -> None:
    asked = options(cluster, guarantee="exactlyOnce", stagingPath=str(tmp_path), writeId="w")
    with live_routes(asked) as routes:
        target = route_rules(asked, routes).target(None)
    assert target.refusal is not None
    assert target.refusal.startswith("it is a static topic")
    assert "guarantee=atLeastOnce" in target.refusal


@pytest.mark.parametrize("guarantee", ["atLeastOnce", "exactlyOnce"])
def test_an_ordinary_topic_is_taken_with_either_guarantee(cluster: Cluster, tmp_path: object, guarantee: str) -> None:
    more = {"stagingPath": str(tmp_path), "writeId": "w"} if guarantee == "exactlyOnce" else {}
    asked = options(cluster, guarantee=guarantee, **more)
    with live_routes(asked) as routes:
        assert not routes.is_static("TBW102")
        assert route_rules(asked, routes).takes("TBW102") is None
