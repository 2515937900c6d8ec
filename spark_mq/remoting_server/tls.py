"""TLS in RocketMQ's three modes: disabled, permissive (a connection's first byte says what it speaks), enforcing.

Java: TlsModeHandler, TlsHelper, NamesrvController.initiateSslContext. Departures: there is no test mode, in which a server makes a
certificate for itself: without one configured nothing but enforcing differs from disabled. Settings stand in the configuration file.
"""

from __future__ import annotations

import logging
import os
import ssl

from spark_mq.remoting_server.settings import TlsServerSettings
from storage.errors import ConfigurationError

HANDSHAKE = b"\x16"
"""What TLS begins with; a frame does not, unless it is 369 MB long."""
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
_LOG = logging.getLogger(__name__)


class TlsContexts:
    """The context of new connections; made anew after certificate and key have both changed. Raises ConfigurationError."""

    def __init__(self, settings: TlsServerSettings) -> None:
        self.settings = settings
        self._stamps = self._read_stamps()
        self._context = _context_of(settings) if self.is_spoken else None

    @property
    def is_spoken(self) -> bool:
        """Whether TLS is spoken at all."""
        return self.settings.mode != "disabled" and self.settings.cert_file is not None

    @property
    def is_enforced(self) -> bool:
        """Whether nothing else is."""
        return self.settings.mode == "enforcing"

    @property
    def context(self) -> ssl.SSLContext | None:
        """What a new connection uses; None where TLS is not spoken. Files that cannot be read leave the one before."""
        if self._context is not None:
            stamps = self._read_stamps()
            if all(new != old for new, old in zip(stamps, self._stamps, strict=True)):
                self._stamps = stamps
                try:
                    self._context = _context_of(self.settings)
                except ConfigurationError as error:
                    _LOG.error("the changed certificate is not used: %s", error)
        return self._context

    def _read_stamps(self) -> list[int | None]:
        """When certificate and key were written; one file that holds both counts once."""
        paths = {path: None for path in (self.settings.cert_file, self.settings.key_file) if path is not None}
        return [_modified_ns(path) for path in paths]


def _modified_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _context_of(settings: TlsServerSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(str(settings.cert_file), settings.key_file, settings.key_password or "")
    except (OSError, ssl.SSLError) as error:
        rule = f"the certificate or its key cannot be read: {error}"
        raise ConfigurationError(None, None, "tls.server.certPath", rule) from None
    if settings.trust_file is not None and settings.verifies_clients:
        try:
            context.load_verify_locations(settings.trust_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(None, None, "tls.server.trustCertPath", str(error)) from None
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    return context
