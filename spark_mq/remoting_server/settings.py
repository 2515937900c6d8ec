"""A server's addresses, limits and time-outs. Java: NettyServerConfig, NettySystemConfig, TlsSystemConfig.

A field's `java` is its name in a configuration file; names of TLS and frames are system properties in Java.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from storage.errors import ConfigurationError
from storage.names import advice, plain_host
from storage.settings.java_properties import java_value, parse_properties
from storage.settings.java_properties import setting as setting

NETTY_NAMES = (
    *("serverWorkerThreads", "serverCallbackExecutorThreads", "serverSelectorThreads"),
    *("serverOnewaySemaphoreValue", "serverAsyncSemaphoreValue", "serverPooledByteBufAllocatorEnable"),
    *("serverNettyWorkerGroupEnable", "useEpollNativeSelector", "tls.test.mode.enable"),
)
"""Java's names of a listener that do nothing here."""
_C = TypeVar("_C")


def java_names(config_class: type) -> dict[str, str]:
    """The field of each Java name."""
    return {each.metadata["java"]: each.name for each in fields(config_class)}


def read_settings(config_class: type[_C], texts: Mapping[str, str], file: str | None = None) -> _C:
    """The settings that a file's texts make, by Java name; names of other classes are left alone.

    Raises ConfigurationError for a text that is no value of its type. (Java ignores it and goes on with the default.)
    """
    values = {}
    for each in fields(config_class):  # type: ignore[arg-type]
        name = each.metadata["java"]
        if name in texts:
            try:
                values[each.name] = java_value(each.metadata["kind"], texts[name])
            except ValueError as rule:
                raise ConfigurationError(file, None, name, str(rule)) from None
    try:
        return config_class(**values)
    except ConfigurationError as error:
        raise ConfigurationError(file, None, error.key, error.rule) from None


def setting_texts(config: object) -> dict[str, str]:
    """Each Java name with the value as Java prints it; what has no value, and what is secret, is left out."""
    texts = {}
    for each in fields(config):  # type: ignore[arg-type]
        value = getattr(config, each.name)
        if value is not None and not each.metadata["is_secret"]:
            texts[each.metadata["java"]] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


class ConfigurationTexts(ABC):
    """All settings of a server's process, as operators see them: those of its own, of its listener, of TLS."""

    __slots__ = ()

    @property
    @abstractmethod
    def parts(self) -> tuple[Any, ...]:
        """The settings, class by class."""

    def texts(self) -> dict[str, str]:
        """Each Java name with its value, in the order of the names; nothing secret."""
        return dict(sorted((name, text) for part in self.parts for name, text in setting_texts(part).items()))

    def text(self) -> str:
        """As a properties file, `name=value` in each line, as Java answers who asks for it."""
        return "".join(f"{name}={value}\n" for name, value in self.texts().items())

    def changed_texts(self, texts: Mapping[str, str]) -> dict[str, str]:
        """With other values; unknown names are left alone, as in Java."""
        own = self.texts()
        return own | {name: text for name, text in texts.items() if name in own}


