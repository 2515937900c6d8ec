"""Permissions of subjects: actions, resources and source addresses; and their file `config/acls.json`.

    {"acls":[{"subject":"User:ann","policies":[{"policyType":"Custom","entries":[
        {"resource":"Topic:orders","actions":["Pub"],"sourceIps":["10.0.0.0/8"],"decision":"Allow"}]}]}]}

    Topic:orders     one topic        Topic:*    every topic
    Topic:ord*       a prefix         *          everything

Java: Acl, Policy, PolicyEntry, AclConverter, ResourceType, ResourcePattern, Resource, Action.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from spark_mq.access.users import by_name, refused, subject_of, user_name
from spark_mq.remoting import BodyError, WireBody, read_body, write_body
from spark_mq.remoting.administration import AclInfo, PolicyEntryInfo, PolicyInfo
from storage.errors import StateFileError
from storage.rules.response_codes import RequestRefusedError

_ALL = "*"


class ResourceType(Enum):
    """The kind of a resource. Java also has namespaces; no request touches one."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(Enum):
    """The action of a request on a resource."""

    ALL = "All"
    """Stands in entries: every action."""
    ANY = "Any"
    """Java has the name; no entry may have it."""
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Pattern(IntEnum):
    """How the name of an entry matches; the closest one comes first."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


class Resource(NamedTuple):
    """One resource, or those that a pattern covers."""

    type: ResourceType
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    @property
    def key(self) -> str:
        """As it is written: `Topic:ord*`."""
        if self.type is ResourceType.ANY:
            return _ALL
        return f"{self.type.value}:{self.name}{'' if self.pattern is Pattern.LITERAL else _ALL}"

    def covers(self, other: Resource) -> bool:
        """Whether the other, which is one resource, is meant too."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not other.type:
            return False
        return other.name == self.name if self.pattern is Pattern.LITERAL else other.name.startswith(self.name)


def parse_resource(key: str | None) -> Resource | None:
    """The resource that a key names; None if it names none.

    Departure: a key without a name, or with an asterisk in its middle, is none. Java takes `a*b*` for `a*`.
    """
    type_name, _, name = (key or "").strip().partition(":")
    if type_name == _ALL and not name:
        return Resource(ResourceType.ANY, "", Pattern.ANY)
    kind = by_name(ResourceType, type_name)
    if kind is None or not name or _ALL in name[:-1]:
        return None
    if kind is ResourceType.ANY or name == _ALL:
        return Resource(kind, "", Pattern.ANY)
    return Resource(kind, name[:-1], Pattern.PREFIXED) if name.endswith(_ALL) else Resource(kind, name)


class Need(NamedTuple):
    """A resource of a request that must allow one of the actions.

    `field` names it: an attribute of the typed header, or one of the ways below; None where the type alone does.
    """

    type: ResourceType
    field: str | None
    actions: tuple[Action, ...]
    separator: str | None = None
    """Between names, where the field may hold several."""


BODY = "body"
"""The body names it, or several."""
MESSAGE = "message"
"""The message does whose place in the log the header has: the topic that it was sent to."""


class Demand(NamedTuple):
    """One resource, and actions; one of them must be allowed."""

    resource: Resource
    actions: tuple[Action, ...]


FILE_NAME = "acls.json"


