"""What a broker counts for its page of metrics. The whole page beside Apache's: tests/interop/test_metrics.py."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.broker.broker_metrics import BrokerMetrics, code_text, message_type, version_text
from spark_mq.prometheus.page import Page
from spark_mq.remoting import RequestCode
from storage.rules.response_codes import ResponseCode
from tests.support.metric_pages import MetricPage


def shown(metrics: BrokerMetrics) -> MetricPage:
    return MetricPage.of(Page(metrics.counters.families).text())


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "normal"),
        ({"TAGS": "a"}, "normal"),
        ({"TRAN_MSG": "true", "__SHARDINGKEY": "k", "DELAY": "1"}, "transaction"),
        ({"TRAN_MSG": "TRUE"}, "transaction"),
        ({"TRAN_MSG": "false", "DELAY": "1"}, "delay"),
        ({"__SHARDINGKEY": "k", "DELAY": "1"}, "fifo"),
        ({"__STARTDELIVERTIME": "1"}, "delay"),
        ({"TIMER_DELIVER_MS": "1"}, "delay"),
        ({"TIMER_DELAY_SEC": "1"}, "delay"),
        ({"TIMER_DELAY_MS": "1"}, "delay"),
    ],
)
def test_the_type_of_a_message_is_that_of_its_properties_in_javas_order(
    properties: dict[str, str], expected: str
) -> None:
    assert message_type(properties) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (213, "v4_0_0"),
        (212, "v4_0_0_snapshot"),
        (399, "v4_9_3"),
        (401, "v4_9_4"),
        (413, "v5_0_0"),
        (475, "v5_3_1"),
        (478, "v5_3_3_snapshot"),
        (479, "v5_3_3"),
        (493, "v5_4_0"),
        (513, "v5_5_0"),
        (10_000, "higher_version"),
        (121, "v3"),
        (-1, "v3"),
    ],
)
def test_a_clients_version_is_shown_as_java_names_it(version: int, expected: str) -> None:
    assert version_text(version) == expected


def test_a_code_without_a_name_is_shown_as_its_number() -> None:
    assert code_text(310, RequestCode) == "send_message_v2"
    assert code_text(0, ResponseCode) == "success"
    assert code_text(77_777, RequestCode) == "77777"


def test_a_run_counts_as_its_sends_one_by_one() -> None:
    sends = [
        ("A", "normal", b"UNIQ_KEY\x01k1\x02", 100),
        ("A", "fifo", b"__SHARDINGKEY\x01s\x02UNIQ_KEY\x01k2\x02", 2_000),
        ("A", "fifo", b"UNIQ_KEY\x01k3\x02__SHARDINGKEY\x01s\x02", 300),
        ("B", "delay", b"UNIQ_KEY\x01k4\x02__STARTDELIVERTIME\x015\x02", 600_000),
        ("B", "normal", b"X__SHARDINGKEY\x01s\x02UNIQ_KEY\x01__SHARDINGKEY\x02", 70),
        ("rmq_sys_x", "normal", b"UNIQ_KEY\x01k6\x02", 80),
        ("%DLQ%G", "normal", b"UNIQ_KEY\x01k7\x02", 90),
    ]
    run, single = BrokerMetrics(), BrokerMetrics()
    topics, _, properties, sizes = zip(*sends, strict=True)
    run.stored_run(
        pa.array(topics).dictionary_encode(), pa.array(properties, pa.large_binary()), np.array(sizes, np.int64)
    )
    for topic, kind, _, size in sends:
        single.stored(topic, kind, 1, size)
    assert sorted(map(str, shown(run).samples)) == sorted(map(str, shown(single).samples))
    assert shown(run).value("rocketmq_messages_in_total", topic="A", message_type="fifo", is_system="false") == 2
    assert shown(run).value("rocketmq_messages_in_total", topic="rmq_sys_x", is_system="true") == 1


def test_a_batch_counts_once_with_the_mean_size_of_its_messages() -> None:
    metrics = BrokerMetrics()
    metrics.stored("A", "normal", 3, 3_500)
    page = shown(metrics)
    assert page.value("rocketmq_messages_in_total") == 3
    assert page.value("rocketmq_throughput_in_total") == 3_500
    assert page.value("rocketmq_message_size_count") == 1
    assert page.value("rocketmq_message_size_sum") == 1_166


def test_what_goes_to_retries_and_dead_letters_counts_nowhere() -> None:
    metrics = BrokerMetrics()
    for topic in ("%RETRY%G", "%DLQ%G"):
        metrics.stored(topic, "normal", 1, 100)
        metrics.pulled(topic, "G", 1, 100)
    assert not shown(metrics).samples


def test_a_delivery_leaves_the_schedule_and_comes_to_its_topic() -> None:
    metrics = BrokerMetrics()
    metrics.delivered("A", np.array([100, 200]))
    page = shown(metrics)
    out = {"topic": "SCHEDULE_TOPIC_XXXX", "consumer_group": "SCHEDULE_CONSUMER", "is_system": "true"}
    assert page.value("rocketmq_messages_out_total", **out) == 2
    assert page.value("rocketmq_throughput_out_total", **out) == 300
    assert page.value("rocketmq_throughput_in_total", topic="A", message_type="delay") == 300
    assert page.value("rocketmq_message_size_count", topic="A") == 2


def test_a_pull_that_was_suspended_is_told_apart_from_another_late_answer() -> None:
    metrics = BrokerMetrics()
    metrics.answered(RequestCode.PULL_MESSAGE, 0, "success", 15_000.7, 1, was_suspended=True)
    metrics.answered(RequestCode.PULL_MESSAGE, 0, "success", 0.4, 1, was_suspended=False)
    metrics.answered(RequestCode.QUERY_CONSUMER_OFFSET, 0, "success", 1, 1, was_suspended=True)
    metrics.answered(RequestCode.SEND_MESSAGE_V2, 0, "success", 2, 40, was_suspended=False)
    page = shown(metrics)
    name = "rocketmq_rpc_latency_milliseconds_count"
    assert page.value(name, request_code="pull_message", is_long_polling="true") == 1
    assert page.value(name, request_code="pull_message", is_long_polling="false") == 1
    assert page.value(name, request_code="query_consumer_offset", is_long_polling="true") is None
    assert page.value(name, request_code="send_message_v2", response_code="success") == 40
    assert page.value("rocketmq_rpc_latency_milliseconds_sum", request_code="pull_message") == 15_000


def test_timed_messages_are_counted_by_their_real_topic() -> None:
    metrics = BrokerMetrics()
    metrics.timer_entered(pa.array(["A", "B", "A", None]), np.array([1_999, 60_000, 61_000, 5]))
    metrics.timer_left(pa.array(["A", "A"]))
    page = shown(metrics)
    assert page.value("rocketmq_timer_enqueue_total", topic="A") == 2
    assert page.value("rocketmq_timer_enqueue_total", topic="") == 1
    assert page.value("rocketmq_timer_dequeue_total", topic="A") == 2
    assert page.value("rocketmq_delay_message_latency_seconds_sum", topic="A") == 62
    assert page.value("rocketmq_delay_message_latency_seconds_bucket", topic="A", le="60.0") == 1