def texts_of_file(content: bytes, file: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a server's properties file says, and what is given for what it does not say. Raises ConfigurationError."""
    return {
        **(given or {}),
        **{found.key: found.value for found in parse_properties(content, file)},
        "configStorePath": file,
    }


def unfollowed_names(
    classes: Iterable[type],
    texts: Mapping[str, str],
    not_followed: Mapping[str, str | None],
    who: str,
    file: str | None,
) -> tuple[str, ...]:
    """Warnings about names that none of these classes has: unknown names, and names without an effect here.

    Those of `not_followed` with a value may have no other: ConfigurationError.
    """
    known = {name for each in classes for name in java_names(each)}
    notes = []
    for name, text in texts.items():
        if name in known:
            continue
        if name not in not_followed:
            notes.append(f"{file or 'configuration'}: {name}: no {who} knows this name{advice(name, known)}")
        elif (only := not_followed[name]) is None:
            notes.append(f"{file or 'configuration'}: {name}: it has no effect here")
        elif text.strip().lower() != only.lower():
            raise ConfigurationError(file, None, name, f"{text!r} is not supported")
    return tuple(notes)


def require(config: object, name: str, rule: str, *, is_kept: bool) -> None:
    """Raises ConfigurationError, with the field's Java name, unless the rule is kept."""
    if not is_kept:
        (found,) = (each for each in fields(config) if each.name == name)  # type: ignore[arg-type]
        raise ConfigurationError(None, None, found.metadata["java"], f"{getattr(config, name)!r}: {rule}")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """A listener and its connections."""

    bind_address: str = setting("bindAddress", "127.0.0.1", "String")
    """Departure: Java listens on all addresses."""
    listen_port: int = setting("listenPort", 0, "int")
    """0 = any that is free."""
    idle_seconds: int = setting("serverChannelMaxIdleTimeSeconds", 120, "int")
    """A connection over which nothing went for so long is closed. So is one that has brought less than 4 KiB of a frame meanwhile."""
    backlog: int = setting("serverSocketBacklog", 1_024, "int")
    send_buffer_bytes: int = setting("serverSocketSndBufSize", 0, "int")
    receive_buffer_bytes: int = setting("serverSocketRcvBufSize", 0, "int")
    """0 = the system's."""
    high_water_bytes: int = setting("writeBufferHighWaterMark", 0, "int")
    """With more than that to be written nothing is read from the connection; 0 = 64 KiB."""
    low_water_bytes: int = setting("writeBufferLowWaterMark", 0, "int")
    """Until so little is left; 0 = 32 KiB."""
    frame_bytes_most: int = setting("com.rocketmq.remoting.frameMaxLength", 16_777_216, "int")
    shuts_down_gracefully: bool = setting("enableShutdownGracefully", False, "boolean")
    """Before the server ends, it asks clients to go away (1500), and gives them time."""
    shutdown_wait_seconds: int = setting("shutdownWaitTimeSeconds", 30, "int")
    connections_most: int = setting("serverMaxConnections", 0, "int")
    """0 = as many as the process may have open files, but for 128. A name of this package's own, as the next two."""
    requests_bytes_most: int = setting("serverMaxRequestBytes", 1 << 29, "int")
    """Bytes of all requests that wait or run. Further ones are refused (SYSTEM_BUSY); those whose peer would get no refusal wait."""
    unfinished_bytes_most: int = setting("serverMaxUnfinishedBytes", 1 << 28, "int")
    """Bytes of all unfinished frames, and of requests left by ended connections.

    A connection that goes beyond it is closed; what it leaves beyond it is dropped.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "bind_address", plain_host(self.bind_address.strip()))
        require(self, "listen_port", "a port is 0 to 65535", is_kept=0 <= self.listen_port < 65_536)
        for name in ("idle_seconds", "backlog", "frame_bytes_most", "requests_bytes_most", "unfinished_bytes_most"):
            require(self, name, "it must be greater than 0", is_kept=getattr(self, name) > 0)
        for name in ("connections_most", "shutdown_wait_seconds", "high_water_bytes", "low_water_bytes"):
            require(self, name, "it must not be negative", is_kept=getattr(self, name) >= 0)


@dataclass(frozen=True, slots=True)
class TlsServerSettings:
    """Whether and how TLS is spoken. All files are PEM."""

    mode: str = setting("tls.server.mode", "permissive", "String")
    """disabled, permissive (both are spoken) or enforcing (nothing else is)."""
    cert_file: str | None = setting("tls.server.certPath", None, "String")
    key_file: str | None = setting("tls.server.keyPath", None, "String")
    key_password: str | None = setting("tls.server.keyPassword", None, "String", is_secret=True)
    client_auth: str = setting("tls.server.need.client.auth", "none", "String")
    """none, optional or require: whether clients show a certificate."""
    verifies_clients: bool = setting("tls.server.authClient", False, "boolean")
    trust_file: str | None = setting("tls.server.trustCertPath", None, "String")
    """Who signs the certificates of clients."""

    def __post_init__(self) -> None:
        modes, ways = ("disabled", "permissive", "enforcing"), ("none", "optional", "require")
        require(self, "mode", f"it is none of {', '.join(modes)}", is_kept=self.mode in modes)
        require(self, "client_auth", f"it is none of {', '.join(ways)}", is_kept=self.client_auth in ways)
        needs = "a certificate is needed: tls.server.certPath and tls.server.keyPath"
        require(self, "mode", needs, is_kept=self.mode != "enforcing" or self.cert_file is not None)
        needs = (
            "certificates of clients are verified, or not requested: tls.server.authClient and tls.server.trustCertPath"
        )
        is_verified = self.verifies_clients and self.trust_file is not None
        require(self, "client_auth", needs, is_kept=self.client_auth == "none" or is_verified)
