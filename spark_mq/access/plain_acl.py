"""Accounts of RocketMQ's ACL 1.0 and their rights, as `conf/plain_acl.yml` and `conf/acl/*.yml` have them. Pure.

    request ─▶ from a white address of all? ─▶ whose access key? from its white address? ─▶ anything
            ─▶ signed by its secret? ─▶ an admin? ─▶ anything     else: each topic and group by its right

    accounts:
    - accessKey: RocketMQ
      secretKey: 12345678
      whiteRemoteAddress: 192.168.1.*
      admin: false
      defaultTopicPerm: DENY          # DENY, PUB, SUB, PUB|SUB, SUB|PUB; anything else denies
      defaultGroupPerm: SUB
      topicPerms: [topicB=PUB|SUB]
      groupPerms: [groupB=SUB]

Java up to 5.3.2: PlainPermissionManager, PlainAccessResource, PlainPermissionChecker, Permission, RemoteAddressStrategyFactory.
A request that is in no row of `_needed` wants a valid signature alone, as in Java.

Departures. Each one refuses more than Java does: LITE_PULL_MESSAGE needs what PULL_MESSAGE does, a reply what a message does, and
CONSUME_MESSAGE_DIRECTLY the right to pull; requests that change access, or many topics or groups, are for admins (`ADMIN_CODES`). Java
asks nothing for them. In a range of addresses all parts count; Java ignores those behind the first range, so `10.1-2.0.1` means
10.1.9.9, too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from itertools import chain
from typing import Any, NamedTuple

from spark_mq.remoting import BodyError, RemotingCommand, RequestCode, read_body
from spark_mq.remoting.command import ACCESS_KEY, is_signed_by
from spark_mq.remoting.consumers import HeartbeatData
from storage.errors import ConfigurationError, StateFileError
from storage.names import RETRY_PREFIX
from storage.rules.response_codes import RequestRefusedError, ResponseCode

SHORTEST_KEY = 7
"""Characters of an access key and of a secret, at least."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
_SHOWN = 255
_C = RequestCode
ADMIN_CODES = frozenset(
    {
        *(_C.UPDATE_AND_CREATE_TOPIC, _C.UPDATE_BROKER_CONFIG, _C.DELETE_TOPIC_IN_BROKER),
        *(_C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _C.DELETE_SUBSCRIPTIONGROUP, _C.UPDATE_AND_CREATE_STATIC_TOPIC),
        *(_C.UPDATE_AND_CREATE_ACL_CONFIG, _C.DELETE_ACL_CONFIG, _C.GET_BROKER_CLUSTER_ACL_INFO),
        *(_C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, _C.UPDATE_AND_CREATE_TOPIC_LIST),
        *(_C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, _C.AUTH_CREATE_USER, _C.AUTH_UPDATE_USER, _C.AUTH_DELETE_USER),
        *(_C.AUTH_CREATE_ACL, _C.AUTH_UPDATE_ACL, _C.AUTH_DELETE_ACL),
    }
)
"""Requests for admins alone."""
_SHORT_SENDS = (_C.SEND_MESSAGE_V2, _C.SEND_BATCH_MESSAGE, _C.SEND_REPLY_MESSAGE_V2)
"""Requests that name their topic `b`."""


class Right(IntFlag):
    """What an account may do with a topic or a group. Java: Permission."""

    DENY = 1
    PUB = 4
    SUB = 8


_RIGHTS = {"PUB": Right.PUB, "SUB": Right.SUB, "PUB|SUB": Right.PUB | Right.SUB, "SUB|PUB": Right.PUB | Right.SUB}
AddressRule = Callable[[str], bool]
"""Whether an address is meant."""
Document = Mapping[str, Any]
"""A file's content, typed: `globalWhiteRemoteAddresses`, `accounts`, `dataVersion`, each of them a list."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account; a group's right stands under its retry topic."""

    access_key: str
    secret_key: str = field(repr=False)
    is_white: AddressRule
    is_admin: bool
    default_topic: Right
    default_group: Right
    rights: Mapping[str, Right]


