"""TLS in RocketMQ's three modes, certificates of clients, and certificates that change."""

from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path

import pytest

from spark_mq.remoting_server.settings import TlsServerSettings, read_settings
from storage.errors import ConfigurationError
from tests.remoting_server.echo import Client, request, running
from tests.support.planned_server import Certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("certificate-"))


def settings(certificate: Certificate | None, **texts: str) -> TlsServerSettings:
    files = {} if certificate is None else {"certPath": str(certificate.cert), "keyPath": str(certificate.key)}
    names = {f"tls.server.{name.replace('__', '.')}": text for name, text in {**files, **texts}.items()}
    return read_settings(TlsServerSettings, names)


def trusting(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificate.cert))
    context.check_hostname = False
    return context


@pytest.mark.parametrize(
    ("mode", "takes_tls", "takes_plain"),
    [("disabled", False, True), ("permissive", True, True), ("enforcing", True, False)],
)
def test_a_mode_says_what_is_spoken(certificate: Certificate, mode: str, takes_tls: bool, takes_plain: bool) -> None:
    with running(tls=settings(certificate, mode=mode)) as server:
        if takes_tls:
            with Client(server, trusting(certificate)) as client:
                assert client.ask(request(1, body=bytes(100_000))).body == bytes(100_000)
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                Client(server, trusting(certificate))
        with Client(server) as client:
            if takes_plain:
                assert client.ask(request(1)).opaque == 1
            else:
                client.send(request(1))
                assert client.ended()


def test_without_a_certificate_permissive_speaks_no_tls(certificate: Certificate) -> None:
    with running(tls=settings(None)) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Client(server, trusting(certificate))
        with Client(server) as client:
            assert client.ask(request(1)).opaque == 1


def test_a_handshake_that_breaks_harms_nobody(certificate: Certificate) -> None:
    with running(tls=settings(certificate)) as server:
        with Client(server) as client:
            client.sock.sendall(b"\x16\x03\x01\x00\x05hello")
            client.sock.settimeout(20)
            while client.sock.recv(100):  # an alert, then the end
                pass
        with Client(server) as silent, Client(server, trusting(certificate)) as other:
            assert other.ask(request(1)).opaque == 1
            silent.sock.close()
        server.until(lambda: server.server.connection_count == 0, "all are gone")


def test_clients_show_certificates_where_that_is_asked_for(certificate: Certificate) -> None:
    asked = {"need__client__auth": "require", "authClient": "true", "trustCertPath": str(certificate.cert)}
    with running(tls=settings(certificate, **asked)) as server:
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)), Client(server, trusting(certificate)) as client:
            client.ask(request(1))
        shown = trusting(certificate)
        shown.load_cert_chain(str(certificate.cert), str(certificate.key))
        with Client(server, shown) as client:
            assert client.ask(request(1)).opaque == 1


def test_a_certificate_is_used_anew_when_it_and_its_key_have_changed(certificate: Certificate, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    other = Certificate(tmp_path / "new")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(certificate.cert, cert)
    shutil.copy(certificate.key, key)
    with running(tls=settings(None, certPath=str(cert), keyPath=str(key))) as server:
        Client(server, trusting(certificate)).sock.close()
        shutil.copy(other.cert, cert)
        os.utime(cert, ns=(1, 1))
        Client(server, trusting(certificate)).sock.close()
        shutil.copy(other.key, key)
        os.utime(key, ns=(1, 1))
        Client(server, trusting(other)).sock.close()


@pytest.mark.parametrize(
    ("texts", "rule"),
    [
        ({"mode": "sometimes"}, "none of disabled, permissive, enforcing"),
        ({"mode": "enforcing"}, "a certificate is needed"),
        ({"need__client__auth": "require"}, "certificates of clients are verified, or not requested"),
        ({"need__client__auth": "perhaps"}, "none of none, optional, require"),
    ],
)
def test_settings_that_make_no_sense_are_refused(texts: dict[str, str], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        settings(None, **texts)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    absent = settings(None, certPath=str(tmp_path / "absent.pem"), keyPath=str(tmp_path / "absent.pem"))
    with (
        pytest.raises(ConfigurationError, match=r"tls\.server\.certPath: the certificate or its key cannot be read"),
        running(tls=absent),
    ):
        pass
