"""Wrong ways to read."""

from __future__ import annotations

import os
from unittest.mock import patch

from pyspark.sql.types import DoubleType, LongType, StringType

from tests.first_mistakes.usages import Places, Wrong, read, schema_of, stream


def _with(**options: str):  # type: ignore[no-untyped-def]
    """A read of the store's topic with these options."""
    return lambda places: read(path=places.store, topic="orders", **options)


def _streaming(**options: str):  # type: ignore[no-untyped-def]
    return lambda places: stream(path=places.store, topic="orders", **options)


def _at(path: str):  # type: ignore[no-untyped-def]
    return lambda places: read(path=path, topic="orders")


def _cluster(address: str):  # type: ignore[no-untyped-def]
    return lambda places: read(nameServer=address, topic="orders", pullTimeout="1s")


def _other_checkpoint(places: Places) -> None:
    position = {"invoices": {"broker-tiny": {"0": {"next": 3, "before": None}}}}
    stream(position, path=places.store, topic="orders")


def _moved_checkpoint(places: Places) -> None:
    """Of the same topic in a store that had ten messages more."""
    position = {"orders": {"broker-tiny": {"0": {"next": 15, "before": [9000, 1_700_000_000_000]}}}}
    stream(position, path=places.store, topic="orders")


def _of_another_owner(places: Places) -> None:
    """Who runs the tests may mostly read everything: the error is what the system would raise."""
    owned, scandir = places.directory("owned"), os.scandir

    def refuse(path: str = ".") -> object:
        if str(path).startswith(owned):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with patch("os.scandir", refuse):
        read(path=owned, topic="orders")


_SHAPE = 'with one broker {"TOPIC": {"0": 12}}'

OPTIONS = (
    Wrong(
        "no options",
        lambda places: read(),
        "no option is given",
        "give path (a store) or nameServer (a running cluster), and topic",
    ),
    Wrong("no topic", lambda places: read(path=places.store), "option topic", "give exactly one of topic, subscribe"),
    Wrong("no path", lambda places: read(topic="orders"), "option path", "exactly one of path, paths and nameServer"),
    Wrong(
        "path and nameServer",
        lambda places: read(path=places.store, nameServer="a:1", topic="orders"),
        "option path",
        "exactly one of path, paths and nameServer",
    ),
    Wrong("topic and subscribe", _with(subscribe="orders"), "option topic", "give exactly one of"),
    Wrong(
        "kafka.bootstrap.servers",
        _with(**{"kafka.bootstrap.servers": "a:9092"}),
        "no option kafka.bootstrap.servers",
        "nameServer",
    ),
    Wrong("bootstrap.servers", _with(**{"bootstrap.servers": "a:9092"}), "no option bootstrap.servers", "nameServer"),
    Wrong("group.id", _with(**{"group.id": "g"}), "no option group.id", "consumerGroup"),
    Wrong("kafka.group.id", _with(**{"kafka.group.id": "g"}), "no option kafka.group.id", "consumerGroup"),
    Wrong("groupIdPrefix", _with(groupIdPrefix="g"), "no option groupidprefix", "consumerGroup"),
    Wrong(
        "auto.offset.reset",
        _with(**{"auto.offset.reset": "earliest"}),
        "no option auto.offset.reset",
        "startingOffsets",
    ),
    Wrong(
        "enable.auto.commit", _with(**{"enable.auto.commit": "true"}), "no option enable.auto.commit", "commitOffsets"
    ),
    Wrong(
        "namesrvAddr", lambda places: read(namesrvAddr="a:9876", topic="orders"), "no option namesrvaddr", "nameServer"
    ),
    Wrong("topics", lambda places: read(path=places.store, topics="orders"), "no option topics", "did you mean topic?"),
    Wrong("startingOffset", _with(startingOffset="earliest"), "no option startingoffset", "startingOffsets"),
    Wrong(
        "maxOffsetPerTrigger",
        _streaming(maxOffsetPerTrigger="5"),
        "no option maxoffsetpertrigger",
        "maxOffsetsPerTrigger",
    ),
    Wrong("an option like no other", _with(zzzzzz="1"), "no option zzzzzz", "docs/reading.md"),
    Wrong(
        "Kafka's columns and servers alone",
        lambda places: read(columns="kafka", subscribe="orders", **{"kafka.bootstrap.servers": "a:9092"}),
        "kafka.bootstrap.servers names no RocketMQ",
        "give nameServer",
    ),
    Wrong(
        "checkpointLocation of the source",
        _streaming(checkpointLocation="/c"),
        "option checkpointLocation",
        ".writeStream.option",
    ),
    Wrong("a sink's option in the source", _with(writeId="w"), "option writeId: it is for writing", "df.write"),
    Wrong("a live sink's option in the source", _with(acks="all"), "option acks: it is for writing", "df.write"),
    Wrong("a cluster's option with path", _with(accessKey="a", secretKey="b"), "option accessKey", "nameServer"),
    Wrong(
        "a batch's option in a stream",
        _streaming(endingOffsets="latest"),
        "option endingOffsets",
        "is for batch queries only",
    ),
    Wrong(
        "a stream's option in a batch",
        _with(maxOffsetsPerTrigger="5"),
        "option maxOffsetsPerTrigger",
        "is for streaming queries only",
    ),
    Wrong("a boolean that is yes", _with(failOnDataLoss="yes"), "option failOnDataLoss", "expected true or false"),
    Wrong("a size of no unit", _streaming(maxBytesPerTrigger="5x"), "option maxBytesPerTrigger", "such as 64m"),
    Wrong(
        "a number that is a word",
        _streaming(maxOffsetsPerTrigger="many"),
        "option maxOffsetsPerTrigger",
        "expected a whole number",
    ),
    Wrong("columns key,value", _with(columns="key,value"), "no column 'key'", "columns=kafka"),
    Wrong("a column of another name", _with(columns="bodies"), "no column 'bodies'", "did you mean body?"),
    Wrong(
        "the schema of the bodies",
        lambda places: read(schema_of(order=LongType(), amount=DoubleType()), path=places.store, topic="orders"),
        "no column 'order'",
        '.load().select(from_json(col("body").cast("string"), "order bigint, amount double"))',
    ),
    Wrong(
        "the schema of the bodies, Kafka's columns",
        lambda places: read(schema_of(order=LongType()), path=places.store, topic="orders", columns="kafka"),
        "no column 'order'",
        'from_json(col("value")',
    ),
    Wrong(
        "a schema with a misspelt column",
        lambda places: read(schema_of(tag=StringType()), path=places.store, topic="orders"),
        "no column 'tag'",
        "did you mean tags?",
    ),
    Wrong("tags with commas", _with(tags="A,B"), "option tags", "write 'A || B'"),
    Wrong("tags as an expression", _with(tags="a > 5"), "option tags", ".where("),
    Wrong("mode DROPMALFORMED", _with(mode="DROPMALFORMED"), "option mode", "use PERMISSIVE"),
    Wrong("SQL92 without an expression", _with(expressionType="SQL92"), "option expressionType", "nameServer"),
    Wrong(
        "an unknown expression type",
        lambda places: read(nameServer="a:1", topic="t", subExpression="a", expressionType="XPATH"),
        "option expressionType",
        "expected TAG or SQL92",
    ),
    Wrong(
        "commitOffsets without a group",
        _streaming(commitOffsets="true"),
        "option consumerGroup",
        "commitOffsets needs it",
    ),
)

