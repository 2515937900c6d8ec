"""Addresses as people, files, routes and sockets spell them."""

from __future__ import annotations

import pytest

from storage.names import address_text, host_of, peer_host, same_address, split_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:10911", "127.0.0.1", 10_911),
        ("broker-a.example:1", "broker-a.example", 1),
        ("broker_a:65535", "broker_a", 65_535),
        ("[::1]:10911", "::1", 10_911),
        ("::1:10911", "::1", 10_911),
        ("fd00::1:7a:10911", "fd00::1:7a", 10_911),
        ("0:0:0:0:0:0:0:1:21005", "0:0:0:0:0:0:0:1", 21_005),
        ("[fe80::1%eth0]:10911", "fe80::1%eth0", 10_911),
        ("fe80::1%eth0:10911", "fe80::1%eth0", 10_911),
    ],
)
def test_an_address_is_split_at_its_last_colon(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)
    assert host_of(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        ":1",
        "a:",
        "a:x",
        "a:-1",
        "a:²",
        "a b:1",
        "a:b:1",
        "[::1]",
        "::1",
        "[::1:1",
        "::1]:1",
        "[a]:1",
        "[127.0.0.1]:1",
        "u@h:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^an address is host:port"):
        split_address(text)


@pytest.mark.parametrize("text", ["a:0", "a:65536", "[::1]:99999"])
def test_a_port_that_no_socket_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a port is 1 to 65535"):
        split_address(text)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1:7"),
        ("broker.example", "broker.example:7"),
        ("0:0:0:0:0:0:0:1", "[::1]:7"),
        ("[fd00::0:1]", "[fd00::1]:7"),
        ("fe80::1%eth0", "[fe80::1%eth0]:7"),
    ],
)
def test_what_this_package_says_itself_has_one_form(host: str, text: str) -> None:
    assert address_text(host, 7) == text
    assert address_text(*split_address(text)) == text


def test_two_spellings_of_an_address_are_one_address() -> None:
    assert same_address("0:0:0:0:0:0:0:1:7", "[::1]:7")
    assert same_address("a:7", "a:7")
    assert not same_address("::1:7", "[::1]:8")
    assert not same_address("nonsense", "::1:7")


def test_an_ipv4_client_of_a_socket_for_both_families_has_its_ipv4_address() -> None:
    assert [peer_host(each) for each in ("::ffff:10.0.0.7", "10.0.0.7", "::1", "fe80::1%eth0")] == [
        "10.0.0.7",
        "10.0.0.7",
        "::1",
        "fe80::1%eth0",
    ]
