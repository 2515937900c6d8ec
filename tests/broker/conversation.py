"""What clients ask a broker, step by step: with the same steps two brokers give the same answers, but for what `masked` hides."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spark_mq.remoting import RemotingCommand, write_body
from spark_mq.remoting.consumers import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    LockBody,
    ProducerData,
    SubscriptionData,
)
from storage.format.arrays import string_hash
from storage.format.fastjson import parse_sent
from storage.format.record import Message, decode_record, encode_offset_message_id
from storage.format.typed_json import MessageQueue, SubscriptionGroupConfig
from storage.rules.response_codes import ResponseCode
from tests.broker.peers import Peers

BROKER = "broker-lab"
SETTINGS = {
    "timerWheelEnable": "true",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "maxMessageSize": "65536",
}
"""Of the broker, besides those of every test's."""
_TIMES = {
    *("lastUpdateTimestamp", "lastTimestamp", "timestamp", "delayTime"),
    *("minTimeStamp", "maxTimeStamp", "consumeTimeStamp"),
}
_HIDDEN = {
    *("minTimeStampStr", "maxTimeStampStr", "consumeTimeStampStr"),
    *("clientAddr", "remoteIP", "brokerAddr", "counter", "stateVersion"),
    *("tps", "sum", "avgpt", "consumeTps", "topicPutTps"),
}


def encode_batch_item(body: bytes, flag: int, properties: bytes) -> bytes:
    """A message within a batch. Java: MessageDecoder.encodeMessage."""
    numbers = (0, 0, 0, flag, len(body))
    size = 4 * 5 + len(body) + 2 + len(properties)
    head = b"".join(number.to_bytes(4, "big") for number in (size, *numbers[1:]))
    return head + body + len(properties).to_bytes(2, "big") + properties


class Exchange(NamedTuple):
    """A step and what came of it, without what differs from run to run; JSON can hold it."""

    step: str
    said: Any


def as_text(said: Sequence[Exchange]) -> str:
    """A line for each step."""
    return "".join(json.dumps(exchange, sort_keys=True) + "\n" for exchange in said)


def masked(answer: RemotingCommand) -> dict[str, Any]:
    """The answer's parts, fit to be compared."""
    fields = None if answer.ext_fields is None else dict(answer.ext_fields)
    for name in ("timestamp", "indexLastUpdateTimestamp", "version"):
        if fields and name in fields:
            fields[name] = "a time" if fields[name] not in ("-1", "0") else fields[name]
    if fields and "msgId" in fields:  # without the port
        fields["msgId"] = ",".join(one[:8] + one[16:] for one in fields["msgId"].split(","))
    remark = answer.remark and re.sub(r"/?127\.0\.0\.1:\d+", "ADDRESS", answer.remark)
    if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED and remark and ".java" not in remark:
        remark = remark if remark.startswith("parse the") else "what the parser says"
    return {"code": answer.code, "remark": remark, "fields": fields, "body": _body(bytes(answer.body))}


def _without_id(fields: Mapping[str, str] | None) -> dict[str, str]:
    return {name: text for name, text in (fields or {}).items() if name != "msgId"}


def _body(body: bytes) -> Any:
    if body[:1] in (b"{", b"["):
        return _hidden(parse_sent(body.decode()))
    if b"brokerName=" in body:
        return "settings"
    return _records(body) if body else None


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        found = {}
        for key, item in value.items():
            name = key
            if key.startswith("{"):
                name = str(sorted(parse_sent(key).items()))
            found[name] = "hidden" if (key in _TIMES and item not in (0, -1)) or key in _HIDDEN else _hidden(item)
        return found
    if isinstance(value, list):
        return sorted((_hidden(item) for item in value), key=str)
    return value


def _records(body: bytes) -> list[dict[str, Any]]:
    found, at = [], 0
    while at < len(body):
        record = decode_record(body, at)
        assert isinstance(record, Message)
        found.append(
            {
                "topic": record.topic,
                "queue": record.queue_id,
                "offset": record.queue_offset,
                "place": record.commitlog_offset,
                "body": f"{len(record.body)}: {record.body[:20].decode('latin-1')}",
                "flags": [record.flag, record.sys_flag, record.reconsume_times],
                "properties": record.properties,
            }
        )
        at += record.size_bytes
    return found


