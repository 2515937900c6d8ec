"""Which of a user's entries decides, and what a refusal says."""

from __future__ import annotations

import pytest

from spark_mq.access.acls import Action, Demand, Policies, Resource, ResourceType, parse_resource, read_acl
from spark_mq.access.authorization import check_allowed
from spark_mq.remoting.administration import AclInfo, PolicyEntryInfo, PolicyInfo
from storage.rules.response_codes import RequestRefusedError

ORDERS = Resource(ResourceType.TOPIC, "orders")
NOT_MATCHED, DENIED = "no matched policies.", "the decision is deny."


def policies(*entries: str) -> Policies:
    """Each `Custom Topic:o* Pub,Sub Allow [addresses]`."""
    kinds: dict[str, list[PolicyEntryInfo]] = {}
    for entry in entries:
        kind, resource, actions, decision, *source_ips = entry.split()
        info = PolicyEntryInfo(
            resource=resource, actions=tuple(actions.split(",")), decision=decision, source_ips=tuple(source_ips)
        )
        kinds.setdefault(kind, []).append(info)
    told = tuple(PolicyInfo(policy_type=kind, entries=tuple(infos)) for kind, infos in kinds.items())
    return read_acl(AclInfo(subject="User:ann", policies=told))[1] if told else {}


def why_not(found: Policies, *actions: Action, resource: Resource = ORDERS, host: str = "10.1.2.3") -> str | None:
    try:
        check_allowed("User:ann", found, [Demand(resource, actions)], host)
    except RequestRefusedError as refusal:
        words = f"User:ann has no permission to access {resource.key} from {host}, "
        is_javas = refusal.code == 16 and (refusal.remark or "").startswith(words)
        return (refusal.remark or "").removeprefix(words) if is_javas else str(refusal)
    return None


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], NOT_MATCHED),
        (["Custom Topic:orders Pub Allow"], None),
        (["Custom Topic:orders pub allow"], None),
        (["Custom Topic:orders Sub,All Allow"], None),
        (["Custom Topic:orders Sub Allow"], NOT_MATCHED),
        (["Custom Topic:Orders Pub Allow"], NOT_MATCHED),
        (["Custom Group:orders Pub Allow"], NOT_MATCHED),
        (["Custom Topic:o* Pub Allow"], None),
        (["Custom Topic:* Pub Allow"], None),
        (["Custom * Pub Allow"], None),
        (["Custom Topic:orders* Pub Allow"], None),
        (["Custom Topic:orders_* Pub Allow"], NOT_MATCHED),
        (["Custom Topic:orders Pub Deny"], DENIED),
        # The closest one decides, in whatever order they stand.
        (["Custom Topic:orders Pub Allow", "Custom Topic:ord* Pub Deny"], None),
        (["Custom Topic:ord* Pub Deny", "Custom Topic:orders Pub Allow"], None),
        (["Custom Topic:ord* Pub Deny", "Custom Topic:o* Pub Allow"], DENIED),
        (["Custom Topic:o* Pub Deny", "Custom Topic:ord* Pub Allow"], None),
        (["Custom Topic:* Pub Deny", "Custom Topic:o* Pub Allow"], None),
        (["Custom * Pub Deny", "Custom Topic:* Pub Allow"], None),
        (["Custom * Pub Allow", "Custom Topic:* Pub Deny"], DENIED),
        # Of the others only those that match count.
        (["Custom Topic:orders Sub Deny", "Custom Topic:o* Pub Allow"], None),
        (["Custom Topic:orders Pub Deny 10.2.0.0/16", "Custom Topic:o* Pub Allow"], None),
        # Custom ones before Default ones, however far.
        (["Default Topic:orders Pub Allow"], None),
        (["Default Topic:orders Pub Allow", "Custom * All Deny"], DENIED),
        (["Default Topic:orders Pub Deny", "Custom * All Allow"], None),
        (["Default Topic:orders Pub Allow", "Custom Topic:orders Sub Deny"], None),
    ],
)
def test_the_closest_entry_that_matches_decides(entries: list[str], expected: str | None) -> None:
    assert why_not(policies(*entries), Action.PUB) == expected


def test_of_equally_close_entries_one_that_denies_decides() -> None:
    close = policies(
        "Custom Topic:orders Pub,Sub Allow", "Custom Topic:orders Pub Deny", "Custom Topic:orders Get Allow"
    )
    assert why_not(close, Action.PUB) == DENIED
    assert why_not(close, Action.SUB) is None
    assert why_not(close, Action.PUB, Action.GET) == DENIED


