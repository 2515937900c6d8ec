"""One connection to one server for a thread that waits: many requests in flight over a plain socket, no event loop.

For bulk reads: a task that only pulls needs no loop, and the codec is the same. Not thread-safe.

    connection = BlockingConnection("broker:10911", settings)
    connection.send([(request, waiter), …])
    for waiter, answer in connection.receive(timeout_ms): …

Java: NettyRemotingClient.invokeSync, for one address. `tls_mismatch` has no counterpart in Java.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterable
from typing import Generic, TypeVar

from spark_mq.client.calls import signed
from spark_mq.client.errors import (
    BrokerUnreachableError,
    FrameRefusedError,
    RequestIllegalError,
    RequestTimeoutError,
    TlsError,
    no_address,
    request_text,
)
from spark_mq.client.settings import ClientSettings, split_address
from spark_mq.remoting import (
    Answer,
    Broken,
    Connection,
    FrameIllegalError,
    HeaderEncoding,
    RemotingCommand,
    encode_frame,
    make_request,
)

_CHUNK_BYTES = 256 << 10
T = TypeVar("T")
"""The caller's value for a request, returned with the answer."""
TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""First bytes of an alert and of a handshake: a TLS server may send these to a plain client."""
PROBE_CODE = 0
"""No request has it: name servers and brokers answer REQUEST_CODE_NOT_SUPPORTED, and do nothing."""
_PROBE_S = 1.0


class BlockingConnection(Generic[T]):
    """Open from the beginning until `close`, or until it fails once. Requests are signed where the settings have credentials."""

    def __init__(self, address: str, settings: ClientSettings) -> None:
        """Raises BrokerUnreachableError, TlsError; neither takes longer than the settings' connect_timeout_ms."""
        self.address = address
        self._settings = settings
        self._encoding = HeaderEncoding[settings.encoding]
        self._connection: Connection[T] = Connection()
        self._last_code = 0
        self._has_heard = False
        self._broken_by: FrameRefusedError | None = None
        self._socket = self._connected()

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer yet."""
        return self._connection.waiting_count

    def send(self, requests: Iterable[tuple[RemotingCommand, T]], timeout_ms: int | None = None) -> None:
        """Send requests, each with what waits for its answer.

        Raises BrokerUnreachableError, RequestTimeoutError; RequestIllegalError for one that no frame can carry, and nothing is sent.
        """
        pieces: list[bytes | memoryview] = []
        for command, waiter in requests:
            if command.encoding is not self._encoding:
                command = command._replace(encoding=self._encoding)
            if self._settings.credentials is not None:
                command = signed(command, self._settings.credentials)
            try:
                pieces += self._connection.send_request(command, waiter).pieces
            except FrameIllegalError as error:
                raise RequestIllegalError(request_text(command.code), error.describe()) from None
            self._last_code = command.code
        if not pieces:
            return
        timeout_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        self._socket.settimeout(timeout_ms / 1000)
        try:
            self._socket.sendall(b"".join(pieces))
        except TimeoutError:
            raise self._timed_out(timeout_ms) from None
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, timeout_ms: int | None = None) -> list[tuple[T, RemotingCommand]]:
        """The answers that come next, at least one. Raises RequestTimeoutError where none is whole within the time, also when
        bytes trickle in; BrokerUnreachableError (FrameRefusedError, TlsError) where the connection is gone. Answers before what is
        no frame are given first.
        """
        timeout_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            if self._broken_by is not None:
                raise self._broken_by
            answers = []
            for event in self._connection.feed(self._read(deadline, timeout_ms)):
                match event:
                    case Answer(command, waiter):
                        answers.append((waiter, command))
                    case Broken(error):
                        self._broken_by = FrameRefusedError(self.address, error.describe())
                    case _:  # a server's own request, or an answer too late
                        continue
            if answers:
                return answers

    def close(self) -> None:
        """Requests in flight get no answer."""
        self._connection.close("it was closed")
        self._socket.close()

    def _read(self, deadline: float, timeout_ms: int) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._timed_out(timeout_ms)
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(_CHUNK_BYTES)
        except TimeoutError:
            raise self._timed_out(timeout_ms) from None
        except OSError as error:
            raise self._broken(error) from None
        if not data:
            raise self._lost("it closed the connection")
        if not self._has_heard and data.startswith(TLS_RECORDS):
            raise answered_with_tls(self.address)
        self._has_heard = True
        return data

    def _timed_out(self, timeout_ms: int) -> RequestTimeoutError:
        return RequestTimeoutError(request_text(self._last_code), timeout_ms, self.address)

    def _broken(self, error: OSError) -> BrokerUnreachableError:
        return self._lost(f"the connection broke: {_reason(error)}")

    def _lost(self, reason: str) -> BrokerUnreachableError:
        """The error of a connection that is gone; of one over which nothing ever came, whether the server wants TLS."""
        is_mute = self._settings.tls is None and not self._has_heard
        return (tls_mismatch(self.address) if is_mute else None) or BrokerUnreachableError(self.address, reason)

    def _connected(self) -> socket.socket:
        timeout_ms = self._settings.connect_timeout_ms
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            plain = socket.create_connection(split_address(self.address), timeout_ms / 1000)
        except TimeoutError:
            raise BrokerUnreachableError(self.address, f"connecting took longer than {timeout_ms} ms") from None
        except OSError as error:
            raise BrokerUnreachableError(self.address, f"no connection: {_reason(error)}") from None
        except ValueError as error:  # a route may say anything
            raise BrokerUnreachableError(self.address, no_address(error)) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._settings.tls is None:
                return plain
            plain.settimeout(max(deadline - time.monotonic(), 0.001))
            named = self._settings.tls.server_hostname or split_address(self.address)[0]
            return self._settings.tls.context().wrap_socket(plain, server_hostname=named)
        except TimeoutError:
            plain.close()
            raise BrokerUnreachableError(self.address, f"the TLS handshake took longer than {timeout_ms} ms") from None
        except ssl.SSLCertVerificationError as error:
            plain.close()
            raise TlsError(self.address, f"the server's certificate is refused: {error.verify_message}") from None
        except OSError as error:
            plain.close()
            reason = "the server does not speak TLS" if "WRONG_VERSION_NUMBER" in str(error) else _reason(error)
            raise TlsError(self.address, reason) from None
        except BaseException:
            plain.close()
            raise


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def answered_with_tls(address: str) -> TlsError:
    """The error of a plain client that gets such a record."""
    return TlsError(address, "the server speaks TLS, and this client is not set to")


def tls_mismatch(address: str) -> TlsError | None:
    """The error, if the server at the address speaks TLS alone: one that enforces TLS closes plain connections without a word.

    A server that takes both (tls.server.mode=permissive, Java's default) answers a handshake too. So the question is put plainly first,
    and only a server that says nothing to it, and then takes a handshake, wants TLS. Takes some seconds at most, and none if the
    address refuses connections.
    """
    try:
        if _answers_plainly(address) or not _shakes_hands(address):
            return None
    except (OSError, ValueError):
        return None
    return TlsError(address, "the server closes plain connections and speaks TLS, and this client is not set to")


def _answers_plainly(address: str) -> bool:
    """Whether a request is answered with anything at all, be it a refusal. Silence counts, too: such a server does not hang up."""
    with _connected(address) as plain:
        plain.sendall(b"".join(encode_frame(make_request(PROBE_CODE))))
        try:
            return bool(plain.recv(1))
        except TimeoutError:
            return True
        except OSError:
            return False


def _shakes_hands(address: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with _connected(address) as plain, context.wrap_socket(plain):
        return True


def _connected(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), _PROBE_S)
