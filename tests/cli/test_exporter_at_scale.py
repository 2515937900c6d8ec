"""What a look at 100 topics and 100 groups costs: requests, and this process' processor time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_mq.cli.exporter import Looks
from spark_mq.client.settings import ClientSettings
from spark_mq.lag.of_cluster import ClusterLag
from spark_mq.prometheus.page import Page
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.tables.offline_changes import write_group_offsets
from tests.support.java_broker import Oracle
from tests.support.metric_pages import MetricPage

pytestmark = pytest.mark.long
COUNT = 100


def test_a_look_at_a_hundred_topics_and_groups_takes_three_requests_and_those_for_ages(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    servers = Oracle(tmp_path / "servers", is_ours=True)  # processes of their own: this one's time is the exporter's
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(servers.broker_conf(root, "127.0.0.1:1", 1), "utf-8")
    topics = [f"Topic{number}" for number in range(COUNT)]
    with open_store(root, config=str(conf), read_only=False, create=True) as store:
        for topic in topics:
            for queue_id in range(4):
                store.put(topic, b"x", queue_id=queue_id)
    offsets = {(topic, queue_id): 1 for topic in topics for queue_id in range(4)}
    for number in range(COUNT):
        own = offsets | {("Topic0", 0): 0} if number < 10 else offsets
        write_group_offsets(str(root), f"Group{number}", own, now_ms=1, file_system=LocalFileSystem())
    with (
        servers.namesrv() as name_server,
        servers.broker(root, name_server),
        ClusterLag(ClientSettings((name_server,))) as lag,
    ):
        looks = Looks(lag, lambda: {"broker-lab": "LabCluster"})
        looks.look()
        began = time.process_time()
        text = Page(looks.look).text()
        seconds = time.process_time() - began
    record_property("processor seconds", seconds)
    print(f"processor seconds of a look: {seconds:.2f}")
    page = MetricPage.of(text)
    assert len(page.values("rocketmq_consumer_lag_messages")) == COUNT * COUNT
    assert page.value("rocketmq_consumer_lag_messages") == 10
    assert page.value("spark_mq_exporter_look_requests") == 3, "the ages are known from the first look"
