"""Every sink option is declared once, parsed strictly, and refused where it has no meaning."""

from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any

import pytest

from spark_mq.conditions import OptionError, SparkMqError, UnknownOptionError
from spark_mq.options import NAMES_ELSEWHERE, Mode, OptionRow, option_name
from spark_mq.sink.options import LiveSinkOptions, SinkOptions, live_sink_option_rows, sink_option_rows
from spark_mq.source.options import option_rows


def parse(mode: Mode = "streaming", **options: str) -> SinkOptions:
    return SinkOptions.parse({"path": "/store", **options}, mode)


def test_the_defaults() -> None:
    options = parse()
    assert options == SinkOptions(path="/store")
    assert (options.create_topic, options.queue_num, options.lock_timeout) == (None, None, 60_000)
    assert (options.on_invalid_row, options.flush_disk_type, options.compress_body_over) == ("fail", None, None)
    assert (options.keep_unique_key, options.strict_properties, options.sink_takeover) == (False, False, False)


@pytest.mark.parametrize(
    ("declaring", "rows", "place"),
    [
        (SinkOptions, sink_option_rows(), {"path": "/store"}),
        (LiveSinkOptions, live_sink_option_rows(), {"nameServer": "a:1", "stagingPath": "/s"}),
    ],
)
def test_the_table_names_each_option_once_with_the_defaults_that_parse_to_the_defaults(
    declaring: type[SinkOptions | LiveSinkOptions], rows: list[OptionRow], place: dict[str, str]
) -> None:
    fields = {option_name(field.name): field for field in dataclasses.fields(declaring)}
    assert sorted(row.name for row in rows) == sorted(fields)
    parsed = 0
    for row in rows:
        assert row.meaning
        if re.fullmatch(r"true|false|fail|all|[0-9]+[a-z]+", row.default) and not row.name.startswith("tls"):
            made = declaring.parse({**place, row.name: row.default}, "streaming")
            assert getattr(made, fields[row.name].name) == fields[row.name].default
            parsed += 1
    assert parsed >= 7


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("path", "file:///data/store/", "root", "/data/store"),
        ("path", "/data/store/", "root", "/data/store"),
        ("path", "/", "root", "/"),
        ("createTopic", "False", "create_topic", False),
        ("queueNum", "16", "queue_num", 16),
        ("flushDiskType", "sync_flush", "flush_disk_type", "SYNC_FLUSH"),
        ("flushDiskType", "ASYNC_FLUSH", "flush_disk_type", "ASYNC_FLUSH"),
        ("lockTimeout", "5s", "lock_timeout", 5_000),
        ("lockTimeout", "0", "lock_timeout", 0),
        ("compressBodyOver", "4k", "compress_body_over", 4_096),
        ("storeHost", "10.0.0.1:10911", "store_host", "10.0.0.1:10911"),
        ("storeHost", " [::1]:10911 ", "store_host", "[::1]:10911"),
        ("onInvalidRow", "FAIL", "on_invalid_row", "fail"),
        ("sinkId", "orders-1", "sink_id", "orders-1"),
        ("topic", "%RETRY%x", "topic", "%RETRY%x"),
        ("transactional", "true", "transactional", True),
        ("rocketmqVersion", " 4.9.7 ", "rocketmq_version", "4.9.7"),
        ("maxReconsumeTimes", "0", "max_reconsume_times", 0),
        ("maxReconsumeTimes", "16", "max_reconsume_times", 16),
    ],
)
def test_texts_become_values(name: str, text: str, field: str, value: Any) -> None:
    assert getattr(parse(**{name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("path", " ", "is empty"),
        ("path", "s3://bucket/store", "s3:// is for reading"),
        ("topic", "a/b", "character '/'"),
        ("topic", "x" * 128, "the limit is 127"),
        ("brokerName", "..", "consists of dots"),
        ("queueNum", "0", "from 1"),
        ("queueNum", "-1", "from 1"),
        ("flushDiskType", "FLUSH", "expected ASYNC_FLUSH or SYNC_FLUSH"),
        ("lockTimeout", "soon", "expected a number"),
        ("compressBodyOver", "0", "from 1"),
        ("storeHost", "0.0.0.0:10911", "0.0.0.0"),
        ("storeHost", "[::]:10911", "::"),
        ("storeHost", "10911", "address:port"),
        ("storeHost", "127.0.0.1:0", "address:port"),
        ("storeHost", "127.0.0.1:65536", "address:port"),
        ("onInvalidRow", "skip", "expected fail or deadLetter"),
        ("createTopic", "yes", "expected true or false"),
        ("sinkId", "a b", "names a consumer group"),
        ("sinkId", "a.b", "names a consumer group"),
        ("sinkId", "x" * 238, "the limit is 255"),
        ("sinkId", "|a", "begins with |"),
        ("deadLetterPath", "/dead", "belongs to onInvalidRow=deadLetter"),
        ("deadLetterPath", "s3://bucket/dead", "s3:// is for reading"),
        ("producerGroup", "g", "belongs to transactional=true"),
        ("producerGroup", "a b", "character ' '"),
        ("consumerGroup", "g", "belongs to sendBack=true"),
        ("consumerGroup", "a/b", "character '/'"),
        ("consumerGroup", "x" * 256, "the limit is 255"),
        ("rocketmqVersion", "v5", "no release of RocketMQ"),
        ("rocketmqVersion", "4.8.0", "the oldest release that was tried"),
        ("maxReconsumeTimes", "-1", "from 1"),
        ("maxReconsumeTimes", "2147483648", "from 1 to 2147483647"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_options_name(name: str, text: str, rule: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**{name: text})
    assert caught.value.option == name
    assert rule in str(caught.value)


def test_dead_letters_need_a_place() -> None:
    with pytest.raises(OptionError, match="option deadLetterPath: onInvalidRow=deadLetter needs it"):
        parse(onInvalidRow="deadLetter")


def test_sending_back_needs_a_group_and_takes_no_option_that_changes_messages() -> None:
    with pytest.raises(OptionError, match="option consumerGroup: sendBack=true needs it"):
        parse(sendBack="true")
    back = {"sendBack": "true", "consumerGroup": "g"}
    assert parse(**back, maxReconsumeTimes="3", lockTimeout="1s").consumer_group == "g"
    for name, text in (
        ("topic", "T"),
        ("compressBodyOver", "1k"),
        ("keepUniqueKey", "true"),
        ("strictProperties", "true"),
    ):
        with pytest.raises(OptionError, match=f"option {name}: has no meaning with sendBack=true"):
            parse(**back, **{name: text})
    with pytest.raises(OptionError, match="option sendBack: is not for transactional=true"):
        parse(**back, transactional="true")


def test_the_longest_sink_id_makes_a_legal_group() -> None:
    longest = "x" * (255 - len("CID_RMQ_SYS_SPARK_"))
    assert parse(sinkId=longest).sink_id == longest
    with pytest.raises(OptionError, match="limit is 255"):
        parse(sinkId=longest + "x")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("topics", "topic"), ("queuenums", "queueNum"), ("writeid2", "writeId"), ("mergeSchema", None)],
)
def test_unknown_names_are_refused_with_the_nearest_known_one(name: str, nearest: str | None) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        parse(**{name: "1"})
    assert caught.value.nearest == nearest


def test_what_only_a_cluster_has_is_refused_by_name_of_a_store() -> None:
    of_stores = {row.name for row in sink_option_rows()}
    of_clusters = [row.name for row in live_sink_option_rows() if row.name not in of_stores | {"nameServer"}]
    assert len(of_clusters) == 20
    for name in of_clusters:
        with pytest.raises(OptionError, match=f"option {name}: belongs to nameServer, and a store is written"):
            parse(**{name: "1"})


def test_options_of_the_other_kind_of_write_are_refused() -> None:
    assert parse("batch", writeId="w").write_id == "w"
    assert parse("streaming", sinkId="s", sinkTakeover="true").sink_takeover
    for mode, options in (
        ("streaming", {"writeId": "w"}),
        ("batch", {"sinkId": "s"}),
        ("batch", {"sinkTakeover": "true"}),
    ):
        with pytest.raises(OptionError, match="queries only"):
            SinkOptions.parse({"path": "/store", **options}, mode)  # type: ignore[arg-type]


def test_what_spark_adds_to_a_streams_options_is_passed_over() -> None:
    assert parse(checkpointlocation="/c", queryname="q") == parse()
    with pytest.raises(OptionError, match="checkpointLocation: it belongs to the query"):
        parse("batch", checkpointLocation="/c")


def test_names_of_other_connectors_lead_to_options_that_there_are() -> None:
    ours = {row.name for row in (*option_rows(), *sink_option_rows(), *live_sink_option_rows())}
    assert set(NAMES_ELSEWHERE.values()) <= ours
    assert not NAMES_ELSEWHERE.keys() & {name.lower() for name in ours}


def test_a_path_is_needed_and_a_tables_lost_options_are_explained() -> None:
    with pytest.raises(OptionError, match="give the store to write"):
        SinkOptions.parse({"topic": "T"}, "batch")
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        SinkOptions.parse({}, "batch")


def test_names_are_matched_whatever_their_case() -> None:
    assert parse(queuenum="3").queue_num == parse(QUEUENUM="3").queue_num == 3
    with pytest.raises(OptionError, match="given twice"):
        parse(queuenum="3", queueNum="3")


def test_options_and_errors_survive_the_way_to_a_worker() -> None:
    options = parse(sinkId="s", onInvalidRow="deadLetter", deadLetterPath="/dead")
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(SparkMqError) as caught:
        parse(queueNum="0")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
