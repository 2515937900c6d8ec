"""What is asked of ACL 1.0: requests by users from addresses, rules of addresses, and files; `PlainAcl.java` reads them as lines."""

from __future__ import annotations

import base64
from itertools import product
from typing import NamedTuple

from spark_mq.remoting import RemotingCommand, RequestCode, encode_frame, make_request, write_body
from spark_mq.remoting.command import ACCESS_KEY, SIGNATURE, request_signature
from spark_mq.remoting.consumers import ConsumerData, HeartbeatData, SubscriptionData

_C = RequestCode
USERS = {
    "nobody": None,
    "RocketMQ": ("RocketMQ", "12345678"),
    "rocketmq2": ("rocketmq2", "12345678"),
    "forger": ("RocketMQ", "another-secret"),
    "stranger": ("strangers", "12345678"),
}
HOSTS = ("10.10.103.7", "192.168.1.5", "127.0.0.1")
"""White for all, white for rocketmq2, white for none. (RocketMQ's example.)"""
TOPICS = ("topicA", "topicB", "topicC", "topicD", "%RETRY%groupA", "%RETRY%groupC", "RMQ_SYS_TRACE_TOPIC")
GROUPS = ("groupA", "groupB", "groupC", "groupD")
ADMINS = (
    *(_C.UPDATE_AND_CREATE_TOPIC, _C.UPDATE_BROKER_CONFIG, _C.DELETE_TOPIC_IN_BROKER, _C.DELETE_SUBSCRIPTIONGROUP),
    *(_C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _C.UPDATE_AND_CREATE_STATIC_TOPIC, _C.UPDATE_AND_CREATE_ACL_CONFIG),
    *(_C.DELETE_ACL_CONFIG, _C.GET_BROKER_CLUSTER_ACL_INFO),
)
FREE = (_C.END_TRANSACTION, _C.GET_MAX_OFFSET, _C.GET_BROKER_RUNTIME_INFO, _C.QUERY_CONSUMER_OFFSET)


class Case(NamedTuple):
    """One request."""

    user: str
    host: str
    code: RequestCode
    fields: dict[str, str]
    body: bytes = b""

    @property
    def names_several(self) -> bool:
        """Whether Java's answer names one of two resources, by the order of a HashMap."""
        return self.code in (_C.PULL_MESSAGE, _C.UPDATE_CONSUMER_OFFSET, _C.HEART_BEAT)

    def command(self) -> RemotingCommand:
        """As the user's client sends it."""
        command = make_request(self.code, dict(self.fields), self.body)
        if (user := USERS[self.user]) is None:
            return command
        fields = {**self.fields, ACCESS_KEY: user[0]}
        command = command._replace(ext_fields=fields)
        return command._replace(ext_fields={**fields, SIGNATURE: request_signature(command, user[1])})

    def line(self) -> str:
        """For `PlainAcl`."""
        frame = b"".join(map(bytes, encode_frame(self.command())))
        return f"ask\t{self.host}:1234\t{base64.b64encode(frame[4:]).decode()}"


def cases() -> list[Case]:
    """Every user from every address, with every right."""
    asked: list[tuple[RequestCode, dict[str, str], bytes]] = []
    for topic in TOPICS:
        asked += [(_C.SEND_MESSAGE, {"topic": topic}, b"body"), (_C.SEND_MESSAGE_V2, {"b": topic}, b"body")]
        asked += [(_C.SEND_BATCH_MESSAGE, {"b": topic}, b"body"), (_C.RECALL_MESSAGE, {"topic": topic}, b"")]
        asked.append((_C.QUERY_MESSAGE, {"topic": topic, "_UNIQUE_KEY_QUERY": "true"}, b""))
    for group in GROUPS:
        asked.append((_C.CONSUMER_SEND_MSG_BACK, {"group": group, "offset": "0", "delayLevel": "0"}, b""))
        asked.append((_C.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": group}, b""))
        asked.append((_C.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}, b""))
    asked.append((_C.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"}, b""))
    for topic, group in product(TOPICS[:4], GROUPS):
        names = {"topic": topic, "consumerGroup": group}
        asked.append((_C.PULL_MESSAGE, names, b""))
        asked.append((_C.UPDATE_CONSUMER_OFFSET, {**names, "queueId": "0", "commitOffset": "0"}, b""))
        consumer = ConsumerData(group_name=group, subscriptions=(SubscriptionData(topic=topic),))
        asked.append((_C.HEART_BEAT, {}, write_body(HeartbeatData(client_id="c", consumers=(consumer,)))))
    asked += [(code, {"topic": "topicB"}, b"") for code in (*ADMINS, *FREE)]
    return [Case(user, host, *request) for user, host, request in product(USERS, HOSTS, asked)]


RULES = (
    *("", "*", "*.*.*.*", "127.0.0.1", "127.0.0.256", "10.10.103.*", "192.168.*.*", "192.168.1-100.*", "192.168.0.5-9"),
    *(
        "192.168.9-5.*",
        "192.168.0.{1,2}",
        "192.168.{1,2}",
        "192.168.0.{1,300}",
        "1.2.3.4,192.168.0.6",
        "1.2.3.4,x",
        "10.*",
    ),
    *(
        "5::7:6:1-200:*",
        "2::ac5:78:1-200",
        "fe80:20ab:22cc:44ee:*",
        "::1",
        "1::{2,3}",
        "1::2,3::4",
        "fe80:*:1",
        "localhost",
    ),
)
ADDRESSES = (
    *("127.0.0.1", "10.10.103.1", "192.168.0.1", "192.168.0.6", "192.168.5.77", "192.168.101.1", "1.2.3.4"),
    *("5::7:6:150:9", "5::7:6:201:9", "2::ac5:78:100", "2::ac5:78:201", "fe80:20ab:22cc:44ee:1:2:3:4", "1::2", "::1"),
)
FILES = {
    "empty": "",
    "no accounts": "accounts:\n",
    "no topics": "accounts:\n- accessKey: somebody\n  secretKey: 12345678\n  topicPerms:\n",
    "flow": "accounts: [{accessKey: somebody, secretKey: '12345678', topicPerms: [a=PUB]}]\n",
    "an unknown name": "accounts:\n- accessKey: somebody\n  secretKey: 12345678\n  admins: true\n",
    "an unknown part": "account: []\n",
    "a short secret": "accounts:\n- accessKey: somebody\n  secretKey: 123456\n",
    "no secret": "accounts:\n- accessKey: somebody\n",
    "a right without a name": "accounts:\n- accessKey: somebody\n  secretKey: 12345678\n  topicPerms:\n  - PUB\n",
    "a right that is none": "accounts:\n- accessKey: somebody\n  secretKey: 12345678\n  topicPerms:\n  - a=READ\n",
    "admin: yes": "accounts:\n- accessKey: somebody\n  secretKey: 12345678\n  admin: yes\n",
    "admin: maybe": "accounts:\n- accessKey: somebody\n  secretKey: 12345678\n  admin: maybe\n",
    "a key twice": "accounts:\n- {accessKey: somebody, secretKey: 12345678}\n- {accessKey: somebody, secretKey: 87654321}\n",
    "a wrong address": "globalWhiteRemoteAddresses:\n- 1.2.3\n",
    "a version": "dataVersion:\n- counter: 3\n  timestamp: 1700000000000\n",
    "no YAML": "accounts: [\n",
}
"""Texts of conf/plain_acl.yml."""
