"""Bodies of access control. Java: UserInfo, AclInfo. Lists of them (3005, 3010) go through `read_body_list`."""

from __future__ import annotations

from spark_mq.remoting.body_fields import WireBody
from spark_mq.remoting.wire_class import wire


class UserInfo(WireBody):
    """A user: sent with 3001 and 3002, answers 3004. Java's broker answers with the password."""

    username: str | None = None
    password: str | None = wire(default=None, is_secret=True)
    user_type: str | None = None
    """Super or Normal."""
    user_status: str | None = None
    """enable or disable."""


class PolicyEntryInfo(WireBody):
    """What may be done with a resource, from where."""

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class PolicyInfo(WireBody):
    """Entries of one kind, Custom or Default."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


class AclInfo(WireBody):
    """What a subject may do: sent with 3006 and 3007, answers 3009."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None