def test_one_of_the_actions_suffices_and_each_resource_must_be_allowed() -> None:
    found = policies("Custom Topic:orders Get Allow", "Custom Group:g Sub Allow")
    assert why_not(found, Action.SUB, Action.GET) is None
    group = Demand(Resource(ResourceType.GROUP, "g"), (Action.SUB,))
    check_allowed("User:ann", found, [group, Demand(ORDERS, (Action.GET,))], "::1")
    with pytest.raises(RequestRefusedError, match="Topic:other from ::1, no matched policies"):
        check_allowed("User:ann", found, [group, Demand(Resource(ResourceType.TOPIC, "other"), (Action.GET,))], "::1")


@pytest.mark.parametrize(
    ("source_ips", "host", "is_allowed"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.0.0/16", "10.1.255.255", True),
        ("10.1.0.0/16", "10.2.0.0", False),
        ("10.1.2.3/16", "10.1.9.9", True),
        ("192.168.0.1 10.1.0.0/16", "10.1.2.3", True),
        ("0.0.0.0/0", "10.1.2.3", True),
        ("0.0.0.0/0", "::1", False),
        ("::/0", "::1", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("10.1.2.3", "::ffff:10.1.2.3", True),
        ("10.1.2.3", "no address", False),
    ],
)
def test_an_entry_counts_from_its_addresses_alone(source_ips: str, host: str, is_allowed: bool) -> None:
    found = policies(f"Custom Topic:orders Pub Allow {source_ips}")
    assert (why_not(found, Action.PUB, host=host) is None) == is_allowed


@pytest.mark.parametrize("key", ["", " ", "Topic", "Topic:", "Nothing:x", "Unknown:x", "Topic:a*b", "Topic:a*b*", "**"])
def test_what_names_no_resource_is_none(key: str) -> None:
    assert parse_resource(key) is None


@pytest.mark.parametrize(
    "key", ["*", "Topic:orders", "Topic:*", "Group:g_*", "Cluster:c", "Namespace:n", "Topic:%RETRY%g"]
)
def test_a_resource_is_written_as_it_was_read(key: str) -> None:
    found = parse_resource(key)
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize(
    ("info", "remark"),
    [
        (PolicyEntryInfo(resource="Topic", actions=("Pub",), decision="Allow"), "The resource is null."),
        (PolicyEntryInfo(resource="Topic:t", actions=("Write",), decision="Allow"), "The actions is empty."),
        (PolicyEntryInfo(resource="Topic:t", decision="Allow"), "The actions is empty."),
        (PolicyEntryInfo(resource="Topic:t", actions=("Pub", "Any"), decision="Allow"), "The actions can not be Any."),
        (
            PolicyEntryInfo(resource="Topic:t", actions=("Pub",), source_ips=(" ",), decision="Allow"),
            "The source ip is empty.",
        ),
        (
            PolicyEntryInfo(resource="Topic:t", actions=("Pub",), source_ips=("localhost",), decision="Allow"),
            "The source ip is invalid.",
        ),
        (
            PolicyEntryInfo(resource="Topic:t", actions=("Pub",), source_ips=("10.0.0.0/255.0.0.0",), decision="Allow"),
            "The source ip is invalid.",
        ),
        (PolicyEntryInfo(resource="Topic:t", actions=("Pub",), decision="Maybe"), "The decision is null or illegal."),
        (PolicyEntryInfo(resource="Topic:t", actions=("Pub",)), "The decision is null or illegal."),
    ],
)
def test_an_entry_that_says_nothing_clear_is_refused_with_javas_remark(info: PolicyEntryInfo, remark: str) -> None:
    with pytest.raises(RequestRefusedError) as refusal:
        read_acl(AclInfo(subject="User:ann", policies=(PolicyInfo(entries=(info,)),)))
    assert refusal.value.remark == remark


@pytest.mark.parametrize(
    ("info", "remark"),
    [
        (AclInfo(subject="User:ann"), "The policies is empty."),
        (AclInfo(subject="User:ann", policies=(PolicyInfo(policy_type="Custom"),)), "The policies is empty."),
        (AclInfo(subject="Robot:ann"), "The subject type is null."),
        (AclInfo(), "The subject type is null."),
    ],
)
def test_so_are_entries_of_nobody_and_none(info: AclInfo, remark: str) -> None:
    with pytest.raises(RequestRefusedError) as refusal:
        read_acl(info)
    assert refusal.value.remark == remark
