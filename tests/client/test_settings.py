"""Settings of a client: what is refused, what is split, and what is never shown."""

from __future__ import annotations

import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.errors import ClientSettingError, TlsError
from spark_mq.client.settings import ClientSettings, Credentials, TlsSettings, parse_addresses, split_address

SECRETS = Credentials("alice", "the-secret", "the-token")


def test_defaults_are_those_of_the_java_client() -> None:
    settings = ClientSettings(("ns:9876",))
    assert (settings.connect_timeout_ms, settings.request_timeout_ms) == (3_000, 3_000)
    assert settings.question_timeout_ms == 6_000, "MQAdminImpl"
    assert (settings.poll_name_server_interval_ms, settings.heartbeat_broker_interval_ms) == (30_000, 30_000)
    assert (settings.persist_consumer_offset_interval_ms, settings.max_idle_ms) == (5_000, 120_000)
    assert (settings.encoding, settings.vip_channel_enabled, settings.instance_name) == ("JSON", False, "DEFAULT")


@pytest.mark.parametrize("show", [repr, str, "{}".format])
def test_no_text_of_settings_shows_a_secret(show: Any) -> None:
    settings = ClientSettings(("ns:9876",), credentials=SECRETS, tls=TlsSettings(key_password="the-password"))
    for text in (show(settings), show(SECRETS), show(settings.tls)):
        assert "the-secret" not in text
        assert "the-token" not in text
        assert "the-password" not in text
    assert "alice" in show(settings)


def test_equal_settings_are_one_key_of_a_dictionary() -> None:
    first, second = (ClientSettings(("ns:9876",), credentials=Credentials("a", "b")) for _ in range(2))
    assert {first: 1}[second] == 1
    assert pickle.loads(pickle.dumps(first)) == first
    assert ClientSettings(("ns:9876",), credentials=Credentials("a", "c")) != first


def test_name_servers_in_one_text_are_split() -> None:
    assert parse_addresses("nameServer", "a:1; b:2,a:1") == ("a:1", "b:2")
    assert ClientSettings("a:1;b:2").name_servers == ("a:1", "b:2")  # type: ignore[arg-type]
    assert split_address("[::1]:9876") == split_address("::1:9876") == ("::1", 9876)


@pytest.mark.parametrize(
    "address", ["host", "host:", ":9876", "host:0", "host:65536", "a b:1", "user@host:1", "::1", "a:b:1"]
)
def test_what_is_no_address_is_refused_with_its_setting(address: str) -> None:
    with pytest.raises(ClientSettingError, match=r"name_servers=.*host:port"):
        ClientSettings((address,))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name_servers": ()}, "name_servers"),
        ({"request_timeout_ms": 0}, "request_timeout_ms"),
        ({"connect_timeout_ms": 1.5}, "connect_timeout_ms"),
        ({"encoding": "PROTOBUF"}, "encoding"),
    ],
)
def test_a_setting_without_sense_is_named(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ClientSettingError, match=told):
        ClientSettings(**{"name_servers": ("ns:9876",), **change})


@pytest.mark.parametrize("parts", [("", "s"), ("a", "")])
def test_credentials_without_key_or_secret_are_refused(parts: tuple[str, str]) -> None:
    with pytest.raises(ClientSettingError, match="must not be empty"):
        Credentials(*parts)


def test_tls_verifies_unless_told_otherwise() -> None:
    assert TlsSettings().context().verify_mode is ssl.CERT_REQUIRED
    assert TlsSettings().context().check_hostname
    trusting = TlsSettings(verify=False).context()
    assert (trusting.verify_mode, trusting.check_hostname) == (ssl.CERT_NONE, False)
    assert TlsSettings(check_hostname=False).context().verify_mode is ssl.CERT_REQUIRED


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    with pytest.raises(TlsError, match="cannot be read"):
        TlsSettings(ca_file=str(tmp_path / "absent.pem")).context()
    with pytest.raises(TlsError, match=r"no\.pem"):
        TlsSettings(cert_file=str(tmp_path / "no.pem")).context()