PLACES = (
    Wrong(
        "a path where nothing is",
        _at("/no/such/store"),
        "no RocketMQ store at /no/such/store",
        "give the directory that holds commitlog/",
    ),
    Wrong(
        "a file",
        lambda places: read(path=places.file("a.txt", "x"), topic="orders"),
        "no RocketMQ store",
        "give the directory that holds commitlog/",
    ),
    Wrong(
        "an empty directory",
        lambda places: read(path=places.directory("empty"), topic="orders"),
        "no RocketMQ store",
        "give the directory that holds commitlog/",
    ),
    Wrong(
        "a part of a store",
        lambda places: read(path=f"{places.store}/commitlog", topic="orders"),
        "no RocketMQ store",
        "give",
    ),
    Wrong("a relative path that is not there", _at("data/store"), "/data/store", "give the directory"),
    Wrong("the directory of another user", _of_another_owner, "may not open", "the right to read"),
    Wrong("a path with ~", _at("~/store"), "~ is not expanded", "write the home directory out"),
    Wrong(
        "the address of a name server as path",
        _at("localhost:9876"),
        "this looks like a name server",
        "option nameServer",
    ),
    Wrong("a scheme that nobody opens", _at("foo://host/store"), "foo", "install"),
    Wrong("nameServer without a port", _cluster("localhost"), "option nameServer", "an address is host:port"),
    Wrong("nameServer as a URL", _cluster("http://localhost:9876"), "option nameServer", "an address is host:port"),
    Wrong(
        "nameServer with a port that is a word",
        _cluster("localhost:mq"),
        "option nameServer",
        "an address is host:port",
    ),
    Wrong("no name in nameServer", _cluster(";"), "option nameServer", "name at least one as host:port"),
    Wrong(
        "nameServer where none runs",
        lambda places: read(nameServer=places.closed, topic="orders", pullTimeout="1s"),
        "no name server answers",
        "check the option nameServer",
    ),
    Wrong(
        "several, none of which runs",
        lambda places: read(
            nameServer=f"{places.closed},{places.closed};127.0.0.1:1", topic="orders", pullTimeout="1s"
        ),
        "no name server answers",
        "check the option nameServer",
    ),
    Wrong(
        "a topic that no broker of the cluster has",
        lambda places: read(nameServer=places.name_server, topic="orders", pullTimeout="1s"),
        "orders",
        "no topics",
    ),
    Wrong(
        "a wrong line in broker.conf",
        lambda places: read(
            path=places.store, topic="orders", conf=places.file("bad.conf", "mappedFileSizeCommitLog=large\n")
        ),
        "mappedFileSizeCommitLog",
        "bad.conf",
    ),
    Wrong(
        "a broker.conf that is not there",
        lambda places: read(path=places.store, topic="orders", conf="/no/broker.conf"),
        "/no/broker.conf",
        "option conf",
    ),
)

