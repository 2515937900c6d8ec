"""Options of the sink that sends to running brokers: which guarantee holds, and what makes no sense."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from spark_mq.conditions import OptionError, SinkSchemaError
from spark_mq.data_source import SparkMqDataSource
from spark_mq.sink.columns import columns_to_send
from spark_mq.sink.live_sink import LiveSink
from spark_mq.sink.options import LiveSinkOptions

SERVER = {"nameServer": "a:9876", "topic": "T"}


def batch(**options: str) -> LiveSinkOptions:
    return LiveSinkOptions.parse({**SERVER, **options}, "batch")


def stream(**options: str) -> LiveSinkOptions:
    return LiveSinkOptions.parse({**SERVER, **options}, "streaming")


def test_a_stream_is_exact_where_it_has_a_directory_to_stage_in() -> None:
    assert stream(stagingPath="/s").guarantee == "exactlyOnce"
    beside = stream(checkpointLocation="file:/c/q")
    assert (beside.guarantee, beside.staging_path) == ("exactlyOnce", "/c/q.spark_mq")
    assert stream(checkpointLocation="/c/q", guarantee="atleastonce").staging_path is None


def test_only_a_stream_that_is_exact_can_take_over() -> None:
    assert stream(stagingPath="/s", sinkTakeover="true").sink_takeover
    with pytest.raises(OptionError, match="option sinkTakeover: belongs to guarantee=exactlyOnce"):
        stream(guarantee="atLeastOnce", sinkTakeover="true")


@pytest.mark.parametrize("options", [{}, {"checkpointLocation": "s3://bucket/c"}, {"checkpointLocation": "hdfs:/c"}])
def test_a_stream_without_one_must_say_which_guarantee_it_wants(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="guarantee=atLeastOnce"):
        stream(**options)
    assert stream(**options, guarantee="atLeastOnce").guarantee == "atLeastOnce"


def test_a_write_is_at_least_once_unless_it_has_directory_and_name() -> None:
    assert batch().guarantee == "atLeastOnce"
    assert batch(stagingPath="/s", writeId="w").is_exact


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"guarantee": "twice"}, "guarantee"),
        ({"guarantee": "exactlyOnce", "writeId": "w"}, "stagingPath"),
        ({"guarantee": "exactlyOnce", "stagingPath": "/s"}, "writeId"),
        ({"stagingPath": "/s"}, "stagingPath"),
        ({"writeId": "w"}, "writeId"),
        ({"guarantee": "exactlyOnce", "stagingPath": "s3://b/s", "writeId": "w"}, "stagingPath"),
        ({"guarantee": "exactlyOnce", "stagingPath": "/s", "writeId": "w", "producerGroup": "g"}, "producerGroup"),
        ({"path": "/store"}, "path"),
        ({"conf": "/c"}, "conf"),
        ({"sinkTakeover": "true"}, "sinkTakeover"),
        ({"queueNum": "4"}, "queueNum"),
        ({"onInvalidRow": "deadLetter", "deadLetterPath": "s3://b/d"}, "deadLetterPath"),
        ({"sendBack": "true"}, "consumerGroup"),
        ({"acks": "1"}, "acks"),
        ({"batchBytes": "5m"}, "batchBytes"),
        ({"accessKey": "a"}, "secretKey"),
        ({"tlsCaFile": "/c"}, "tls"),
        ({"sinkId": "s"}, "sinkId"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_options_name(options: dict[str, str], refused: str) -> None:
    with pytest.raises(OptionError) as caught:
        batch(**options)
    assert caught.value.option == refused


def test_no_secret_is_shown() -> None:
    options = batch(accessKey="me", secretKey="s3cr3t", securityToken="t0k3n")
    shown = repr(options) + repr(LiveSink(options, columns_to_send(SCHEMA, options, mode="append")))
    assert "s3cr3t" not in shown
    assert "t0k3n" not in shown


SCHEMA = StructType().add("body", "binary").add("born_timestamp", "timestamp").add("broker_name", "string")


def test_rows_of_the_source_are_taken_without_what_belongs_to_their_earlier_place() -> None:
    assert columns_to_send(SCHEMA, batch(), mode="append").names == ("body",)


@pytest.mark.parametrize(
    ("name", "kind"), [("delay_level", "integer"), ("deliver_at", "timestamp"), ("retry_group", "string")]
)
def test_rows_that_wait_are_sent_with_both_guarantees(name: str, kind: str) -> None:
    schema = StructType().add("body", "binary").add(name, kind)
    retries = {"maxReconsumeTimes": "3"} if name == "retry_group" else {}
    for given in (batch(), batch(stagingPath="/s", writeId="w", **retries)):
        assert name in columns_to_send(schema, given, mode="append").names


@pytest.mark.parametrize("name", ["transaction_state", "producer_group"])
def test_columns_of_other_kinds_are_for_at_least_once_alone(name: str) -> None:
    schema = StructType().add("body", "binary").add(name, "string")
    assert columns_to_send(schema, batch(transactional="true"), mode="append").names == ("body", name)
    with pytest.raises(SinkSchemaError, match="guarantee=atLeastOnce") as caught:
        columns_to_send(schema, batch(stagingPath="/s", writeId="w"), mode="append")
    assert caught.value.column == name


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"transactional": "true"}, "transactional"),
        ({"sendBack": "true", "consumerGroup": "g"}, "sendBack"),
        ({"onInvalidRow": "deadLetter", "deadLetterPath": "/d"}, "onInvalidRow"),
        ({"deadLetterPath": "/d"}, "deadLetterPath"),
    ],
)
def test_options_of_other_kinds_are_for_at_least_once_alone(given: dict[str, str], refused: str) -> None:
    with pytest.raises(OptionError, match="guarantee=atLeastOnce") as caught:
        LiveSinkOptions.parse({"nameServer": "a:9876", "stagingPath": "/s", "writeId": "w", **given}, "batch")
    assert caught.value.option == refused


def test_columns_and_options_need_each_other_as_for_stores() -> None:
    schema = StructType().add("body", "binary").add("reconsume_times", "integer")
    assert columns_to_send(schema, batch(), mode="append").names == ("body",)
    with pytest.raises(OptionError, match="sendBack=true, or to the column retry_group"):
        columns_to_send(schema, batch(maxReconsumeTimes="3"), mode="append")
    with pytest.raises(SinkSchemaError, match="transactional=true"):
        columns_to_send(schema.add("transaction_state", "string"), batch(), mode="append")
    with pytest.raises(SinkSchemaError, match="what is tried again is no transaction"):
        columns_to_send(schema.add("retry_group", "string"), batch(transactional="true"), mode="append")


def test_the_data_source_sends_where_a_name_server_is_named() -> None:
    source = SparkMqDataSource({"nameserver": "a:9876", "topic": "T", "stagingpath": "/s"})
    assert isinstance(source.streamWriter(SCHEMA, False).sink, LiveSink)
    assert isinstance(SparkMqDataSource({"nameserver": "a:9876", "topic": "T"}).writer(SCHEMA, False).sink, LiveSink)
