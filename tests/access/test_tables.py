"""Users, entries and their files."""

from __future__ import annotations

import pytest

from spark_mq.access.acls import AclTable, Action, Decision, Entry, PolicyType, matching, parse_resource
from spark_mq.access.users import User, UserStatus, UserTable, UserType, codes_of, name_and_secret
from storage.errors import StateFileError

ANN = User("ann", "ann's secret")
ROOT = User("root", "s", UserType.SUPER, UserStatus.DISABLE)


def entry(key: str, *actions: Action, decision: Decision = Decision.ALLOW) -> Entry:
    resource = parse_resource(key)
    assert resource is not None
    return Entry(resource, frozenset(actions), (), decision)


PUB, SUB = entry("Topic:orders", Action.PUB), entry("Topic:orders", Action.SUB)
GROUP = entry("Group:g*", Action.ALL)
CUSTOM, DEFAULT = PolicyType.CUSTOM, PolicyType.DEFAULT


def test_users_are_read_as_they_were_written_and_a_password_is_not_shown() -> None:
    users = UserTable().with_user(ROOT).with_user(ANN)
    assert UserTable.load(users.to_text()) == users
    assert users.to_text() == (
        '{"users":[{"password":"ann\'s secret","userStatus":"enable","userType":"Normal","username":"ann"},'
        '{"password":"s","userStatus":"disable","userType":"Super","username":"root"}]}'
    )
    assert "secret" not in repr(users)
    assert users.without_user("ann").users == {"root": ROOT}
    assert users.without_user("bob") is users


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"users":7}',
        '{"users":[{"username":"a","userType":"Super","userStatus":"enable"}]}',
        '{"users":[{"password":"p","userType":"Super","userStatus":"enable"}]}',
        '{"users":[{"username":"a","password":"p","userType":"King","userStatus":"enable"}]}',
        '{"users":[{"username":"a","password":"p","userType":"Super"}]}',
    ],
)
def test_a_file_of_which_a_user_is_none_is_named(text: str) -> None:
    with pytest.raises(StateFileError, match=r"users\.json"):
        UserTable.load(text, "users.json")


def test_entries_are_read_as_they_were_written() -> None:
    acls = AclTable().with_entries("User:b", {DEFAULT: (GROUP,)}).with_entries("User:a", {CUSTOM: (PUB, GROUP)})
    assert AclTable.load(acls.to_text()) == acls
    assert list(acls.acls) == ["User:a", "User:b"]
    with pytest.raises(StateFileError, match=r"acls\.json.*The actions is empty"):
        AclTable.load(acls.to_text().replace('"Pub"', '"Write"'), "acls.json")


def test_entries_take_the_place_of_those_for_their_resources() -> None:
    acls = AclTable().with_entries("User:a", {CUSTOM: (PUB, GROUP)})
    acls = acls.with_entries("User:a", {CUSTOM: (SUB,), DEFAULT: (PUB,)})
    assert acls.acls["User:a"] == {CUSTOM: (GROUP, SUB), DEFAULT: (PUB,)}
    acls = acls.without_entry("User:a", CUSTOM, PUB.resource)
    assert acls.acls["User:a"] == {CUSTOM: (GROUP,), DEFAULT: (PUB,)}
    acls = acls.without_entry("User:a", DEFAULT, PUB.resource).without_entry("User:a", CUSTOM, GROUP.resource)
    assert acls.acls == {}
    assert acls.without_subject("User:a") is acls


def test_entries_are_listed_by_texts_in_subject_and_resource() -> None:
    acls = AclTable().with_entries("User:anna", {CUSTOM: (PUB, GROUP)}).with_entries("User:bob", {DEFAULT: (GROUP,)})
    assert [info.subject for info in matching(acls, None, None)] == ["User:anna", "User:bob"]
    assert [info.subject for info in matching(acls, "ann", "")] == ["User:anna"]
    (found,) = matching(acls, "", "orders")
    assert [[each.resource for each in policy.entries or ()] for policy in found.policies or ()] == [["Topic:orders"]]
    assert matching(acls, "bob", "orders") == ()


@pytest.mark.parametrize(
    "text", ["x", "[]", "{}", '{"username":"a"}', '{"username":"a","password":""}', '{"username":1,"password":2}']
)
def test_a_setting_names_a_user_and_a_password_or_is_refused(text: str) -> None:
    assert name_and_secret(None, "username", "password") is None
    assert name_and_secret('{"username":"a","password":"p"}', "username", "password") == ("a", "p")
    with pytest.raises(ValueError, match="it must be"):
        name_and_secret(text, "username", "password")


def test_codes_stand_between_commas() -> None:
    assert codes_of(" 10, 34,,") == {10, 34}
    assert codes_of("") == frozenset()
    with pytest.raises(ValueError, match="request codes"):
        codes_of("10,SEND")