QUEUES = (
    Wrong(
        "a misspelt topic",
        lambda places: read(path=places.store, topic="Orders"),
        "Orders: not in",
        "did you mean orders?",
    ),
    Wrong(
        "a list of topics",
        lambda places: read(path=places.store, topic="orders,payments"),
        "topic takes one name",
        "subscribe",
    ),
    Wrong(
        "a pattern that matches nothing",
        lambda places: read(path=places.store, subscribePattern="order"),
        "matches no topic",
        "allowEmpty=true",
    ),
    Wrong(
        "a pattern of a new stream that matches nothing",
        lambda places: stream(path=places.store, subscribePattern="order"),
        "matches no topic",
        "allowEmpty=true",
    ),
    Wrong(
        "a glob for a pattern",
        lambda places: read(path=places.store, subscribePattern="*"),
        "is not a regular expression",
        ".*",
    ),
    Wrong("a queue that is not there", _with(queueId="99"), "99 is no queue", "its queues are 0 to 7"),
    Wrong(
        "offsets that are a number",
        _with(startingOffsets="12"),
        "option startingOffsets",
        "earliest, latest, group or JSON",
    ),
    Wrong("offsets that are no JSON", _with(startingOffsets="{orders: 1}"), "not JSON", _SHAPE),
    Wrong("offsets of a wrong shape", _with(startingOffsets='{"orders": 5}'), "startingOffsets at /orders", _SHAPE),
    Wrong("a list of offsets", _with(startingOffsets='{"orders": [1, 2]}'), "startingOffsets at /orders", _SHAPE),
    Wrong(
        "offsets of one queue of four",
        _with(startingOffsets='{"orders": {"0": 1}}'),
        "must name every queue",
        "these queues are missing",
    ),
    Wrong(
        "offsets of a queue that is not there",
        _with(startingOffsets='{"orders": {"0": 1, "1": 0, "2": 0, "3": 0, "9": 0}}'),
        "orders/broker-tiny/9",
        "must name every queue of the query and no other",
    ),
    Wrong(
        "an offset beyond the end",
        _with(startingOffsets='{"orders": {"0": 999, "1": 0, "2": 0, "3": 0}}'),
        "999 is outside [0, 5]",
        "correct the option",
    ),
    Wrong(
        "a negative offset",
        _with(startingOffsets='{"orders": {"0": -7, "1": 0, "2": 0, "3": 0}}'),
        "found -7",
        "-1 (latest) or -2 (earliest)",
    ),
    Wrong("latest for a batch's start", _with(startingOffsets="latest"), "cannot start at the latest", "earliest"),
    Wrong("a time in seconds", _with(startingTimestamp="1700000000"), "looks like seconds", "write 1700000000000"),
    Wrong("a time in words", _with(startingTimestamp="yesterday"), "found 'yesterday'", "-10m"),
    Wrong(
        "a start after the end",
        _with(startingTimestamp="-1h", endingTimestamp="-2h"),
        "is later than endingTimestamp",
        "startingTimestamp",
    ),
    Wrong(
        "a time after the last message",
        _with(startingTimestamp="2100-01-01"),
        "holds no message",
        "startingOffsetsByTimestampStrategy",
    ),
    Wrong(
        "a group that is not there",
        _with(startingOffsets="group", consumerGroup="nobody"),
        "group nobody has stored no offset",
        "check consumerGroup",
    ),
    Wrong(
        "the checkpoint of another query", _other_checkpoint, "the checkpoint is another query's", "checkpointLocation"
    ),
    Wrong("a checkpoint at another store", _moved_checkpoint, "before offset 15 of the checkpoint", "failOnDataLoss"),
)

USAGES = (*OPTIONS, *PLACES, *QUEUES)
