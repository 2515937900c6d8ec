"""Name servers by an HTTP address server: a page that lists them, for clients that are given its domain alone.

    http://DOMAIN:8080/rocketmq/SUBGROUP[-UNIT?nofix=1]        1.2.3.4:9876;1.2.3.5:9876

A domain with a port is asked there in place of 8080. Java: TopAddressing, DefaultTopAddressing, MixAll.getWSAddr, with the properties
`rocketmq.namesrv.domain` and `rocketmq.namesrv.domain.subgroup`. Departure: what is no address is refused; Java tries to connect to it.
"""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from spark_mq.client.errors import ClientSettingError, NameServerUnreachableError
from spark_mq.client.settings import ClientSettings, parse_addresses

FETCH_TIMEOUT_MS = 3_000
FIRST_FETCH_AGAIN_MS = 10_000
FETCH_INTERVAL_MS = 120_000
_MOST_BYTES = 64 << 10


class _TimedSocket(socket.socket):
    """Gives all reads together the time that a plain socket gives each."""

    end = 0.0

    def recv_into(self, *given: Any) -> int:
        self.settimeout(max(self.end - time.monotonic(), 0.001))
        return super().recv_into(*given)


class _TimedConnection(HTTPConnection):
    def connect(self) -> None:
        end = time.monotonic() + (self.timeout or 0)
        super().connect()
        timed = _TimedSocket(fileno=self.sock.detach())
        timed.settimeout(self.timeout)
        timed.end, self.sock = end, timed


class _TimedHandler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_TimedConnection, request)


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _TimedHandler)
"""No proxy: as Java, and as with name servers themselves."""


def address_server_url(settings: ClientSettings) -> str | None:
    """The page; None where the settings name their name servers themselves."""
    domain = settings.namesrv_domain
    if domain is None:
        return None
    host = domain if ":" in domain else f"{domain}:8080"
    unit = f"-{settings.unit_name}?nofix=1" if settings.unit_name else ""
    return f"http://{host}/rocketmq/{settings.namesrv_domain_subgroup}{unit}"


def fetch_name_servers(url: str, timeout_ms: int = FETCH_TIMEOUT_MS) -> tuple[str, ...]:
    """The addresses on the page, from a thread that may wait so long. Raises NameServerUnreachableError."""
    try:
        with _opener.open(url, timeout=timeout_ms / 1000) as answer:
            if answer.status != HTTPStatus.OK:
                raise NameServerUnreachableError([(url, f"HTTP {answer.status}")])
            lines = answer.read(_MOST_BYTES).decode("utf-8", "replace").strip().splitlines()
    except urllib.error.HTTPError as error:
        error.close()
        raise NameServerUnreachableError([(url, f"HTTP {error.code}")]) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise NameServerUnreachableError([(url, str(reason) or type(error).__name__)]) from None
    try:
        found = parse_addresses("name_servers", lines[0] if lines else "")
    except ClientSettingError as error:
        raise NameServerUnreachableError(
            [(url, f"it lists what is no address: {error.value!r:.80}: {error.rule}")]
        ) from None
    if not found:
        raise NameServerUnreachableError([(url, "it lists no name server")])
    return found
