"""Wrong ways to use the clients."""

from __future__ import annotations

from typing import Any, cast

from spark_mq.client import (
    ClientSettings,
    ConsumeStatus,
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullSettings,
    PushConsumer,
    PushSettings,
)
from tests.client.planned_cluster import planned_cluster
from tests.first_mistakes.usages import Places, Wrong

NOBODY = ClientSettings("127.0.0.1:1", connect_timeout_ms=500, request_timeout_ms=500)
ANY = cast(Any, None)


def listen(messages: object, context: object) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


def _sends(**message: Any):  # type: ignore[no-untyped-def]
    """A message that is refused before it is sent."""

    def send(places: Places) -> None:
        with Producer(NOBODY, "wrong") as producer:
            producer.send(Message(**{"topic": "orders", "body": b"x", **message}))

    return send


def _after_close(places: Places) -> None:
    producer = Producer(NOBODY, "closed")
    producer.close()
    producer.send(Message("orders", b"x"))


def _poll_after_close(places: Places) -> None:
    consumer = PullConsumer(NOBODY, "closed")
    consumer.close()
    consumer.poll()


def _subscribe_after_close(places: Places) -> None:
    consumer = PushConsumer(NOBODY, "closed", listen)
    consumer.close()
    consumer.subscribe("orders")


def _subscribe(topic: str = "orders", expression: str | None = "*", kind: str = "TAG"):  # type: ignore[no-untyped-def]
    return lambda places: PushConsumer(NOBODY, "g", listen).subscribe(
        topic, expression, expression_type=cast(Any, kind)
    )


def _start_without_a_server(places: Places) -> None:
    consumer = PushConsumer(ClientSettings(places.closed), "g", listen)
    consumer.subscribe("orders")
    consumer.start()


def _pause_before_start(places: Places) -> None:
    PushConsumer(NOBODY, "g", listen).pause()


def _assign_and_subscribe(places: Places) -> None:
    with planned_cluster("broker-a") as cluster, PullConsumer(cluster.settings, "both") as consumer:
        consumer.assign([MessageQueue("T", "broker-a", 0)])
        consumer.subscribe("T")


def _twice(places: Places) -> None:
    with Producer(NOBODY, "twice"):
        Producer(NOBODY, "twice")


def _unknown_topic(places: Places) -> None:
    with Producer(ClientSettings(places.name_server), "g") as producer:
        producer.send(Message("orders", b"x"))


