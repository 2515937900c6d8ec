"""What a client is told before it starts: name servers, who it is, how it proves that, how long it waits.

Java: ClientConfig, NettyClientConfig, TlsSystemConfig; the same defaults.
Not supported: SOCKS proxies, heartbeats of version 2, name servers looked up by HTTP.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field, fields
from typing import Literal

from spark_mq.client.errors import ClientSettingError, TlsError
from storage import names

Encoding = Literal["JSON", "ROCKETMQ"]

MQ_CLIENT_API_TIMEOUT_MS = 3_000
"""How long a client waits for an answer. Java: ClientConfig.mqClientApiTimeout."""
_QUESTION_TIMEOUTS = 2
_DEFAULT_INSTANCE_NAME = "DEFAULT"
_HIDDEN = "***"


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """Who signs requests: ACL user (1.0 and 2.0), its secret, and a token where a security service gave one.

    Neither `repr` nor `str` shows a secret.
    """

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name):
                raise ClientSettingError(name, "", "it must not be empty")

    def __repr__(self) -> str:
        token = "" if self.security_token is None else f", security_token={_HIDDEN!r}"
        return f"Credentials(access_key={self.access_key!r}, secret_key={_HIDDEN!r}{token})"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How TLS is spoken. All files are PEM.

    With `verify` (the default) the server's certificate must be signed by `ca_file`, or by the system's authorities
    without one, and with `check_hostname` name the address. Java's client verifies neither by default; brokers in
    `tls.test.mode` make their own certificate at each start, which only `verify=False` takes.
    """

    verify: bool = True
    check_hostname: bool = True
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    server_hostname: str | None = None

    def context(self) -> ssl.SSLContext:
        """What the sockets use. Raises TlsError where a file cannot be read."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        try:
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(
                    self.cert_file, self.key_file, self.key_password or ""
                )  # None would ask a terminal
        except (OSError, ssl.SSLError) as error:
            named = self.ca_file if self.cert_file is None else self.cert_file
            raise TlsError(str(named), f"the certificate or key cannot be read: {error}") from None
        if not self.verify or not self.check_hostname:
            context.check_hostname = False
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """All that clients of one instance share. Two equal settings in one process share one instance.

    `name_servers` are "host:port" texts; a single text with several (`a:9876;b:9876`) is split. `encoding` is that
    of the headers this client writes; what it reads says its own. Times are milliseconds.
    """

    name_servers: tuple[str, ...]
    namespace: str | None = None
    instance_name: str = _DEFAULT_INSTANCE_NAME
    unit_name: str | None = None
    client_ip: str | None = None
    credentials: Credentials | None = None
    tls: TlsSettings | None = None
    connect_timeout_ms: int = 3_000
    request_timeout_ms: int = MQ_CLIENT_API_TIMEOUT_MS
    """For the answer to one request: routes, heartbeats, pulls beyond the time that a broker holds them. Java: mqClientApiTimeout."""
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000
    persist_consumer_offset_interval_ms: int = 5_000
    max_idle_ms: int = 120_000
    encoding: Encoding = "JSON"
    vip_channel_enabled: bool = False

    def __post_init__(self) -> None:
        given = self.name_servers
        object.__setattr__(self, "name_servers", parse_addresses("name_servers", given))
        if not self.name_servers:
            raise ClientSettingError("name_servers", given, "name at least one as host:port")
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_ms") and not (isinstance(value, int) and value > 0):
                raise ClientSettingError(each.name, value, "it must be a whole number of milliseconds above 0")
        if self.encoding not in ("JSON", "ROCKETMQ"):
            raise ClientSettingError("encoding", self.encoding, "it must be JSON or ROCKETMQ")

    @property
    def question_timeout_ms(self) -> int:
        """For the answer to a question about queues, topics, groups and messages, and to an operator's request: twice
        `request_timeout_ms`. Java: MQAdminImpl.timeoutMillis (6 s); DefaultMQAdminExt has 5 s, RemoteBrokerOffsetStore too.
        """
        return _QUESTION_TIMEOUTS * self.request_timeout_ms

    @property
    def has_own_name(self) -> bool:
        """Whether the user named the instance, rather than leave that to process id and clock."""
        return self.instance_name != _DEFAULT_INSTANCE_NAME


def parse_addresses(setting: str, given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Addresses as "host:port" each, without doubles; a text may hold several between `;` or `,`.

    Raises ClientSettingError.
    """
    texts = [given] if isinstance(given, str) else list(given)
    found = [part.strip() for text in texts for part in re.split("[;,]", text) if part.strip()]
    for address in found:
        split_address(address, setting)
    return tuple(dict.fromkeys(found))


def split_address(address: str, setting: str = "address") -> tuple[str, int]:
    """Host and port of "host:port", as `storage.names` splits it. Raises ClientSettingError."""
    try:
        return names.split_address(address)
    except ValueError as rule:
        raise ClientSettingError(setting, address, str(rule)) from None


def check_kind(name: str, given: object, kind: type) -> None:
    """Raises ClientSettingError where an argument is of another kind; None is a default where there is one."""
    if not isinstance(given, kind) and not (given is None and name == "options"):
        example = f'{kind.__name__}("host:9876")' if kind is ClientSettings else f"{kind.__name__}(…)"
        raise ClientSettingError(name, given, f"it is {type(given).__name__}; give {example}")


def check_range(settings: object, name: str, least: int, most: int) -> None:
    """Raises ClientSettingError where a setting is no whole number in the range, ends included."""
    value = getattr(settings, name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ClientSettingError(name, value, f"it must be a whole number from {least} to {most}")
