"""Every option is declared once, parsed strictly, and refused where it has no meaning."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from spark_mq.conditions import OffsetJsonError, OptionError, SparkMqError, UnknownOptionError
from spark_mq.options import Mode
from spark_mq.source.offsets import NamedQueue
from spark_mq.source.options import SourceOptions, option_rows
from spark_mq.source.ranges import ReadLimits
from spark_mq.source.rows import COLUMN_NAMES, KAFKA_COLUMN_NAMES
from spark_mq.source.starting_offsets import AtGroup, AtOffsets, AtTime, AtTimes, Edge, NoMatch, TimePoint

MINIMAL = {"path": "/store", "topic": "T"}
QUEUE = NamedQueue("T", "a", 0)


def parse(mode: Mode | None = None, **options: str) -> SourceOptions:
    return SourceOptions.parse({**MINIMAL, **options}, mode)


def test_the_defaults_are_kafkas_where_kafka_has_them() -> None:
    options = parse()
    assert options.stream_start is Edge.LATEST
    assert options.batch_start is Edge.EARLIEST
    assert options.batch_end is Edge.LATEST
    assert options.fail_on_data_loss is True
    assert options.read_limits == ReadLimits(max_delay_ms=900_000)
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert options.columns == options.column_names == COLUMN_NAMES
    assert (options.decompress, options.verify_crc, options.commit_offsets) == (True, False, False)
    assert options.tags is None


def test_the_table_names_each_option_once_with_the_defaults_that_parse_to_the_defaults() -> None:
    rows = option_rows()
    fields = SourceOptions.__dataclass_fields__
    assert len({row.name.lower() for row in rows}) == len(rows) == len(fields)
    kafka = {
        *("assign", "subscribe", "subscribePattern", "startingTimestamp", "startingOffsetsByTimestamp"),
        *("startingOffsets", "startingOffsetsByTimestampStrategy", "endingTimestamp", "endingOffsets"),
        *("endingOffsetsByTimestamp", "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"),
        *("maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "includeHeaders"),
    }
    assert kafka <= {row.name for row in rows}
    for row, field in zip(rows, fields.values(), strict=True):
        assert row.meaning
        if row.default in ("true", "false", "15m", "*"):
            columns = {"columns": "kafka"} if row.name == "includeHeaders" else {}
            assert getattr(parse(**{row.name: row.default}, **columns), field.name) == field.default


def test_names_are_matched_whatever_their_case() -> None:
    assert parse(maxoffsetspertrigger="7").max_offsets_per_trigger == 7
    assert parse(MAXOFFSETSPERTRIGGER="7").max_offsets_per_trigger == 7
    with pytest.raises(OptionError, match="given twice"):
        parse(maxoffsetspertrigger="7", maxOffsetsPerTrigger="7")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("conf", "/etc/broker.conf", "conf", "/etc/broker.conf"),
        ("brokerName", " broker-a ", "broker_name", "broker-a"),
        ("queueId", "3, 0,3", "queue_id", (0, 3)),
        ("failOnDataLoss", "False", "fail_on_data_loss", False),
        ("verifyCrc", "true", "verify_crc", True),
        ("decompress", "false", "decompress", False),
        ("maxOffsetsPerTrigger", "1", "max_offsets_per_trigger", 1),
        ("maxBytesPerTrigger", "64m", "max_bytes_per_trigger", 64 << 20),
        ("maxBytesPerTrigger", "1g", "max_bytes_per_trigger", 1 << 30),
        ("maxBytesPerTrigger", "2KB", "max_bytes_per_trigger", 2048),
        ("maxBytesPerTrigger", "100", "max_bytes_per_trigger", 100),
        ("maxBytesPerTrigger", "100b", "max_bytes_per_trigger", 100),
        ("maxTriggerDelay", "15m", "max_trigger_delay", 900_000),
        ("maxTriggerDelay", "2min", "max_trigger_delay", 120_000),
        ("maxTriggerDelay", "500", "max_trigger_delay", 500),
        ("maxTriggerDelay", "1500us", "max_trigger_delay", 1),
        ("maxTriggerDelay", "1d", "max_trigger_delay", 86_400_000),
        ("tags", "TagA || TagB", "tags", ("TagA", "TagB")),
        ("tags", "TagA||TagA || ||TagB", "tags", ("TagA", "TagB")),
        ("tags", " TagA ", "tags", ("TagA",)),
        ("tags", "*", "tags", None),
        ("tags", "", "tags", None),
        ("startingTimestamp", str(2**63 - 1), "starting_timestamp", TimePoint(2**63 - 1)),
        ("startingTimestamp", "1767225600000", "starting_timestamp", TimePoint(1_767_225_600_000)),
        ("startingTimestamp", "12345", "starting_timestamp", TimePoint(12_345)),
        ("key", "order-1", "key", "order-1"),
        ("columns", "body, topic", "columns", ("body", "topic")),
        ("startingTimestamp", "1700000000000", "starting_timestamp", TimePoint(1_700_000_000_000)),
        ("startingTimestamp", "0", "starting_timestamp", TimePoint(0)),
        ("startingTimestamp", "20260101", "starting_timestamp", TimePoint(20_260_101)),
        ("startingTimestamp", "2023-11-14T22:13:20Z", "starting_timestamp", TimePoint(1_700_000_000_000)),
        ("startingTimestamp", "2023-11-14 22:13:20.007", "starting_timestamp", TimePoint(1_700_000_000_007)),
        (
            "startingTimestamp",
            "2023-11-15T06:13:20+08:00",
            "starting_timestamp",
            TimePoint(1_700_000_000_000),
        ),
        ("startingTimestamp", "1970-01-02", "starting_timestamp", TimePoint(86_400_000)),
        ("startingTimestamp", "-10m", "starting_timestamp", TimePoint(600_000, True)),
        ("startingTimestamp", "-2h", "starting_timestamp", TimePoint(7_200_000, True)),
        ("startingTimestamp", "-1d", "starting_timestamp", TimePoint(86_400_000, True)),
        ("startingTimestamp", "-30s", "starting_timestamp", TimePoint(30_000, True)),
        ("startingOffsets", "Earliest", "starting_offsets", Edge.EARLIEST),
        ("endingOffsets", "latest", "ending_offsets", Edge.LATEST),
        (
            "startingOffsetsByTimestampStrategy",
            "LATEST",
            "starting_offsets_by_timestamp_strategy",
            NoMatch.LATEST,
        ),
    ],
)
def test_values_are_parsed(name: str, text: str, field: str, value: Any) -> None:
    assert getattr(parse(**{name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("path", " "),
        ("brokerName", ""),
        ("queueId", "a"),
        ("queueId", "-1"),
        ("queueId", ","),
        ("queueId", "2147483648"),
        ("failOnDataLoss", "yes"),
        ("failOnDataLoss", "1"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-1"),
        ("maxOffsetsPerTrigger", "1_000"),
        ("maxOffsetsPerTrigger", "1e3"),
        ("maxOffsetsPerTrigger", "9223372036854775808"),
        ("minPartitions", "0"),
        ("minPartitions", "2147483648"),
        ("maxRecordsPerPartition", "0"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "1.5g"),
        ("maxBytesPerTrigger", "5x"),
        ("maxBytesPerTrigger", "9223372036854775807k"),
        ("maxTriggerDelay", "-5m"),
        ("maxTriggerDelay", "5 parsecs"),
        ("tags", "||"),
        ("key", ""),
        ("columns", ""),
        ("columns", "topic,topic"),
        ("columns", "kafka,topic"),
        ("startingTimestamp", "-10"),
        ("startingTimestamp", "-10y"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "1969-12-31T23:59:59Z"),
        ("startingTimestamp", "9223372036854775808"),
        ("startingOffsets", "12"),
        ("endingOffsets", "earliest"),
        ("endingOffsets", "group"),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("subscribePattern", "a("),
        ("pullTimeout", "soon"),
    ],
)
def test_wrong_values_are_refused_by_the_options_name(name: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**{name: text})
    assert f"[SPARK_MQ_INVALID_OPTION] option {name}: " in str(caught.value)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "assign"])
def test_wrong_json_is_refused_by_the_options_name(name: str) -> None:
    with pytest.raises(OffsetJsonError, match=name):
        parse(**{name: '{"T": {"a": 1}}'})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startingoffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("topics", "topic"),
        ("failondataloss_", "failOnDataLoss"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known_one(name: str, nearest: str) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        parse(**{name: "1"})
    assert caught.value.nearest == nearest
    assert f"did you mean {nearest}?" in str(caught.value)


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(UnknownOptionError) as caught:
        parse(zzzzzz="1")
    assert caught.value.nearest is None


def test_an_unknown_column_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(OptionError, match="no column 'queueid'; did you mean queue_id"):
        parse(columns="topic,queueid")


def test_kafkas_columns_bring_kafkas_names() -> None:
    options = parse(columns="kafka", includeHeaders="true", **{"kafka.bootstrap.servers": "x:9092"})
    assert options.kafka_columns
    assert options.column_names == (*KAFKA_COLUMN_NAMES, "headers")
    # Spark's guide lists the columns in this order.
    assert ",".join(KAFKA_COLUMN_NAMES) == "key,value,topic,partition,offset,timestamp,timestampType"
    assert parse(columns="Kafka").column_names == KAFKA_COLUMN_NAMES


def test_kafkas_names_are_refused_without_its_columns() -> None:
    with pytest.raises(UnknownOptionError, match="columns=kafka"):
        parse(**{"kafka.bootstrap.servers": "x:9092"})
    with pytest.raises(OptionError, match=r"includeHeaders.*columns=kafka"):
        parse(includeHeaders="true")


@pytest.mark.parametrize(
    "options",
    [
        {"path": "/s"},
        {"path": "/s", "topic": "T", "subscribe": "U"},
        {"path": "/s", "subscribe": "T", "assign": '{"T": [0]}'},
        {"path": "/s", "subscribePattern": ".*", "topic": "T"},
    ],
)
def test_exactly_one_way_to_choose_topics_is_taken(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="exactly one of topic, subscribe, subscribePattern and assign"):
        SourceOptions.parse(options)


def test_exactly_one_place_is_taken() -> None:
    assert SourceOptions.parse({"paths": '["/a", "/b"]', "topic": "T"}).stores == ("/a", "/b")
    assert parse().stores == ("/store",)
    for wrong in ({}, {"path": "/a", "paths": '["/b"]'}, {"path": "/a", "nameServer": "a:9876"}):
        with pytest.raises(OptionError, match="exactly one of path, paths and nameServer"):
            SourceOptions.parse({"topic": "T", **wrong})
    for text in ("[]", "[1]", '"/a"', '[""]'):
        with pytest.raises(OptionError, match="JSON list of paths"):
            SourceOptions.parse({"topic": "T", "paths": text})


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param({}, id="a table's reader"),
        pytest.param(
            {"location": "file:/s", "path": "file:/s", "provider": "spark_mq", "topic": "T", "owner": "me"}
            | {"option.topic": "T"},
            id="CREATE TABLE",
        ),
    ],
)
def test_a_table_which_loses_its_options_is_refused_with_the_way_out(sent: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        SourceOptions.parse(sent)


@pytest.mark.parametrize(
    ("mode", "name", "text"),
    [
        ("streaming", "endingOffsets", "latest"),
        ("streaming", "endingTimestamp", "5"),
        ("streaming", "endingOffsetsByTimestamp", '{"T": {"0": 1}}'),
        ("streaming", "key", "k"),
        ("batch", "maxOffsetsPerTrigger", "5"),
        ("batch", "minOffsetsPerTrigger", "5"),
        ("batch", "maxBytesPerTrigger", "5"),
        ("batch", "maxTriggerDelay", "5m"),
        ("batch", "commitOffsets", "true"),
    ],
)
def test_an_option_of_the_other_mode_is_refused(mode: Mode, name: str, text: str) -> None:
    other: Mode = "batch" if mode == "streaming" else "streaming"
    group = {"consumerGroup": "g"}
    parse(**{name: text}, **group)
    parse(other, **{name: text}, **group)
    with pytest.raises(OptionError, match=f"{name}: is for {other} queries only"):
        parse(mode, **{name: text}, **group)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: a batch query cannot start at the latest"),
        ({"startingOffsets": '{"T": {"a": {"0": -1}}}'}, "startingOffsets: queue T/a/0: .* latest"),
        ({"endingOffsets": '{"T": {"a": {"0": -2}}}'}, "endingOffsets: queue T/a/0: .* earliest"),
        (
            {"startingOffsets": '{"T": {"0": 5}}', "endingOffsets": '{"T": {"0": 4}}'},
            "startingOffsets: queue T/./0: the start 5 is greater than the end 4",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"T": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"T": {"0": 4}}',
            },
            "startingOffsetsByTimestamp: queue T/./0: the start 5 is greater",
        ),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "startingTimestamp: is later"),
        ({"startingTimestamp": "-5m", "endingTimestamp": "-10m"}, "startingTimestamp: is later"),
    ],
)
def test_a_batch_refuses_ranges_that_cannot_be(options: dict[str, str], words: str) -> None:
    parse(**options)
    with pytest.raises(OptionError, match=words):
        parse("batch", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "earliest", "endingOffsets": "latest"},
        {"startingOffsets": '{"T": {"0": -2}}', "endingOffsets": '{"T": {"0": -1}}'},
        {"startingOffsets": '{"T": {"0": 5}}', "endingOffsets": '{"T": {"0": 5}}'},
        {"startingOffsets": '{"T": {"0": 5}}', "endingOffsets": '{"T": {"0": -1}}'},
        {"startingOffsets": "latest", "startingTimestamp": "5"},  # the timestamp wins
        {"startingTimestamp": "-10m", "endingTimestamp": "-5m"},
        {"startingTimestamp": "5", "endingTimestamp": "-5m"},
    ],
)
def test_a_batch_takes_ranges_that_can_be(options: dict[str, str]) -> None:
    parse("batch", **options)


def test_a_timestamp_wins_over_timestamps_by_queue_and_these_over_offsets() -> None:
    offsets = {"startingOffsets": '{"T": {"a": {"0": 3}}}', "endingOffsets": '{"T": {"a": {"0": 4}}}'}
    times = {
        "startingOffsetsByTimestamp": '{"T": {"a": {"0": 30}}}',
        "endingOffsetsByTimestamp": '{"T": {"a": {"0": 40}}}',
    }
    time = {"startingTimestamp": "300", "endingTimestamp": "400"}
    by_offset = parse(**offsets)
    assert by_offset.batch_start == by_offset.stream_start == AtOffsets("startingOffsets", {QUEUE: 3})
    assert by_offset.batch_end == AtOffsets("endingOffsets", {QUEUE: 4})
    by_times = parse(**offsets, **times)
    assert by_times.batch_start == AtTimes("startingOffsetsByTimestamp", {QUEUE: 30})
    assert by_times.batch_end == AtTimes("endingOffsetsByTimestamp", {QUEUE: 40})
    by_time = parse(**offsets, **times, **time, startingOffsetsByTimestampStrategy="latest")
    assert by_time.stream_start == AtTime(TimePoint(300), NoMatch.LATEST)
    assert by_time.batch_end == AtTime(TimePoint(400))


def test_a_start_at_a_groups_offsets_needs_the_group() -> None:
    options = parse(startingOffsets="group", consumerGroup="g")
    assert options.stream_start == options.batch_start == AtGroup("g")
    with pytest.raises(OptionError, match="consumerGroup: startingOffsets=group needs it"):
        parse(startingOffsets="group")
    with pytest.raises(OptionError, match="consumerGroup: commitOffsets needs it"):
        parse(commitOffsets="true")


def test_the_minimum_is_not_greater_than_the_maximum() -> None:
    parse(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5")
    with pytest.raises(OptionError, match="6 is greater than maxOffsetsPerTrigger, 5"):
        parse(minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")


def test_limits_go_together() -> None:
    options = parse(maxOffsetsPerTrigger="9", minOffsetsPerTrigger="3", maxTriggerDelay="1s", maxBytesPerTrigger="1k")
    assert options.read_limits == ReadLimits(9, 3, 1000, 1024)


def test_options_travel_to_workers() -> None:
    options = SourceOptions.parse({"path": "/s", "subscribePattern": "a.*", "startingTimestamp": "-10m"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_refusal_is_a_named_condition() -> None:
    for options in ({}, {"x": "1"}, {"startingOffsets": "{"}):
        with pytest.raises(SparkMqError, match=r"^\[SPARK_MQ_[A-Z_]+\] "):
            SourceOptions.parse(options)


@pytest.mark.parametrize(
    "text", ["A OR B", "A or B", "A,B", "A, B", "A | B", "A|B", "A B", "A;B", "'A' || 'B'", '"A" || "B"', "A || B, A"]
)
def test_tags_in_another_spelling_are_refused_with_the_right_one(text: str) -> None:
    """FilterAPI.buildSubscriptionData takes `A OR B` for one tag, and gives no message."""
    with pytest.raises(OptionError) as refused:
        parse(tags=text)
    assert "separated by ||" in refused.value.rule
    proposed = refused.value.rule.partition("write '")[2].partition("'")[0]
    assert proposed in ("A || B", "A || B || A")
    assert parse(tags=proposed).tags == ("A", "B")
    assert ".where(" in refused.value.rule


@pytest.mark.parametrize("text", ["a > 5", "color = 'red' AND a>5", "A && B", "TAGS in ('A')"])
def test_an_expression_is_told_what_tags_takes_and_no_list_of_its_pieces(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(tags=text)
    assert "takes tags separated by ||, as 'TagA || TagB'" in refused.value.rule
    assert "write '" not in refused.value.rule
    assert ".where(" in refused.value.rule


def test_a_column_that_is_like_no_other_is_answered_with_all_there_are() -> None:
    with pytest.raises(OptionError, match=r"no column 'zzz'; there are topic, broker_name, .*, store_size"):
        parse(columns="topic,zzz")


@pytest.mark.parametrize("text", ["key,value", "topic,value", "partition"])
def test_kafkas_columns_are_asked_for_all_together(text: str) -> None:
    with pytest.raises(OptionError, match="write columns=kafka"):
        parse(columns=text)


@pytest.mark.parametrize("text", ["Tag*", "A || *"])
def test_a_pattern_of_tags_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is no pattern"):
        parse(tags=text)


@pytest.mark.parametrize(
    ("number", "unit"),
    [(1_767_225_600, "seconds"), (1_767_225_600_000_000, "microseconds"), (1_767_225_600_000_000_000, "nanoseconds")],
)
@pytest.mark.parametrize(
    "option", ["startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"]
)
def test_a_time_in_another_unit_is_refused_with_the_milliseconds(option: str, number: int, unit: str) -> None:
    by_queue = f'{{"T": {{"a": {{"0": {number}}}}}}}'
    with pytest.raises(OptionError, match=f"looks like {unit}.*write 1767225600000$"):
        parse(**{option: by_queue if "Offsets" in option else str(number)})
