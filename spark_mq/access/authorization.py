"""Whether a user's entries allow what a request does. Java: AclAuthorizationHandler.

Of the Custom entries that match the closest decides, of equally close ones one that denies; without any, the Default ones likewise;
without these, nothing is allowed. Closest: literal names, then prefixes, the longest first, then `Topic:*`, then `*`. 5.3.3 sorts
shorter prefixes first, and entries that allow before those that deny; its documentation, and later releases but for the last rule,
say this.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from spark_mq.access.acls import Decision, Entry, Policies, PolicyType, parse_network
from spark_mq.access.refusals import refused
from spark_mq.access.resources import Action, Demand, ResourceType


def check_allowed(subject: str, policies: Policies, demands: Iterable[Demand], host: str) -> None:
    """Raises RequestRefusedError, with Java's remark, unless the subject may do all of it from that address."""
    for demand in demands:
        why = _why_not(policies, demand, host)
        if why is not None:
            raise refused(f"{subject} has no permission to access {demand.resource.key} from {host}, {why}")


def _why_not(policies: Policies, demand: Demand, host: str) -> str | None:
    for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        found = [entry for entry in policies.get(kind, ()) if _matches(entry, demand, host)]
        if found:
            return "the decision is deny." if min(found, key=_rank).decision is Decision.DENY else None
    return "no matched policies."


def _matches(entry: Entry, demand: Demand, host: str) -> bool:
    if not entry.resource.covers(demand.resource):
        return False
    if Action.ALL not in entry.actions and entry.actions.isdisjoint(demand.actions):
        return False
    return not entry.source_ips or any(_is_from(host, source_ip) for source_ip in entry.source_ips)


def _is_from(host: str, source_ip: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    network = parse_network(source_ip)
    return network is not None and (getattr(address, "ipv4_mapped", None) or address) in network


def _rank(entry: Entry) -> tuple[bool, int, int, bool]:
    resource = entry.resource
    is_any = resource.type is ResourceType.ANY
    return is_any, resource.pattern, -len(resource.name), entry.decision is not Decision.DENY
