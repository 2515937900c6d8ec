"""Settings of clients, producers and consumers: what is refused, what is split, what is never shown, and what the pages say of them."""

from __future__ import annotations

import pickle
import re
import ssl
from dataclasses import MISSING, fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.errors import ClientSettingError, TlsError
from spark_mq.client.settings import (
    RETRIED_CODES,
    ClientSettings,
    Credentials,
    ProducerSettings,
    PullSettings,
    PushSettings,
    TlsSettings,
    parse_addresses,
    split_address,
    with_namespace,
    without_namespace,
)
from tests.support.pages import marked, rows
from tests.support.places import PROJECT

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


SERVED = partial(ClientSettings, name_servers=("ns:9876",))


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (SERVED, "name_servers", [()]),
        (SERVED, "request_timeout_ms", [0]),
        (SERVED, "connect_timeout_ms", [1.5]),
        (SERVED, "encoding", ["PROTOBUF"]),
        *((PushSettings, name, [0]) for name in ("thread_count", "pull_limit")),
        (PushSettings, "batch_size", [1025]),
        (PushSettings, "queue_limit", [65_536]),
        (PushSettings, "max_reconsume_times", [-1]),
        (PullSettings, "pull_limit", [0, 1025, True, "32"]),
        *((ProducerSettings, name, [-1]) for name in ("retries", "compress_over_bytes")),
        *((ProducerSettings, name, [0]) for name in ("send_timeout_ms", "max_try_timeout_ms")),
        (ProducerSettings, "compression", ["gzip"]),
        (ProducerSettings, "when_full", ["drop"]),
        (ProducerSettings, "max_in_flight", [True]),
    ],
)
def test_a_setting_without_sense_is_refused_by_name(kind: Any, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ClientSettingError, match=name):
            kind(**{name: value})


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


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("Topic", "ns%Topic"),
        ("%RETRY%Group", "%RETRY%ns%Group"),
        ("%DLQ%Group", "%DLQ%ns%Group"),
        ("other%Topic", "ns%other%Topic"),
    ],
)
def test_a_name_is_wrapped_once_and_unwrapped_again(name: str, wrapped: str) -> None:
    assert with_namespace("ns", name) == wrapped
    assert with_namespace("ns", wrapped) == wrapped
    assert without_namespace("ns", wrapped) == name


@pytest.mark.parametrize("name", ["TBW102", "rmq_sys_X", "CID_RMQ_SYS_TRANS", ""])
def test_system_names_have_no_namespace(name: str) -> None:
    assert with_namespace("ns", name) == name


@pytest.mark.parametrize("namespace", [None, ""])
def test_without_a_namespace_names_stay(namespace: str | None) -> None:
    assert with_namespace(namespace, "a%b") == "a%b"
    assert without_namespace(namespace, "a%b") == "a%b"


def test_the_namespace_of_somebody_else_stays() -> None:
    assert without_namespace("ns", "other%Topic") == "other%Topic"
    assert without_namespace("ns", "%RETRY%other%Group") == "%RETRY%other%Group"


@pytest.mark.parametrize("kind", [PushSettings, PullSettings])
def test_a_time_in_seconds_is_refused_with_the_milliseconds_that_were_meant(kind: Any) -> None:
    with pytest.raises(ClientSettingError, match="write 1700000000000"):
        kind(consume_time_ms=1_700_000_000)


def test_the_page_has_every_setting_of_a_push_consumer_with_its_default() -> None:
    _, table = marked("push settings")
    said = {name.strip("`"): default for name, default, _ in rows(table)}
    assert list(said) == [each.name for each in fields(PushSettings)]
    plain = {each.name: each.default for each in fields(PushSettings) if each.default not in (MISSING, None)}
    assert {name: said[name] for name in plain} == {
        name: value.name if isinstance(value, Enum) else str(value) for name, value in plain.items()
    }
    assert said["allocation"] == PushSettings().allocation.name


PAGE = (PROJECT / "docs" / "producers.md").read_text("utf-8")


def test_the_page_lists_each_setting_with_its_default() -> None:
    _, table = marked("producer settings")
    told = {name.strip("`"): default for name, default, _ in rows(table)}
    defaults = {each.name: str(getattr(ProducerSettings(), each.name)) for each in fields(ProducerSettings)}
    assert told == defaults | {"retried_codes": "the eight above"}


def test_the_page_names_the_codes_after_which_a_send_is_tried_again() -> None:
    listed = re.search(r"may be this broker's alone \(([\d, ]+)\)", PAGE)
    assert listed is not None
    assert set(map(int, listed[1].split(","))) == set(RETRIED_CODES)
