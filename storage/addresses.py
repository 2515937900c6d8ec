"""`host:port` as people, files, routes and sockets spell it, for both families: split here, and made here.

    broker.example:10911   127.0.0.1:10911   [::1]:10911   ::1:10911   0:0:0:0:0:0:0:1:10911

The port stands behind the last colon. An IPv6 address stands in brackets or, as Apache's brokers give it, without. What this package
says itself has the brackets: clients of other languages than Java need them.

Java: NetworkUtil.string2SocketAddress, NettyRemotingClient.getHostAndPort.
Departure: an address of another form is refused where it is read. Java fails when it connects.
"""

from __future__ import annotations

import ipaddress
import re

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
    """The part before the port, without brackets; of an address that a socket or this module has made."""
    return plain_host(address.rpartition(":")[0])


def plain_host(host: str) -> str:
    """Without the brackets in which an IPv6 address may stand. Java: InetAddress.getByName takes both."""
    return host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host


def address_text(host: str, port: int) -> str:
    """`host:port`; an IPv6 address is written in its short form, in brackets."""
    shown = plain_host(host)
    if ":" not in shown:
        return f"{shown}:{port}"
    return f"[{ipaddress.ip_address(shown).compressed if _is_ip(shown) else shown}]:{port}"


def same_address(one: str, other: str) -> bool:
    """Whether two texts name the same host and port, however they spell it. Names are not looked up."""
    return one == other or in_one_form(one) == in_one_form(other)


def peer_host(host: str) -> str:
    """A socket's host as Java says it: an IPv4 client of a socket for both families has its IPv4 address."""
    if not host.startswith("::ffff:"):
        return host
    mapped = ipaddress.IPv6Address(host.partition("%")[0]).ipv4_mapped
    return host if mapped is None else str(mapped)


def in_one_form(address: str) -> str:
    """As this package spells it; another text as it is."""
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