class Accounts(NamedTuple):
    """All files' accounts and white addresses. An access key that stands in several files counts in the first."""

    by_key: Mapping[str, Account]
    white: tuple[AddressRule, ...]

    @classmethod
    def of(cls, files: Mapping[str, Document]) -> Accounts:
        """Raises StateFileError, which names the file, for an account or address that Java refuses, too."""
        known: dict[str, Account] = {}
        white = []
        for file, document in files.items():
            try:
                white += [address_rule(text) for text in document["globalWhiteRemoteAddresses"]]
                for account in map(_account, document["accounts"]):
                    known.setdefault(account.access_key, account)
            except ValueError as rule:
                raise StateFileError(file, 0, 0, str(rule)) from None
        return cls(known, tuple(white))

    def check(self, command: RemotingCommand, host: str) -> bool:
        """Whether the request may do anything at all: it is an admin's, or from a white address. False: what it names is allowed.

        Raises RequestRefusedError, with Java's exception in the remark. Java: PlainPermissionManager.validate.
        """
        if any(is_white(host) for is_white in self.white):
            return True
        needed = _needed(command)
        key = (command.ext_fields or {}).get(ACCESS_KEY)
        if key is None:
            raise acl_refused("No accessKey is configured")
        account = self.by_key.get(key)
        if account is None:
            raise acl_refused(f"No acl config for {key[:_SHOWN]}")
        if account.is_white(host):
            return True
        if not is_signed_by(command, account.secret_key):
            raise acl_refused(f"Check signature failed for accessKey={key}")
        if account.is_admin:
            return True
        if needed.get(TRACE_TOPIC) != Right.PUB:
            _check_rights(account, command.code, needed)
        return False


def acl_refused(remark: str) -> RequestRefusedError:
    """A refusal as Java sends it: SYSTEM_ERROR, and the exception's name."""
    return RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"{_EXCEPTION}{remark}")


def _check_rights(account: Account, code: int, needed: Mapping[str, Right]) -> None:
    if code in ADMIN_CODES:
        remark = f"Need admin permission for request code={code}, but accessKey={account.access_key} is not"
        raise acl_refused(remark)
    for resource, right in needed.items():
        is_group = resource.startswith(RETRY_PREFIX)
        default = account.default_group if is_group else account.default_topic
        owned = account.rights.get(resource, default)
        if owned & Right.DENY or not owned & right:
            name = f"group:{resource.removeprefix(RETRY_PREFIX)}" if is_group else f"topic:{resource}"
            which = "" if resource in account.rights else "default "
            raise acl_refused(f"No {which}permission for {name[:_SHOWN]}")


def _needed(command: RemotingCommand) -> Mapping[str, Right]:
    """The right that a request needs by topic or retry topic. Java: PlainAccessResource.parse."""
    fields, code = command.ext_fields or {}, command.code
    group, topic = fields.get("consumerGroup"), fields.get("topic")
    pairs: list[tuple[str | None, Right]] = []
    if code in (_C.SEND_MESSAGE, _C.SEND_REPLY_MESSAGE, *_SHORT_SENDS):
        sent = fields.get("b") if code in _SHORT_SENDS else topic
        pairs = [(sent, Right.SUB if (sent or "").startswith(RETRY_PREFIX) else Right.PUB)]
    elif code == _C.RECALL_MESSAGE:
        pairs = [(topic, Right.PUB)]
    elif code == _C.CONSUMER_SEND_MSG_BACK:
        pairs = [(_retry(fields.get("group")), Right.SUB)]
    elif code in (_C.PULL_MESSAGE, _C.LITE_PULL_MESSAGE, _C.UPDATE_CONSUMER_OFFSET, _C.CONSUME_MESSAGE_DIRECTLY):
        pairs = [(topic, Right.SUB), (_retry(group), Right.SUB)]
    elif code == _C.QUERY_MESSAGE:
        pairs = [(topic, Right.SUB)]
    elif code in (_C.UNREGISTER_CLIENT, _C.GET_CONSUMER_LIST_BY_GROUP):
        pairs = [(_retry(group), Right.SUB)]
    elif code == _C.HEART_BEAT:
        pairs = [(name, Right.SUB) for name in _names_of_heartbeat(command)]
    return {name: right for name, right in pairs if name is not None}


