"""Whether a server that hung up on a plain client wants TLS. One that enforces TLS closes plain connections without a word.

A server that takes both (tls.server.mode=permissive, Java's default) answers a handshake too. So the question is put plainly first,
and only a server that says nothing to it, and then takes a handshake, wants TLS. Java has no such probe.
"""

from __future__ import annotations

import socket
import ssl

from spark_mq.client.errors import TlsError
from spark_mq.client.settings import split_address
from spark_mq.remoting import encode_frame, make_request

TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""How an alert and a handshake begin: what a server that speaks TLS may say to a plain client."""

PROBE_CODE = 0
"""No request has it: name servers and brokers answer REQUEST_CODE_NOT_SUPPORTED, and do nothing."""
_PROBE_S = 1.0


def answered_with_tls(address: str) -> TlsError:
    """The error of a plain client that gets such a record."""
    return TlsError(address, "the server speaks TLS, and this client is not set to")


def tls_mismatch(address: str) -> TlsError | None:
    """The error, if the server at the address speaks TLS alone. Takes some seconds at most, and none where nobody listens."""
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