USAGES = (
    Wrong(
        "an address in place of settings",
        lambda places: Producer(cast(Any, "127.0.0.1:9876"), "g"),
        "settings='127.0.0.1:9876': it is str",
        'give ClientSettings("host:9876")',
    ),
    Wrong(
        "a consumer's address in place of settings",
        lambda places: PushConsumer(cast(Any, "a:1"), "g", listen),
        "it is str",
        'give ClientSettings("host:9876")',
    ),
    Wrong(
        "a pull consumer's address in place of settings",
        lambda places: PullConsumer(cast(Any, "a:1"), "g"),
        "it is str",
        'give ClientSettings("host:9876")',
    ),
    Wrong(
        "an address without a port",
        lambda places: ClientSettings("localhost"),
        "name_servers='localhost'",
        "an address is host:port",
    ),
    Wrong(
        "an address of HTTP",
        lambda places: ClientSettings("http://localhost:9876"),
        "name_servers=",
        "an address is host:port",
    ),
    Wrong("no address", lambda places: ClientSettings(""), "name_servers=''", "name at least one as host:port"),
    Wrong(
        "a time-out of seconds",
        lambda places: ClientSettings("a:1", request_timeout_ms=cast(Any, 0.5)),
        "request_timeout_ms=0.5",
        "milliseconds above 0",
    ),
    Wrong(
        "push settings as the listener",
        lambda places: PushConsumer(NOBODY, "g", cast(Any, PushSettings())),
        "listener=",
        "options=PushSettings(…)",
    ),
    Wrong(
        "no listener",
        lambda places: PushConsumer(NOBODY, "g"),
        "listener=None",
        "give either listener or orderly_listener",
    ),
    Wrong(
        "two listeners",
        lambda places: PushConsumer(NOBODY, "g", listen, orderly_listener=cast(Any, listen)),
        "listener=",
        "give either",
    ),
    Wrong(
        "settings of another consumer",
        lambda places: PullConsumer(NOBODY, "g", options=cast(Any, PushSettings())),
        "options=PushSettings",
        "give PullSettings(…)",
    ),
    Wrong(
        "settings of a consumer for a producer",
        lambda places: Producer(NOBODY, "g", options=cast(Any, PullSettings())),
        "options=PullSettings",
        "give ProducerSettings(…)",
    ),
    Wrong(
        "settings of a producer for a consumer",
        lambda places: PushConsumer(NOBODY, "g", listen, options=cast(Any, ProducerSettings())),
        "options=ProducerSettings",
        "give PushSettings(…)",
    ),
    Wrong(
        "a number of threads that is none",
        lambda places: PushSettings(thread_count=0),
        "thread_count=0",
        "from 1 to 1000",
    ),
    Wrong("a group with a blank", lambda places: Producer(NOBODY, "a b"), "group='a b'", "none of %|a-zA-Z0-9_-"),
    Wrong(
        "a consumer's group with a blank",
        lambda places: PushConsumer(NOBODY, "a b", listen),
        "'a b'",
        "none of %|a-zA-Z0-9_-",
    ),
    Wrong("a topic with a slash", _subscribe("a/b"), "'a/b'", "none of %|a-zA-Z0-9_-"),
    Wrong("tags that are bars", _subscribe(expression="||"), "names no tag", "'*' for all"),
    Wrong("an unknown expression type", _subscribe(expression="a", kind="XPATH"), "'XPATH'", "TAG or SQL92"),
    Wrong(
        "SQL92 without an expression",
        _subscribe(expression="", kind="SQL92"),
        "needs an expression",
        "subscribe to tags '*'",
    ),
    Wrong("a send after close", _after_close, "producer closed: it is closed", "Open a new one"),
    Wrong("a poll after close", _poll_after_close, "group closed: it is closed", "Open a new one"),
    Wrong("a subscription after close", _subscribe_after_close, "group closed: it is closed", "Open a new one"),
    Wrong("pause before the start", _pause_before_start, "it was not started", "Call start()"),
    Wrong("assign and subscribe", _assign_and_subscribe, "assign", "subscribe"),
    Wrong("a group twice", _twice, "already open", "another group"),
    Wrong("a start without a name server", _start_without_a_server, "no name server answers", "Check the addresses"),
    Wrong("a topic that no broker has", _unknown_topic, "topic", "create the topic"),
    Wrong("a text as body", _sends(body="text"), "body: it is str, not bytes", "encode()"),
    Wrong("an empty body", _sends(body=b""), "body: it is empty", "one byte"),
    Wrong("a body of 5 MB", _sends(body=bytes(5 << 20)), "body", "max_message_bytes"),
    Wrong("a number as key", _sends(keys=17), "keys: 17 is int", "give a list of texts"),
    Wrong("a key with a blank", _sends(keys=["a b"]), "a key of the list holds a blank", "two keys"),
    Wrong("a key with a separator", _sends(keys=["a\x01b"]), "keys", "0x01 or 0x02"),
    Wrong("a number as property", _sends(properties={"shop": 7}), "properties", "text"),
    Wrong(
        "a property of a broker's",
        _sends(properties={"UNIQ_KEY": "x"}),
        "UNIQ_KEY is reserved for brokers and clients",
        "take another name",
    ),
    Wrong("a negative delay level", _sends(delay_level=-1), "delay_level: -1 is no level", "counted from 1"),
    Wrong("a time in seconds", _sends(deliver_time_ms=1_700_000_000), "looks like seconds", "write 1700000000000"),
    Wrong(
        "a topic of the broker's",
        _sends(topic="SCHEDULE_TOPIC_XXXX"),
        "SCHEDULE_TOPIC_XXXX",
        "brokers keep it for themselves",
    ),
)