def _names_of_heartbeat(command: RemotingCommand) -> Iterator[str | None]:
    try:
        consumers = read_body(HeartbeatData, command.body).consumers
    except BodyError as error:
        raise acl_refused(str(error)) from None
    for consumer in consumers:
        yield _retry(consumer.group_name)
        yield from (subscription.topic for subscription in consumer.subscriptions)


def _retry(group: str | None) -> str | None:
    """Java: MixAll.getRetryTopic."""
    return None if group is None else f"{RETRY_PREFIX}{group}"


# Files


_TEXTS = ("accessKey", "secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
_LISTS = ("topicPerms", "groupPerms")
_PARTS = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "": False}


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        rule = "its accounts lie in YAML files, which need the package PyYAML: pip install 'spark_mq[acl]'"
        raise ConfigurationError(None, None, "aclEnable", rule) from None
    return yaml


def read_document(text: str, file: str) -> Document:
    """The content of a file. Raises StateFileError where it is no YAML or has a name that Java does not know."""
    yaml = _yaml()
    try:
        found = yaml.load(text, yaml.BaseLoader) or {}  # each value as it is written, as Java takes it for a String
        _only(found, _PARTS)
        version = [{name: int(each[name]) for name in each} for each in _list(found, "dataVersion")]
        return {
            "globalWhiteRemoteAddresses": _texts(found, "globalWhiteRemoteAddresses"),
            "accounts": [_typed(each) for each in _list(found, "accounts")],
            "dataVersion": version,
        }
    except yaml.YAMLError as error:
        raise StateFileError(file, 0, 0, " ".join(str(error).split())) from None
    except (ValueError, TypeError) as rule:
        raise StateFileError(file, 0, 0, str(rule)) from None


def write_document(document: Document) -> str:
    """The text of a file, as Java writes it: comments are gone. Java: AclUtils.writeDataObject."""
    text: str = _yaml().safe_dump(dict(document), default_flow_style=False, allow_unicode=True)
    return text


def _only(found: Any, known: tuple[str, ...]) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{found!r:.40} stands where {', '.join(known)} belong")
    for name in found:
        if name not in known:
            raise ValueError(f"{name!r:.40} is none of {', '.join(known)}")


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name) or []
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return value


def _texts(found: Mapping[str, Any], name: str) -> list[str]:
    texts = _list(found, name)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} is no list of texts")
    return texts


def _typed(found: Any) -> dict[str, Any]:
    _only(found, (*_TEXTS, "admin", *_LISTS))
    admin = str(found.get("admin", "")).lower()
    if admin not in _TRUTHS:
        raise ValueError(f"admin is {admin!r:.40}, neither true nor false")
    texts = {name: found[name] for name in _TEXTS if found.get(name)}
    if not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"one of {', '.join(_TEXTS)} is no text")
    return {**texts, "admin": _TRUTHS[admin], **{name: _texts(found, name) for name in _LISTS if found.get(name)}}


def check_keys(access_key: str | None, secret_key: str | None) -> None:
    """Raises ValueError unless both are long enough. Java: PlainPermissionManager.checkPlainAccessConfig, which shows the secret."""
    if min(len(access_key or ""), len(secret_key or "")) < SHORTEST_KEY:
        raise ValueError(f"The accessKey={access_key} and its secretKey cannot be null and length should longer than 6")


