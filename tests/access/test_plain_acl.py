"""ACL 1.0: which request of which account passes, as Apache's own classes say (tests/vectors/acl)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq.access.plain_acl import Accounts, address_rule, read_document, write_document
from spark_mq.remoting import RequestCode
from storage.errors import StateFileError
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from tests.support.places import VECTORS
from tests.support.plain_acl_cases import ADDRESSES, FILES, RULES, Case, cases

pytest.importorskip("yaml")
EXAMPLE = (VECTORS / "acl" / "plain_acl.yml").read_text()


def said(name: str) -> list[str]:
    return (VECTORS / "acl" / f"{name}.txt").read_text().splitlines()


def verdict(accounts: Accounts, case: Case) -> str:
    try:
        accounts.check(case.command(), case.host)
    except RequestRefusedError as refusal:
        exception, _, remark = (refusal.remark or "").partition(": ")
        is_javas = (refusal.code, exception) == (
            ResponseCode.SYSTEM_ERROR,
            "org.apache.rocketmq.acl.common.AclException",
        )
        return remark if is_javas else str(refusal)
    return "OK"


def test_each_request_of_each_account_passes_as_at_apaches_broker() -> None:
    accounts = Accounts.of({"plain_acl.yml": read_document(EXAMPLE, "plain_acl.yml")})
    asked, theirs = cases(), said("requests")
    assert len(asked) == len(theirs)
    assert 100 < theirs.count("OK") < len(theirs) - 500
    for case, their in zip(asked, theirs, strict=True):
        our = verdict(accounts, case)
        if case.names_several and their.startswith("No ") and our.startswith("No "):
            continue  # which of two resources is named
        assert our == their, case


def test_a_rule_means_the_addresses_that_it_means_to_apaches_broker() -> None:
    theirs = iter(said("addresses"))
    for rule in RULES:
        found = [next(theirs) for _ in ADDRESSES]
        try:
            matches = address_rule(rule)
            ours = [str(matches(address)).lower() for address in ADDRESSES]
        except ValueError:
            ours = ["refused" for _ in ADDRESSES]
        assert ours == [text if text in ("true", "false") else "refused" for text in found], rule


@pytest.mark.parametrize(("name", "their"), list(zip(FILES, said("files"), strict=True)))
def test_a_file_is_read_or_refused_as_by_apaches_broker(name: str, their: str) -> None:
    def read() -> None:
        Accounts.of({"plain_acl.yml": read_document(FILES[name], "plain_acl.yml")})

    if their == "OK":
        read()
        return
    with pytest.raises(StateFileError) as refused:
        read()
    assert refused.value.args or "plain_acl.yml" in str(refused.value)
    assert "12345678" not in str(refused.value)


def test_a_range_counts_behind_its_first_part_too() -> None:
    """Departure: Java looks at the first range alone."""
    matches = address_rule("10.1-2.0.*")
    assert (matches("10.2.0.9"), matches("10.2.9.9")) == (True, False)


def test_lite_pulls_need_the_right_to_pull_and_changes_of_access_an_admin() -> None:
    """Departures: Java asks for a signature alone."""
    accounts = Accounts.of({"f": read_document(EXAMPLE, "f")})
    for code in (
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.AUTH_CREATE_USER,
    ):
        fields = {"topic": "topicA", "consumerGroup": "groupA"}
        assert verdict(accounts, Case("RocketMQ", "127.0.0.1", code, fields)).startswith(
            ("No permission", "Need admin")
        )
        assert verdict(accounts, Case("rocketmq2", "127.0.0.1", code, fields)) == "OK"


@pytest.mark.parametrize(("code", "field"), [(324, "topic"), (325, "b")])
def test_a_reply_needs_the_right_to_send_to_its_topic(code: int, field: str) -> None:
    """Departure: Java asks for a signature alone."""
    accounts = Accounts.of({"f": read_document(EXAMPLE, "f")})

    def said_to(topic: str) -> str:
        return verdict(accounts, Case("RocketMQ", "127.0.0.1", RequestCode(code), {field: topic}, b"body"))

    assert (said_to("topicA"), said_to("topicB")) == ("No permission for topic:topicA", "OK")
    assert said_to("elsewhere") == "No default permission for topic:elsewhere"
    assert said_to("%RETRY%groupA") == "No permission for group:groupA"


def test_a_written_file_is_the_one_that_was_read(tmp_path: Path) -> None:
    document = read_document(EXAMPLE, "f")
    assert read_document(write_document(document), "f") == document
    assert [account["secretKey"] for account in document["accounts"]] == ["12345678"] * 2


def test_the_first_file_with_an_access_key_counts_and_a_secret_is_not_shown() -> None:
    files = {name: f"accounts: [{{accessKey: somebody, secretKey: {name}-secret}}]" for name in ("first", "second")}
    accounts = Accounts.of({name: read_document(text, name) for name, text in files.items()})
    assert accounts.by_key["somebody"].secret_key == "first-secret"
    assert "first-secret" not in repr(accounts)
