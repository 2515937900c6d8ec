"""Names of topics, groups and brokers: which are legal, and which are reserved. Also `host:port` addresses.

Names from the wire and from columns are untrusted: code that makes a path, a key or a record from a name calls `validate_…` first.
Neither '.' nor '/' is legal in a topic or group, so no legal name leaves its directory.

Addresses of both families are split and made here:

    broker.example:10911   127.0.0.1:10911   [::1]:10911   ::1:10911   0:0:0:0:0:0:0:1:10911

The port stands after the last colon. An IPv6 address has brackets or, as Apache's brokers write it, none. This package always writes
the brackets: clients in other languages than Java need them.

Java: TopicValidator, Validators, MixAll, HookUtils.checkBeforePutMessage, NetworkUtil.string2SocketAddress,
NettyRemotingClient.getHostAndPort.
Departure: an address of another form is refused where it is read. Java fails when it connects.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable
from enum import Enum

from storage.errors import NameIllegalError

QueueName = tuple[str, int]
"""Topic and queue id."""
MULTI_DISPATCH_PREFIX = "%LMQ%"
"""Prefix of queues whose entries name records of other topics."""
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
BROKER_MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
MASTER_ID = 0
"""The broker id of the master among the brokers that share a name. Java: MixAll.MASTER_ID."""
BUILT_IN_GROUPS = (
    *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"),
    *("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS"),
)
"""Groups that every broker has, also without an entry in its file. Java: SubscriptionGroupManager.init."""

SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
"""System topics of every broker, those of RocksDB's transactions since 5.4; the others begin with SYSTEM_TOPIC_PREFIX or are named
after broker and cluster.
"""

TOPIC_LENGTH_LIMIT = 127
RETRY_TOPIC_LENGTH_LIMIT = 255
GROUP_LENGTH_LIMIT = 255
BROKER_NAME_LENGTH_LIMIT = 255
PATH_ELEMENT_LIMIT_BYTES = 255

_LEGAL = "%|a-zA-Z0-9_-"
_LEGAL_IN_BROKER_NAME = "%|a-zA-Z0-9_.-"


class NameFault(Enum):
    """Why a name is illegal. A broker's remarks distinguish these three."""

    BLANK = "it is blank"
    CHARACTER = "it holds a character that is not legal"
    LENGTH = "it is too long"


def validate_topic(topic: str) -> str:
    """The topic, if a broker takes messages for it; else NameIllegalError.

    A `%RETRY%…` topic, which a broker makes itself, may have 255 characters, any other 127.
    """
    limit = RETRY_TOPIC_LENGTH_LIMIT if topic.startswith(RETRY_PREFIX) else TOPIC_LENGTH_LIMIT
    return _validate("topic", topic, limit, _LEGAL)


def validate_user_topic(topic: str, *, broker_name: str | None = None, cluster_name: str | None = None) -> str:
    """The topic, if users may send to it on a broker of that name and cluster; else NameIllegalError."""
    if is_retry_or_dead_letter_topic(topic):
        # Only the code that sends messages back may store in such a topic: it belongs to one consumer group.
        raise NameIllegalError("topic", topic, "it belongs to a consumer group, whose failed messages it takes")
    validate_topic(topic)
    if is_system_topic(topic, broker_name=broker_name, cluster_name=cluster_name):
        raise NameIllegalError("topic", topic, "it is a system topic, which a broker keeps for itself")
    return topic


def validate_group(group: str, longest: int = GROUP_LENGTH_LIMIT) -> str:
    """The group, if a broker takes it; else NameIllegalError. `longest` is in characters, as `Release.longest_group` says."""
    return _validate("group", group, longest, _LEGAL)


def validate_broker_name(name: str) -> str:
    """The broker's name, if it can be part of a path; else NameIllegalError.

    Java sets no rule, and its default is the host name; here: a topic's characters and dots, but not dots
    alone.
    """
    if name and not name.strip("."):
        raise NameIllegalError("broker", name, "it consists of dots")
    return _validate("broker", name, BROKER_NAME_LENGTH_LIMIT, _LEGAL_IN_BROKER_NAME)


def validate_path_element(kind: str, name: str) -> str:
    """A name that the log holds, if it can be a directory's; else NameIllegalError.

    Older brokers let more characters pass than `validate_topic`, and a record's topic is under no checksum.
    """
    if _is_no_path_element(name):
        raise NameIllegalError(kind, name, "it cannot be the name of a directory")
    if len(name.encode()) > PATH_ELEMENT_LIMIT_BYTES:
        raise NameIllegalError(kind, name, f"it has more than {PATH_ELEMENT_LIMIT_BYTES} bytes")
    return name


def can_be_path_element(name: str) -> bool:
    """Whether `validate_path_element` takes it."""
    return not _is_no_path_element(name) and len(name.encode()) <= PATH_ELEMENT_LIMIT_BYTES