class Conversation:
    """Steps at one broker."""

    def __init__(self, peers: Peers, port: int) -> None:
        self._peers = peers
        self._port = port
        self.said: list[Exchange] = []
        self._hides_places = False

    def say(
        self, step: str, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"", *, client: str = "admin"
    ) -> RemotingCommand:
        answer = self._peers.ask(client, code, fields, body)
        said = masked(answer)
        if self._hides_places and said["fields"]:
            said["fields"].pop("msgId", None)
            said["fields"].pop("recallHandle", None)
        self.said.append(Exchange(f"{step} ({code})", said))
        return answer

    def note(self, step: str, what: Any) -> None:
        self.said.append(Exchange(step, what))

    def all(self) -> list[Exchange]:
        """The whole conversation."""
        self._topics()
        self._sends()
        self._queues()
        self._pulls()
        self._sql()
        self._consumers()
        self._assignments()
        self._long_polls()
        self._locks()
        self._offsets()
        self._resets()
        self._queries()
        self._progress()
        self._groups()
        self._operators()
        self._deletions()
        self._transactions()
        self._replies()
        self._recalls()
        return self.said

    # Parts

    def _topics(self) -> None:
        for name, queues, more in (
            ("Sent", 2, {}),
            ("Few", 1, {"writeQueueNums": 3}),
            ("Mute", 1, {"perm": 2}),
            ("Ordered", 2, {"order": "true"}),
            ("Typed", 1, {"attributes": "+message.type=FIFO"}),
            ("Typed", 1, {"attributes": "-message.type"}),
            ("Typed", 1, {"attributes": "-message.type"}),
            ("Typed", 1, {"attributes": "message.type=FIFO"}),
            ("Typed", 1, {"attributes": "+no.such=1"}),
            ("Typed", 1, {"attributes": "+queue.type=SimpleCQ"}),
            ("Typed2", 1, {"attributes": "+message.type=MIXED"}),
            ("Typed3", 1, {"attributes": "-message.type"}),
            ("Sent", 2, {}),
            ("bad topic!", 1, {}),
            ("", 1, {}),
            ("TBW102", 1, {}),
            ("x" * 128, 1, {}),
        ):
            self.say(f"topic {name[:20]} {more}", 17, self._topic(name, queues) | more)
        body = b'{"topicConfigList":[{"topicName":"Listed","readQueueNums":2,"writeQueueNums":2,"perm":6}]}'
        self.say("topic list", 18, {}, body)
        for name in ("Sent", "Few", "Typed", "Listed", "Nothing", "SCHEDULE_TOPIC_XXXX", BROKER):
            self.say(f"config of {name}", 351, {"topic": name})
        self.say("all topics", 21)
        self.say("system topics", 305)

    @staticmethod
    def _topic(name: str, queues: int) -> dict[str, Any]:
        return {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }

    def _send(self, step: str, topic: str, properties: str, body: bytes, queue_id: int = 0) -> RemotingCommand:
        return self.say(step, 310, self._message(topic, properties, queue_id), body, client="producer")

    @staticmethod
    def _message(topic: str, properties: str, queue_id: int = 0) -> dict[str, Any]:
        values = (
            "producers",
            topic,
            "TBW102",
            4,
            queue_id,
            0,
            1_700_000_000_000,
            0,
            properties,
            0,
            "false",
            16,
            "false",
        )
        return dict(zip("abcdefghijklm", values, strict=True))

    def _sends(self) -> None:
        for number in range(60):
            tag = ("red", "green", "blue")[number % 3]
            properties = f"UNIQ_KEY\x01U{number:031d}\x02TAGS\x01{tag}\x02KEYS\x01key-{number % 7} all\x02n\x01{number}"
            self._send(f"send {number}", "Sent", properties, b"body %d" % number)
        for number in range(6):
            self._send(f"large {number}", "Few", f"UNIQ_KEY\x01L{number:031d}", b"x" * 60_000)
        self._send("illegal queue", "Sent", "UNIQ_KEY\x01A", b"x", 7)
        self._send("too large", "Sent", "UNIQ_KEY\x01A", b"x" * 70_000)
        self._send("to a mute topic", "Mute", f"UNIQ_KEY\x01M{0:031d}", b"said")
        self._send("to a new topic", "Fresh", f"UNIQ_KEY\x01F{0:031d}", b"said")
        self.say("unknown code", 9_999, {})
        names = (
            "producerGroup",
            "topic",
            "defaultTopic",
            "defaultTopicQueueNums",
            "queueId",
            "sysFlag",
            "bornTimestamp",
        )
        names += ("flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch")
        long_names = dict(zip(names, self._message("Few", f"UNIQ_KEY\x01O{0:031d}").values(), strict=True))
        self.say("send with long names", 10, long_names, b"old", client="producer")
        items = [encode_batch_item(b"item %d" % number, 0, b"TAGS\x01t") for number in range(3)]
        batch = self._message("Few", f"UNIQ_KEY\x01B{0:031d}") | {"m": "true"}
        self.say("batch", 320, batch, b"".join(items), client="producer")
        back = {"offset": 0, "group": "returners", "delayLevel": 18, "originMsgId": "m", "originTopic": "Sent"}
        self.say("send back", 36, back)
        self.say("send back at once to the dead letters", 36, back | {"delayLevel": -1})
        self.say("send back of nothing", 36, back | {"offset": 99_999_999})
        self._dispatched()
        for topic in ("%RETRY%returners", "%DLQ%returners"):
            self.say(f"stats of {topic}", 202, {"topic": topic})

    def _queues(self) -> None:
        for topic, queue_id in (("Sent", 0), ("Sent", 1), ("Few", 0), ("Nothing", 0), ("Sent", 9)):
            queue = {"topic": topic, "queueId": queue_id}
            self.say(f"max of {queue}", 30, queue | {"committed": "true"})
            self.say(f"min of {queue}", 31, queue)
            self.say(f"earliest of {queue}", 32, queue)
            for time_ms in (0, 4_000_000_000_000):
                for boundary in ("LOWER", "UPPER"):
                    fields = queue | {"timestamp": time_ms, "boundaryType": boundary}
                    self.say(f"search {fields}", 29, fields)
        for topic in ("Sent", "Few", "Nothing", "Mute"):
            self.say(f"stats of {topic}", 202, {"topic": topic})

    def _pull(self, step: str, client: str = "reader", **fields: Any) -> RemotingCommand:
        code = fields.pop("code", 11)
        return self.say(step, code, self._pull_fields(**fields), client=client)

    @staticmethod
    def _pull_fields(**fields: Any) -> dict[str, Any]:
        values: dict[str, Any] = {
            "consumerGroup": "readers",
            "topic": "Sent",
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 300,
            "subscription": "*",
            "subVersion": 0,
        }
        return values | fields

    def _pulls(self) -> None:
        for offset in (0, 10, 59, 60, 61, 1_000, -1):
            self._pull(f"pull at {offset}", queueOffset=offset)
        for most in (1, 5, 100, 0, -3):
            self._pull(f"pull {most}", maxMsgNums=most)
        for expression in ("red", "red || blue", " red||", "none", "", "||", "red||||green"):
            self._pull(f"pull {expression!r}", subscription=expression, maxMsgNums=3)
        self._pull("pull without a subscription text", maxMsgNums=1, subscription="*", expressionType="TAG")
        self._pull("pull of an unknown type", subscription="red", expressionType="XPATH")
        self._pull("pull of large ones", topic="Few", maxMsgNums=10)
        self._pull("pull of large ones further on", topic="Few", queueOffset=4)
        self._pull("pull of an empty queue", queueId=1)
        self._pull("pull of an empty queue at 3", queueId=1, queueOffset=3)
        self._pull("pull of no queue", queueId=2)
        self._pull("pull of a negative queue", queueId=-1)
        self._pull("pull of no topic", topic="Nothing")
        self._pull("pull of a mute topic", topic="Mute")
        self._pull("pull of fewer queues than are written", topic="Few", queueId=1)
        self._pull("pull of an illegal group", consumerGroup="no group!")
        self._pull("lite pull", code=361, sysFlag=22, queueOffset=50)
        self._pull("pull without a heartbeat", consumerGroup="strangers", sysFlag=0)
        self._pull("pull with commit", consumerGroup="committers", sysFlag=5, commitOffset=17)
        self.say("committed by a pull", 14, {"consumerGroup": "committers", "topic": "Sent", "queueId": 0})

    def _sql(self) -> None:
        for expression in (
            "n > 55",
            "n BETWEEN 3 AND 5",
            "n = 7 junk",
            "TAGS = 'red' AND n < 10",
            "n IN ('1', '2')",
            "KEYS CONTAINS 'key-3'",
            "nothing IS NULL AND n > 57",
            "n > 58.5",
            "n NOT BETWEEN 2 AND 58",
            "NOT n > 1",
            "broken >",
            "n",
        ):
            fields = {"subscription": expression, "expressionType": "SQL92", "maxMsgNums": 4}
            self._pull(f"SQL {expression}", **fields)
            sub = SubscriptionData(topic="Sent", sub_string=expression, expression_type="SQL92")
            body = write_body(CheckClientBody(client_id="c", group="sql", subscription=sub))
            self.say(f"check {expression}", 46, {}, body)
        tags = SubscriptionData(topic="Sent", sub_string="red")
        self.say("check tags", 46, {}, write_body(CheckClientBody(client_id="c", group="sql", subscription=tags)))

    def _heartbeat(self, client: str, group: str, *subscriptions: SubscriptionData, **more: Any) -> None:
        model = more.pop("model", "CLUSTERING")
        data = ConsumerData(
            group_name=group,
            consume_type=more.pop("type", "CONSUME_PASSIVELY"),
            message_model=model,
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscriptions=subscriptions,
        )
        producers = (ProducerData(group_name="producers"),) if more.pop("produces", False) else ()
        beat = HeartbeatData(client_id=f"{client}@id", consumers=(data,), producers=producers, **more)
        self.say(f"heartbeat of {client} {group} {more}", 34, {}, write_body(beat), client=client)

    @staticmethod
    def _subscribed(topic: str, expression: str = "*", version: int = 100, kind: str = "TAG") -> SubscriptionData:
        tags = tuple(tag.strip() for tag in expression.split("||")) if kind == "TAG" and expression != "*" else ()
        codes = tuple(map(string_hash, tags))
        return SubscriptionData(
            topic=topic, sub_string=expression, tags=tags, codes=codes, sub_version=version, expression_type=kind
        )

    def _notices(self, step: str, *clients: str) -> None:
        """What clients were told since they were asked before."""
        self._peers.pause(0.3)
        for client in clients:
            told, self._peers.notices[client] = self._peers.notices[client], []
            self.note(f"{step}: {client} was told", told)

    def _consumers(self) -> None:
        peers = self._peers
        sent = self._subscribed("Sent", "red || blue")
        self.say("no consumers", 38, {"consumerGroup": "team"})
        self.say("nobody online", 203, {"consumerGroup": "team"})
        self._heartbeat("ann", "team", sent, self._subscribed("%RETRY%team"), produces=True)
        self._notices("first", "ann")
        self._heartbeat("bob", "team", sent, self._subscribed("%RETRY%team"))
        self._notices("second", "ann", "bob")
        self._heartbeat("bob", "team", sent, self._subscribed("%RETRY%team"))
        self._notices("again", "ann", "bob")
        self._heartbeat("bob", "team", self._subscribed("Sent", "green", 200), self._subscribed("%RETRY%team"))
        self._notices("newer version", "ann", "bob")
        self._heartbeat("bob", "team", self._subscribed("Sent", "green", 200))
        self._notices("one topic less", "ann", "bob")
        for topic in ("%RETRY%team", "%RETRY%strangers"):
            self.say(f"config of {topic}", 351, {"topic": topic})
        self.say("consumers", 38, {"consumerGroup": "team"})
        self.say("connections", 203, {"consumerGroup": "team"})
        self.say("producers", 204, {"producerGroup": "producers"})
        self.say("no producers", 204, {"producerGroup": "nobody"})
        self.say("all producers", 328)
        self.say("subscription", 345, {"group": "team", "topic": "Sent"})
        self.say("no subscription", 345, {"group": "team", "topic": "Few"})
        team = {"consumerGroup": "team", "sysFlag": 0, "maxMsgNums": 2}
        self._pull("pull by heartbeat", "ann", **team, subVersion=200)
        self._pull("pull of an older heartbeat", "ann", **team, subVersion=201)
        self._pull("pull of another topic", "ann", **team, topic="Few")
        self.say("forbid", 353, {"group": "team", "topic": "Sent", "readable": "false"})
        self._pull("pull of what is forbidden", "ann", **team)
        self.say("forbidden?", 353, {"group": "team", "topic": "Sent"})
        self.say("allow", 353, {"group": "team", "topic": "Sent", "readable": "true"})
        self._pull("pull of what is allowed again", "ann", **team)
        self._heartbeat("eve", "sqlers", self._subscribed("Sent", "n > 57", 300, "SQL92"))
        self._pull("SQL by heartbeat", "eve", consumerGroup="sqlers", sysFlag=0, subVersion=300)
        self._pull("SQL of an older heartbeat", "eve", consumerGroup="sqlers", sysFlag=0, subVersion=301)
        self._heartbeat("eve", "sqlers", self._subscribed("Sent", "n >", 302, "SQL92"))
        self._pull("SQL that is none", "eve", consumerGroup="sqlers", sysFlag=0, subVersion=300)
        self._heartbeat("dan", "radio", self._subscribed("Sent"), model="BROADCASTING")
        self._heartbeat("fay", "radio", self._subscribed("Sent"), model="BROADCASTING")
        self._notices("broadcast", "dan", "fay")
        v2 = {"heartbeat_fingerprint": 77}
        self._heartbeat("ida", "seconds", self._subscribed("Sent"), **v2)
        self._heartbeat("ida", "seconds", self._subscribed("Sent"), **v2, without_sub=True)
        self._heartbeat("ida", "seconds", self._subscribed("Sent"), heartbeat_fingerprint=78, without_sub=True)
        self.say("connections of seconds", 203, {"consumerGroup": "seconds"})
        self._heartbeat("ida", "bad group!", self._subscribed("Sent"))
        info = {"consumerGroup": "team", "clientId": "ann@id", "jstackEnable": "false"}
        self.say("running info", 307, info)
        self.note("ann was asked", [[one.code, dict(one.ext_fields or {})] for one in peers.asked["ann"]])
        self.say("running info of nobody", 307, info | {"clientId": "zoe"})
        self.say("status", 223, {"topic": "Sent", "group": "team", "clientAddr": "ann@id"})
        message_id = encode_offset_message_id(b"\x7f\0\0\1", self._port, 0)
        directly = {"consumerGroup": "team", "clientId": "ann@id", "msgId": message_id, "topic": "Sent"}
        self.say("consume directly", 309, directly)
        asked = peers.asked["ann"][-1]
        self.note("ann was asked to consume", [asked.code, _without_id(asked.ext_fields), _records(bytes(asked.body))])
        self.say("leave", 35, {"clientID": "bob@id", "consumerGroup": "team"}, client="bob")
        self._notices("left", "ann", "bob")
        self._heartbeat("bob", "team", self._subscribed("Sent"))
        self._notices("back", "ann", "bob")
        peers.hang_up("bob")
        self._notices("hung up", "ann")
        self.say("consumers at the end", 38, {"consumerGroup": "team"})

    def _assignments(self) -> None:
        self.say("topic Wide", 17, self._topic("Wide", 5))
        self.say("topic Unread", 17, self._topic("Unread", 2) | {"perm": 2})
        self._peers.pause(1)  # until name servers know them
        self._asks_for_queues("of nobody's group")
        for client in ("gus", "hal"):
            self._heartbeat(client, "sharers", self._subscribed("Wide"))
        for client in ("gus", "hal", "zoe"):
            for strategy in ("AVG", "AVG_BY_CIRCLE"):
                self._asks_for_queues(f"{strategy} of {client!r}", clientId=f"{client}@id", strategyName=strategy)
        self._asks_for_queues("of a blank client", clientId=" ")
        for strategy in ("CONFIG", "MACHINE_ROOM", "CONSISTENT_HASH", "avg", ""):
            self._asks_for_queues(f"by {strategy!r}", strategyName=strategy)
        for topic in ("Wide", "Unread", "Nothing", "%RETRY%sharers", "%RETRY%strangers"):
            self._asks_for_queues(f"of {topic}", topic=topic)
            self._asks_for_queues(f"of {topic} for all", topic=topic, messageModel="BROADCASTING")
        mode = {"topic": "Wide", "consumerGroup": "sharers", "mode": "PULL", "popShareQueueNum": 0}
        for more in ({}, {"topic": "%RETRY%sharers"}, {"topic": "Nothing"}, {"consumerGroup": "no group!"}):
            self.say(f"mode {more}", 401, {}, json.dumps(mode | more).encode())
        self._asks_for_queues("with a mode")

    def _asks_for_queues(self, step: str, **fields: str) -> None:
        asked = {
            "topic": "Wide",
            "consumerGroup": "sharers",
            "clientId": "gus@id",
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        }
        self.say(f"queues {step}", 400, {}, json.dumps(asked | fields).encode())

    def _long_polls(self) -> None:
        end = {"queueId": 1, "queueOffset": 0, "sysFlag": 6, "suspendTimeoutMillis": 20_000}
        all_of_it = self._peers.start("reader", 11, self._pull_fields(**end))
        only_red = self._peers.start("reader", 11, self._pull_fields(**end, subscription="red"))
        self._peers.pause(0.3)
        self.note("both wait", (all_of_it.done(), only_red.done()))
        self._send("wakes one", "Sent", f"UNIQ_KEY\x01W{0:031d}\x02TAGS\x01green", b"woken", 1)
        self._peers.until(all_of_it.done)
        self.note("woken", (masked(all_of_it.result(20)), only_red.done()))
        self._send("wakes the other", "Sent", f"UNIQ_KEY\x01W{1:031d}\x02TAGS\x01red", b"woken", 1)
        self._peers.until(only_red.done)
        self.note("woken by its tag", masked(only_red.result(20)))
        short = self._peers.start(
            "reader", 11, self._pull_fields(**end | {"queueOffset": 2, "suspendTimeoutMillis": 100})
        )
        self._peers.until(short.done)
        self.note("its time is up", masked(short.result(20)))

    def _locks(self) -> None:
        def body(client: str, *queues: int) -> bytes:
            found = tuple(MessageQueue("Sent", BROKER, queue_id) for queue_id in queues)
            return write_body(LockBody(consumer_group="team", client_id=client, queues=found))

        self.say("lock", 41, {}, body("ann", 0, 1))
        self.say("lock of another", 41, {}, body("bob", 0, 1, 2))
        self.say("lock again", 41, {}, body("ann", 0))
        self.say("unlock of another's", 42, {}, body("bob", 0))
        self.say("lock of another's", 41, {}, body("bob", 0))
        self.say("unlock", 42, {}, body("ann", 0))
        self.say("lock of what is free", 41, {}, body("bob", 0))

    def _offsets(self) -> None:
        queue = {"consumerGroup": "team", "topic": "Sent", "queueId": 0}
        self.say("no offset", 14, queue)
        self.say("no offset, no zero", 14, queue | {"setZeroIfNotFound": "false"})
        self.say("no offset of no queue", 14, queue | {"queueId": 5})
        self.say("commit", 15, queue | {"commitOffset": 40})
        self.say("offset", 14, queue)
        self.say("commit backwards", 15, queue | {"commitOffset": 30})
        self.say("offset", 14, queue)
        self.say("commit of no group", 15, queue | {"consumerGroup": "nobody", "commitOffset": 1})
        self.say("commit of no topic", 15, queue | {"topic": "Nothing", "commitOffset": 1})

    def _resets(self) -> None:
        reset = {"group": "team", "topic": "Sent", "timestamp": -1, "isForce": "true"}
        queue = {"consumerGroup": "team", "topic": "Sent", "queueId": 0}
        self.say("reset to an offset", 222, reset | {"queueId": 0, "offset": 12})
        self.say("commit while reset", 15, queue | {"commitOffset": 50})
        self.say("offset while reset", 14, queue)
        self._pull("pull while reset", "ann", consumerGroup="team", queueOffset=30)
        self._pull("pull after reset", "ann", consumerGroup="team", queueOffset=30, maxMsgNums=1)
        self.say("commit after reset", 15, queue | {"commitOffset": 13})
        self.say("reset out of range", 222, reset | {"queueId": 0, "offset": 100})
        self.say("reset by time", 222, reset | {"queueId": -1, "timestamp": 0})
        self.say("reset to the end", 222, reset)
        self.say("reset of no group", 222, reset | {"group": "nobody"})
        self.say("reset of no topic", 222, reset | {"topic": "Nothing"})
        for queue_id in (0, 1):
            self._pull(f"pull takes the reset {queue_id}", "ann", consumerGroup="team", queueId=queue_id)

    def _queries(self) -> None:
        span = {"beginTimestamp": 0, "endTimestamp": 2**63 - 1, "maxNum": 5}
        for key in ("key-3", "all", "nothing", f"U{3:031d}"):
            self.say(f"query {key}", 12, span | {"topic": "Sent", "key": key})
        self.say("unique", 12, span | {"topic": "Sent", "key": f"U{3:031d}", "_UNIQUE_KEY_QUERY": "true"})
        self.say("query in the past", 12, span | {"topic": "Sent", "key": "all", "endTimestamp": 1})
        self.say("query of no topic", 12, span | {"topic": "Nothing", "key": "all"})
        self.say("view", 33, {"topic": "Sent", "offset": 0})
        self.say("view of nothing", 33, {"topic": "Sent", "offset": 99_999_999})

    def _progress(self) -> None:
        for fields in (
            {"consumerGroup": "team"},
            {"consumerGroup": "team", "topic": "Sent"},
            {"consumerGroup": "committers", "topic": "Sent"},
            {"consumerGroup": "nobody"},
            {"consumerGroup": "team", "topicList": "Sent;Few;"},
        ):
            self.say(f"consume stats {fields}", 208, fields)
        self.say("time spans", 303, {"group": "team", "topic": "Few"})
        self.say("time spans of no topic", 303, {"group": "team", "topic": "Nothing"})
        self.say("groups of a topic", 300, {"topic": "Few"})
        self.say("groups of a subscribed topic", 300, {"topic": "Sent"})
        self.say("topics of a group", 343, {"group": "team"})
        self.say("corrections", 308, {"compareGroup": "committers", "topic": "Sent", "filterGroups": ""})
        self.say("clone", 314, {"srcGroup": "committers", "destGroup": "clones", "topic": "Sent", "offline": "true"})
        self.say("cloned", 14, {"consumerGroup": "clones", "topic": "Sent", "queueId": 0})
        self.say("figures", 315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Sent"})
        self.say("figures of a group", 315, {"statsName": "GROUP_GET_NUMS", "statsKey": "Sent@readers"})
        self.say("no figures", 315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Nothing"})
        self.say("entries", 321, {"topic": "Sent", "queueId": 0, "index": 5, "count": 2})
        self.say(
            "entries for a group", 321, {"topic": "Few", "queueId": 0, "index": 0, "count": 1, "consumerGroup": "x"}
        )
        self.say("no entries", 321, {"topic": "Sent", "queueId": 0, "index": 500, "count": 2})

    def _replies(self) -> None:
        def reply(step: str, code: int, properties: str) -> None:
            fields = self._message("LabCluster_REPLY_TOPIC", properties)
            self.say(step, code, fields, b"answer", client="replier")

        reply("reply to nobody", 325, f"UNIQ_KEY\x01R{0:031d}")
        reply("reply to one who is away", 325, f"UNIQ_KEY\x01R{1:031d}\x02REPLY_TO_CLIENT\x01zoe@id")
        reply("reply", 325, f"UNIQ_KEY\x01R{2:031d}\x02REPLY_TO_CLIENT\x01ann@id\x02CORRELATION_ID\x01c")
        asked = self._peers.asked["ann"][-1]
        fields = dict(asked.ext_fields or {})
        told = {name: text for name, text in fields.items() if name not in ("properties", "storeTimestamp")}
        told |= {"bornHost": "ADDRESS", "storeHost": "ADDRESS"}
        names = sorted(pair.partition("\x01")[0] for pair in fields["properties"].split("\x02") if pair)
        self.note("ann got the reply", [asked.code, told, names, bytes(asked.body).decode()])

    def _recalls(self) -> None:
        def handle(topic: str, time_ms: int, broker: str = BROKER) -> str:
            return base64.urlsafe_b64encode(f"v1 {topic} {broker} {time_ms} K{0:031d}".encode()).decode()

        now_ms = self._peers.now_ms()
        timed = f"UNIQ_KEY\x01K{0:031d}\x02TIMER_DELIVER_MS\x01{now_ms + 7_200_000}"
        self._send("timed message", "Few", timed, b"later")
        recall = {"producerGroup": "producers", "topic": "Few", "recallHandle": handle("Few", now_ms + 7_200_000)}
        self.say("recall", 370, recall)
        self.say("recall of no topic", 370, recall | {"topic": "Nothing"})
        self.say("recall of another topic", 370, recall | {"recallHandle": handle("Sent", now_ms + 7_200_000)})
        self.say("recall at another broker", 370, recall | {"recallHandle": handle("Few", now_ms + 7_200_000, "other")})
        self.say("recall of what was delivered", 370, recall | {"recallHandle": handle("Few", now_ms - 1)})
        self.say("recall of nonsense", 370, recall | {"recallHandle": "nonsense"})

    def _groups(self) -> None:
        group = SubscriptionGroupConfig(group="made", retry_max_times=3, consume_enable=False)
        self.say("make a group", 200, {}, write_body(group))
        self.say("config of a group", 352, {"group": "made"})
        self.say("config of a new group", 352, {"group": "asked"})
        self.say("config of an illegal group", 352, {"group": "no group!"})
        self._pull("pull of a group that may not", consumerGroup="made")
        self.say("delete a group", 207, {"groupName": "made", "cleanOffset": "false"})
        self.say("delete it again", 207, {"groupName": "made", "cleanOffset": "true"})
        self.say("delete with offsets", 207, {"groupName": "committers", "cleanOffset": "true"})
        self.say("offsets are gone", 14, {"consumerGroup": "committers", "topic": "Sent", "queueId": 1})
        self.say("all groups", 201)
        groups = b'{"groupConfigList":[{"groupName":"listed","retryMaxTimes":2},{"groupName":"listed2"}]}'
        self.say("make groups", 225, {}, groups)
        self.say("config of a listed group", 352, {"group": "listed"})
        self.say("stats of all groups", 317, {"isOrder": "false"})
        self.say("replication", 907)

    def _operators(self) -> None:
        self.say("settings", 26)
        self.say("barred setting", 25, {}, b"brokerConfigPath=/tmp/x\n")
        self.say("clean unused", 316)
        self.say("clean expired", 306)
        self.note("figures of the broker", sorted(self._figures()))

    def _figures(self) -> set[str]:
        return {
            name for name in self._table() if not name.startswith(("commitLogDiskRatio_", "scheduleMessageOffset_"))
        }

    def _table(self) -> dict[str, str]:
        table: dict[str, str] = parse_sent(bytes(self._peers.ask("admin", 28).body).decode())["table"]
        return table

    def _dispatched(self) -> None:
        """Wait until the queues have what was sent: the Apache broker dispatches in a thread of its own."""
        assert self._peers.until(lambda: self._table()["dispatchBehindBytes"] == "0")

    def _deletions(self) -> None:
        self.say("delete a topic", 215, {"topic": "Sent"})
        self.say("delete it again", 215, {"topic": "Sent"})
        self.say("delete nothing", 215, {"topic": " "})
        self.say("delete a system topic", 215, {"topic": "TBW102"})
        self._pull("pull of what is deleted")
        self.say("offset of what is deleted", 14, {"consumerGroup": "clones", "topic": "Sent", "queueId": 0})
        self.say("make it again", 17, self._topic("Sent", 2))
        self._send("send anew", "Sent", f"UNIQ_KEY\x01N{0:031d}", b"anew")
        self._dispatched()
        self._pull("pull anew")

    def _transactions(self) -> None:
        """Last: where op messages come between, places differ from run to run."""
        self._hides_places = True
        for verdict in (8, 12):
            properties = f"UNIQ_KEY\x01H{verdict:031d}\x02TRAN_MSG\x01true\x02PGROUP\x01producers"
            half = self._message("Few", properties) | {"f": 4}
            answer = self.say("half", 310, half, b"half", client="producer")
            fields = dict(answer.ext_fields or {})
            ending = {
                "topic": "Few",
                "producerGroup": "producers",
                "tranStateTableOffset": fields["queueOffset"],
                "commitLogOffset": int(fields["msgId"][16:], 16),
                "commitOrRollback": verdict,
                "fromTransactionCheck": "false",
                "msgId": fields["transactionId"],
                "transactionId": fields["transactionId"],
            }
            self.say(f"end {verdict}", 37, ending, client="producer")
            self.say("end of another group", 37, ending | {"producerGroup": "others"}, client="producer")
        self.say("end of nothing", 37, ending | {"commitLogOffset": 99_999_999}, client="producer")
