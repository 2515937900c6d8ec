"""Shared by servers without store and users, name server and controller: how they answer, and the settings that operators may change.

Apache's name server and controller have no access control. Here only this host may administer them, and a caller that signs as their
administrator. The signature is that of ACL 2.0: tools with a key sign all their requests.

Java: NamesrvController, ControllerManager, Configuration (their `updateConfig`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from spark_mq.access.users import User, UserTable, UserType, authenticate, name_and_secret
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import spawn
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings, Credentials
from spark_mq.remoting import ANSWER_HEADERS, BodyError, HeaderError, RemotingCommand, make_response
from spark_mq.remoting_server.peer import Peer, is_this_host
from spark_mq.remoting_server.server import RemotingServer
from spark_mq.remoting_server.settings import (
    ConfigurationTexts,
    ServerSettings,
    TlsServerSettings,
    setting,
    texts_of_file,
)
from storage.errors import ConfigurationError
from storage.files.local_file_system import LocalFileSystem
from storage.names import address_text
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.settings.java_properties import changed_properties, parse_properties
from storage.settings.java_settings import refusal_of_change

_ADMIN_USER = "initAuthenticationUser"

_C = TypeVar("_C", bound="AdministeredConfiguration")


def check_may_administer(request: RemotingCommand, host: str, administrator: Credentials | None) -> None:
    """Raises RequestRefusedError unless it comes from this host, or is signed by the administrator."""
    if is_this_host(host):
        return
    if administrator is None:
        remark = f"request {request.code} is answered to this host alone: {_ADMIN_USER} is not set"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
    user = User(administrator.access_key, administrator.secret_key, UserType.SUPER)
    authenticate(UserTable({user.name: user}), request)


@dataclass(frozen=True, slots=True)
class AdministeredSettings:
    """Settings for administration: the administrator, and the settings that no request may change (besides `FIXED_SETTINGS`)."""

    config_black_list: str = setting("configBlackList", "configBlackList;configStorePath", "String")
    """Names, between semicolons, that no request may change."""
    admin_user: str | None = setting(_ADMIN_USER, None, "String", is_secret=True)
    """`{"username":"…","password":"…"}`: who may change things from another host, by a signature. Java: AuthConfig, for brokers."""

    @property
    def administrator(self) -> Credentials | None:
        """The credentials that may change settings from another host; None = none may. Raises ConfigurationError."""
        try:
            found = name_and_secret(self.admin_user, "username", "password")
        except ValueError as rule:
            raise ConfigurationError(None, None, _ADMIN_USER, str(rule)) from None
        return None if found is None else Credentials(*found)


@dataclass(frozen=True, slots=True)
class AdministeredConfiguration(ConfigurationTexts):
    """All settings of such a server's process."""

    server: ServerSettings = field(default_factory=ServerSettings)
    tls: TlsServerSettings = field(default_factory=TlsServerSettings)
    warnings: tuple[str, ...] = ()

    @classmethod
    @abstractmethod
    def of(cls, texts: Mapping[str, str], file: str | None = None) -> Self:
        """From texts by Java name; logs a warning for each unknown name. Raises ConfigurationError."""

    @property
    @abstractmethod
    def own(self) -> AdministeredSettings:
        """Settings of the server itself."""

    @classmethod
    def read(cls, content: bytes, file: str, given: Mapping[str, str] | None = None) -> Self:
        """The settings of a properties file, and the given ones where it is silent. Raises ConfigurationError."""
        return cls.of(texts_of_file(content, file, given), file)

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.own, self.server, self.tls

    def updated(self, texts: Mapping[str, str]) -> Self:
        """With other values of settings that can change while it runs; unknown names are left alone, as in Java.

        Those of the listener hold from the next start on. Raises ConfigurationError for a text that is no value.
        """
        admin_user = self.own.admin_user
        kept = {} if admin_user is None else {_ADMIN_USER: admin_user}
        return replace(self.of({**self.changed_texts(texts), **kept}), tls=self.tls, warnings=self.warnings)


def changed_settings(configuration: _C, request: RemotingCommand, save: Callable[[Mapping[str, str]], None]) -> _C:
    """The configuration that a request's properties make. `save` writes those that the server knows into its file.

    Raises RequestRefusedError, ConfigurationError and OSError; nothing has changed then.
    """
    texts = {found.key: found.value for found in parse_properties(bytes(request.body))}
    refusal = refusal_of_change(texts, configuration.own.config_black_list)
    if refusal is not None:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, refusal)
    known = {name: text for name, text in texts.items() if name in configuration.texts()}
    if not known:
        return configuration
    changed = configuration.updated(known)
    save(known)
    return changed


def save_settings(path: str, changes: Mapping[str, str]) -> None:
    """Writes changed settings into their file durably; what was there is kept as `path`.bak."""
    files = LocalFileSystem()
    before = files.read_file(path)
    if before:
        files.replace(f"{path}.bak", before)
    files.replace(path, changed_properties(before or b"", changes))


_LOG = logging.getLogger(__name__)


def answered(request: RemotingCommand, act: Callable[[], RemotingCommand]) -> RemotingCommand:
    """The answer that `act` makes; where it raises, one that says why: a refusal, what cannot be read, what could not be written."""
    try:
        return act()
    except RequestRefusedError as refusal:
        fields: Mapping[str, str] | None = {} if request.code in ANSWER_HEADERS else None
        return make_response(request, refusal.code, refusal.remark, fields)
    except (HeaderError, BodyError, ConfigurationError) as error:
        return make_response(request, ResponseCode.SYSTEM_ERROR, error.describe())
    except OSError as error:
        _LOG.exception("request %d failed", request.code)
        remark = f"it could not be written: {error.strerror or error}"
        return make_response(request, ResponseCode.SYSTEM_ERROR, remark)


class AdministeredServer:
    """The sockets and timers that such servers have, on the event loop of their start. `_peer_left` gets each ended connection."""

    def __init__(self, configuration: AdministeredConfiguration) -> None:
        self._loop = asyncio.get_running_loop()
        self._remoting = RemotingServer(configuration.server, configuration.tls, on_close=self._peer_left)
        self._client: RemotingClient | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.address = ("", 0)
        """The listen address."""

    @property
    def connection_count(self) -> int:
        """Number of connected peers."""
        return self._remoting.connection_count

    async def close(self) -> None:
        """Answers what has come, and hangs up."""
        for timer in self._timers.values():
            timer.cancel()
        try:
            await self._remoting.close()
        finally:
            if self._client is not None:
                await asyncio.wrap_future(spawn(self._client.close()))

    def _peer_left(self, peer: Peer) -> None:
        raise NotImplementedError

    def _call_later(self, what: str, milliseconds: float, call: Callable[[], None]) -> None:
        """In place of the call of that name that is still to come."""
        if (before := self._timers.get(what)) is not None:
            before.cancel()
        self._timers[what] = self._loop.call_later(milliseconds / 1_000, call)

    def _send_to_broker(self, address: str, command: RemotingCommand, timeout_ms: int) -> Future[None]:
        """One-way, within the time. A broker that is not reached is logged, and asks for itself later."""
        if self._client is None:
            self._client = RemotingClient(ClientSettings((address_text(*self.address),)))
        return spawn(_sent(self._client, address, command, timeout_ms))


async def _sent(client: RemotingClient, address: str, command: RemotingCommand, timeout_ms: int) -> None:
    try:
        await client.invoke_oneway(address, command, timeout_ms)
    except ClientError as error:
        _LOG.warning("broker %s was not notified: %s", address, error.describe())