def _is_no_path_element(name: str) -> bool:
    return name in ("", ".", "..") or "/" in name or "\0" in name


def topic_name_fault(topic: str, limit: int = TOPIC_LENGTH_LIMIT) -> NameFault | None:
    """Why the name is illegal for a topic; None if it is legal.

    Java: TopicValidator.validateTopic, whose length limit also holds for `%RETRY%` topics.
    """
    fault = _fault(topic, limit, _LEGAL)
    return None if fault is None else fault[0]


def _validate(kind: str, name: str, limit: int, legal: str) -> str:
    fault = _fault(name, limit, legal)
    if fault is not None:
        raise NameIllegalError(kind, name, fault[1])
    return name


def _fault(name: str, limit: int, legal: str) -> tuple[NameFault, str] | None:
    if not name.strip():
        return NameFault.BLANK, NameFault.BLANK.value
    found = re.search(f"[^{legal}]", name)
    if found:
        return NameFault.CHARACTER, f"character {found.group()!r} at position {found.start()} is none of {legal}"
    if len(name) > limit:
        return NameFault.LENGTH, f"it has {len(name)} characters, the limit is {limit}"
    return None


def is_system_topic(topic: str, *, broker_name: str | None = None, cluster_name: str | None = None) -> bool:
    """Whether a broker of that name and cluster keeps the topic for itself.

    `%RETRY%` and `%DLQ%` topics are not system topics (Java: TopicValidator.isSystemTopic).
    """
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX) or topic == broker_name:
        return True
    return cluster_name is not None and topic in (cluster_name, f"{cluster_name}{REPLY_TOPIC_SUFFIX}")


def is_system_group(group: str) -> bool:
    """Whether the group is a broker's own (Java: MixAll.isSysConsumerGroup)."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def is_rocketmqs_group(group: str) -> bool:
    """Whether the group is RocketMQ's and not a user's: a broker's own, or one that every broker has."""
    return group in BUILT_IN_GROUPS or is_system_group(group)


def retry_topic(group: str) -> str:
    """The topic where messages that the group failed to consume wait for their next try."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic of messages that the group failed to consume too often."""
    return DEAD_LETTER_PREFIX + group


def names_several(topic: str) -> bool:
    """Whether an illegal topic name is probably a list of names, as `a,b` or JSON."""
    return "," in topic or topic.startswith("[")


def is_retry_or_dead_letter_topic(topic: str) -> bool:
    """Whether the topic belongs to one consumer group."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


_NAME = re.compile(r"[^\s:\[\]/@]+")
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_RULE = "an address is host:port, as broker.example:10911 or [::1]:10911"


def split_address(text: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError with the rule."""
    named, _, port = text.rpartition(":")
    host = plain_host(named)
    is_host = _is_ip(host) if ":" in host else host == named and _NAME.fullmatch(host) is not None
    if not is_host or _PORT.fullmatch(port) is None:
        raise ValueError(_RULE)
    if not 0 < int(port) < 65_536:
        raise ValueError(f"a port is 1 to 65535; {_RULE}")
    return host, int(port)


def host_of(address: str) -> str:
    """The part before the port, without brackets. The address must come from a socket or from this module."""
    return plain_host(address.rpartition(":")[0])


def plain_host(host: str) -> str:
    """The host without the brackets of an IPv6 address. Java: InetAddress.getByName takes both."""
    return host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host


def address_text(host: str, port: int) -> str:
    """`host:port`; an IPv6 address is written in its short form, in brackets."""
    shown = plain_host(host)
    if ":" not in shown:
        return f"{shown}:{port}"
    return f"[{ipaddress.ip_address(shown).compressed if _is_ip(shown) else shown}]:{port}"


def same_address(one: str, other: str) -> bool:
    """Whether two texts name the same host and port in any spelling. Names are not looked up."""
    return one == other or in_one_form(one) == in_one_form(other)


def peer_host(host: str) -> str:
    """A socket's host as Java writes it: an IPv4 client of a dual-stack socket has its IPv4 address."""
    if not host.startswith("::ffff:"):
        return host
    mapped = ipaddress.IPv6Address(host.partition("%")[0]).ipv4_mapped
    return host if mapped is None else str(mapped)


def in_one_form(address: str) -> str:
    """An address in this package's spelling; any other text unchanged."""
    try:
        return address_text(*split_address(address))
    except ValueError:
        return address


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def nearest(name: str, known: Iterable[str], likeness: float = 0.5) -> str | None:
    """The known name most like `name`, ignoring case; None if none reaches `likeness` (1 = equal)."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def advice(name: str, known: Iterable[str]) -> str:
    """Text to append to a sentence that refuses `name`; empty if no known name is similar."""
    like = nearest(name, known)
    return "" if like is None else f"; did you mean {like}?"