def check_rights(texts: list[str]) -> None:
    """Raises ValueError unless each is a name and a right. Java: Permission.checkResourcePerms."""
    for text in texts:
        _, right = _name_and_right(text)
        if right not in _RIGHTS and right != "DENY":
            raise ValueError(
                f"Parse resource permission error for {text}.\n"
                "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
            )


def _name_and_right(text: str) -> tuple[str, str]:
    parts = [part for part in text.split("=") if part]
    if len(parts) != 2:
        raise ValueError(f"Parse resource permission failed for {text}")
    return parts[0].strip(), parts[1].strip()


def _right(text: str | None) -> Right:
    return _RIGHTS.get((text or "").strip(), Right.DENY)


def _account(found: Mapping[str, Any]) -> Account:
    key, secret = found.get("accessKey"), found.get("secretKey")
    check_keys(key, secret)
    groups = ((RETRY_PREFIX + name, right) for name, right in map(_name_and_right, found.get("groupPerms", ())))
    topics = map(_name_and_right, found.get("topicPerms", ()))
    return Account(
        str(key),
        str(secret),
        address_rule(found.get("whiteRemoteAddress")),
        found["admin"],
        _right(found.get("defaultTopicPerm")),
        _right(found.get("defaultGroupPerm")),
        {name: _right(right) for name, right in chain(groups, topics)},
    )


# Addresses


def address_rule(text: str | None) -> AddressRule:
    """The addresses that a text means: none, all (`*`), one, several (`a,b`, `10.0.0.{1,2}`), or a range (`10.0.1-5.*`).

    Raises ValueError. Java: RemoteAddressStrategyFactory.
    """
    text = (text or "").strip()
    if not text:
        return lambda host: False
    if text in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return lambda host: True
    if text.endswith("}"):
        head, _, lasts = text[:-1].partition("{")
        return _one_of([head + last for last in lasts.split(",")])
    if "," in text:
        return _one_of([part for part in text.split(",") if part])
    if "*" in text or "-" in text:
        return _range(text)
    return _one_of([text])


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _one_of(texts: list[str]) -> AddressRule:
    known = set(map(_address, texts))
    if None in known:
        raise ValueError(f"NetAddress examine Exception netAddress is {','.join(texts)}")
    return lambda host: _address(host) in known


def _range(text: str) -> AddressRule:
    separator, base, most = (":", 16, 0xFFFF) if ":" in text else (".", 10, 255)
    spans = list(_spans(_parts_of(text, separator), base, most, text))

    def matches(host: str) -> bool:
        address = _address(host)
        if address is None or (address.version == 6) != (separator == ":"):
            return False
        parts = (int(part, base) for part in address.exploded.split(separator))
        return all(first <= part <= last for part, (first, last) in zip(parts, spans, strict=False))

    return matches


def _parts_of(text: str, separator: str) -> list[str]:
    parts = text.split(separator)
    if separator == ".":
        if len(parts) == 4 and parts[0].strip().isdecimal():
            return parts
    elif "*" not in text[:-1] and "-" not in ":".join(parts[:-2] if parts[-1] == "*" else parts[:-1]):
        head, gap, tail = text.partition("::")
        if not gap and (len(parts) == 8 or (parts[-1] == "*" and "-" not in text and len(parts) < 8)):
            return parts
        before, after = ([part for part in side.split(":") if part] for side in (head, tail))
        if gap and "::" not in tail and len(before) + len(after) < 8:
            return [*before, *(["0"] * (8 - len(before) - len(after))), *after]
    raise ValueError(f"NetAddress examine scope Exception netAddress is {text}")


def _spans(parts: list[str], base: int, most: int, text: str) -> Iterator[tuple[int, int]]:
    for part in parts:
        first, _, last = part.strip().partition("-")
        try:
            span = (0, most) if first == "*" else (int(first, base), int(last or first, base))
        except ValueError:
            span = (1, 0)
        if not 0 <= span[0] <= span[1] <= most:
            raise ValueError(f"NetAddress examine scope Exception netAddress is {text}")
        yield span