class PolicyType(Enum):
    """Default entries count where no Custom one matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Decision(Enum):
    """The decision of an entry."""

    ALLOW = "Allow"
    DENY = "Deny"


class Entry(NamedTuple):
    """Actions that are allowed or denied on a resource, from these addresses and networks (none = from everywhere)."""

    resource: Resource
    actions: frozenset[Action]
    source_ips: tuple[str, ...]
    decision: Decision


Policies = Mapping[PolicyType, tuple[Entry, ...]]
"""The entries of a subject by kind."""


class _AclList(WireBody):
    acls: tuple[AclInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class AclTable:
    """All entries by subject. Every change gives a new table."""

    acls: Mapping[str, Policies] = field(default_factory=dict, hash=False)

    @classmethod
    def load(cls, text: str, file: str | None = None) -> AclTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none."""
        raw = text.encode()
        try:
            entries = read_body(_AclList, raw, limit_bytes=len(raw)).acls
            return cls({subject: policies for subject, policies in map(read_acl, entries) if policies})
        except (BodyError, RequestRefusedError) as error:
            raise StateFileError(file, 0, 0, str(error)) from None

    def to_text(self) -> str:
        """The text for the file."""
        infos = (acl_info(subject, policies) for subject, policies in self.acls.items())
        return write_body(_AclList(acls=tuple(infos))).decode()

    def with_entries(self, subject: str, added: Policies) -> AclTable:
        """The table with these entries, in place of those for their resources. Java: Acl.updatePolicy."""
        policies = dict(self.acls.get(subject, {}))
        for kind, entries in added.items():
            resources = {entry.resource for entry in entries}
            kept = (entry for entry in policies.get(kind, ()) if entry.resource not in resources)
            policies[kind] = (*kept, *entries)
        return self._with(subject, policies)

    def without_entry(self, subject: str, kind: PolicyType, resource: Resource) -> AclTable:
        """The table without the entries for a resource. What is left without entries is gone. Java: Acl.deletePolicy."""
        policies = dict(self.acls.get(subject, {}))
        policies[kind] = tuple(entry for entry in policies.get(kind, ()) if entry.resource != resource)
        return self._with(subject, policies)

    def without_subject(self, subject: str) -> AclTable:
        """The table without any entry of a subject; itself if it has none."""
        return self if subject not in self.acls else self._with(subject, {})

    def _with(self, subject: str, policies: Policies) -> AclTable:
        kept = {kind: entries for kind, entries in policies.items() if entries}
        acls = {known: each for known, each in self.acls.items() if known != subject}
        if kept:
            acls[subject] = kept
        return AclTable(dict(sorted(acls.items())))


def matching(acls: AclTable, subject_filter: str | None, resource_filter: str | None) -> tuple[AclInfo, ...]:
    """The answer to 3010: subjects and resources that contain these texts.

    Departure: Java applies the second one only for subjects that do not contain it.
    """
    found = []
    for subject, policies in acls.acls.items():
        kept = {
            kind: tuple(entry for entry in entries if (resource_filter or "") in entry.resource.key)
            for kind, entries in policies.items()
        }
        kept = {kind: entries for kind, entries in kept.items() if entries}
        if (subject_filter or "") in subject and kept:
            found.append(acl_info(subject, kept))
    return tuple(found)


# To and from the wire


def acl_info(subject: str, policies: Policies) -> AclInfo:
    """The entries of a subject as requests and the file have them."""
    infos = (PolicyInfo(policy_type=kind.value, entries=tuple(map(_info, each))) for kind, each in policies.items())
    return AclInfo(subject=subject, policies=tuple(infos))


def _info(entry: Entry) -> PolicyEntryInfo:
    return PolicyEntryInfo(
        resource=entry.resource.key,
        actions=tuple(action.value for action in Action if action in entry.actions),
        source_ips=entry.source_ips or None,
        decision=entry.decision.value,
    )


def read_acl(info: AclInfo, subject: str | None = None) -> tuple[str, Policies]:
    """The subject, which the header names where the body does not, and its entries.

    Raises RequestRefusedError with Java's remark (AuthorizationMetadataManagerImpl.validate).
    """
    name = user_name(info.subject) or user_name(subject)
    if name is None:
        raise refused("The subject type is null.")
    policies: dict[PolicyType, tuple[Entry, ...]] = {}
    for policy in info.policies or ():
        if policy.entries:
            kind = by_name(PolicyType, policy.policy_type) or PolicyType.CUSTOM
            policies[kind] = (*policies.get(kind, ()), *map(_entry, policy.entries))
    if not policies:
        raise refused("The policies is empty.")
    return subject_of(name), policies


def _entry(info: PolicyEntryInfo) -> Entry:
    resource = parse_resource(info.resource)
    if resource is None:
        raise refused("The resource is null.")
    actions = {by_name(Action, name) for name in info.actions or ()} - {None}
    if not actions:
        raise refused("The actions is empty.")
    if Action.ANY in actions:
        raise refused("The actions can not be Any.")
    for source_ip in info.source_ips or ():
        if not source_ip.strip():
            raise refused("The source ip is empty.")
        if parse_network(source_ip) is None:
            raise refused("The source ip is invalid.")
    decision = by_name(Decision, info.decision)
    if decision is None:
        raise refused("The decision is null or illegal.")
    return Entry(resource, frozenset(filter(None, actions)), tuple(info.source_ips or ()), decision)


def parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """An address or a network as `10.0.0.0/8`; None for anything else. Java: IPAddressUtils.isValidIPOrCidr."""
    _, slash, bits = text.partition("/")
    if slash and not (bits.isascii() and bits.isdecimal()):
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
