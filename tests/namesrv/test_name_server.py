"""Requests of every kind, texts and settings, who may ask, and Apache's own answers to the same requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_mq.client.calls import signed
from spark_mq.client.settings import Credentials
from spark_mq.namesrv.name_server import ADMIN_CODES, HANDLERS, NameServer
from spark_mq.namesrv.settings import Configuration
from spark_mq.namesrv.tables import KvConfig, parse_kv_config
from spark_mq.remoting import HeaderEncoding, RemotingCommand, RequestCode, decode_frame, make_request
from spark_mq.remoting_server.peer import Caller, is_this_host
from storage.errors import StateFileError
from storage.format.fastjson import parse_sent
from tests.namesrv.asking import START_MS, Asked
from tests.support.captures import FOLDERS, CapturedFrame, captured_frames
from tests.support.places import VECTORS

KEY = {"namespace": "N", "key": "k"}
USER = Credentials("root", "secret")
USER_SETTING = '{"username":"root","password":"secret"}'
ELSEWHERE = "10.0.0.7"


# Apache's answers.


def requests(folder: str) -> list[CapturedFrame]:
    """What clients and the broker asked a real name server, by time; `how_made.md` says where the order comes from."""
    order = json.loads((VECTORS / "remoting" / "name_server_order.json").read_text("utf-8"))[folder]
    place = {(file, offset): number for number, (file, offset) in enumerate(order)}
    asked = [one for one in captured_frames() if one.folder == folder and (one.file, one.said["off"]) in place]
    return sorted(asked, key=lambda one: place[one.file, one.said["off"]])


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_answers_are_apaches_field_by_field(folder: str) -> None:
    asked = Asked()
    answers = {
        (one.file, one.said["opaque"]): one for one in captured_frames() if one.folder == folder and one.is_response
    }
    compared: dict[int, int] = {}
    for one in requests(folder):
        ours = asked.server.answer(decode_frame(one.data), Caller(one.file, "127.0.0.1"), START_MS)
        asked.settle()
        theirs = decode_frame(answers[one.file.replace("c2s", "s2c"), one.said["opaque"]].data)
        assert _values(ours, one.asked) == _values(theirs, one.asked), one
        compared[one.asked] = compared.get(one.asked, 0) + 1
    assert {103, 104, 105, 106, 206} <= compared.keys()
    assert sum(compared.values()) > 60


def _values(answer: RemotingCommand, code: int) -> Any:
    body = parse_sent(bytes(answer.body).decode()) if answer.body else None
    if code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
        body["topicList"].sort()  # a set
    is_binary = answer.encoding is HeaderEncoding.ROCKETMQ  # no fields are the same as none there
    fields = (answer.ext_fields or None) if is_binary else answer.ext_fields
    return answer.code, answer.opaque, answer.flag, answer.encoding, fields, answer.remark, body


# Texts.


def test_texts_are_put_told_and_deleted_and_kept_in_their_file() -> None:
    asked = Asked()
    answer = asked.ask(RequestCode.GET_KV_CONFIG, KEY)
    assert (answer.code, answer.remark, answer.ext_fields) == (22, "No config item, Namespace: N Key: k", {})
    answer = asked.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: N")
    assert asked.ask(RequestCode.PUT_KV_CONFIG, {**KEY, "value": "v"}).code == 0
    assert asked.kept["texts"] == '{"configTable":{"N":{"k":"v"}}}'
    assert asked.ask(RequestCode.GET_KV_CONFIG, KEY).ext_fields == {"value": "v"}
    assert asked.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}).body == b'{"table":{"k":"v"}}'
    assert asked.ask(RequestCode.DELETE_KV_CONFIG, KEY).code == 0
    assert asked.kept["texts"] == '{"configTable":{"N":{}}}'
    assert asked.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}).body == b'{"table":{}}'
    assert asked.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "never", "key": "k"}).code == 0


def test_texts_have_names_and_are_not_too_many() -> None:
    asked = Asked()
    for fields in (
        {"key": "k", "value": "v"},
        {**KEY},
        {**KEY, "key": "", "value": "v"},
        {**KEY, "value": "v" * (3 << 20)},
    ):
        assert asked.ask(RequestCode.PUT_KV_CONFIG, fields).code == 1
    assert asked.ask(RequestCode.PUT_KV_CONFIG, {**KEY, "key": "k" * 2_000, "value": "v"}).code == 1
    assert asked.kept == {}


def test_a_text_that_cannot_be_written_is_not_taken() -> None:
    def fail(text: str) -> None:
        raise OSError(28, "No space left on device")

    server = NameServer(Configuration(), started_ms=START_MS, save_texts=fail)
    request = make_request(RequestCode.PUT_KV_CONFIG, {**KEY, "value": "v"})
    answer = server.answer(request, Caller("channel", "127.0.0.1"), START_MS)
    assert (answer.code, answer.remark) == (1, "it could not be written: No space left on device")
    assert server.state.kv_config == KvConfig()


def test_the_file_is_read_as_java_writes_it() -> None:
    read = parse_kv_config('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4;b:4"},"N":{}}}', "kvConfig.json")
    assert (read.get("ORDER_TOPIC_CONFIG", "T"), read.namespace("N"), read.namespace("M")) == ("a:4;b:4", {}, None)
    assert parse_kv_config(read.text(), "kvConfig.json") == read
    for text in ("", "[]", '{"configTable":{"N":7}}', '{"configTable":'):
        with pytest.raises(StateFileError, match=r"kvConfig\.json"):
            parse_kv_config(text, "kvConfig.json")


# Settings.


def test_settings_are_told_and_changed() -> None:
    asked = Asked()
    told = bytes(asked.ask(RequestCode.GET_NAMESRV_CONFIG).body).decode().splitlines()
    assert told == sorted(told)
    assert {"listenPort=9876", "orderMessageEnable=false", "scanNotActiveBrokerInterval=5000"} <= set(told)
    answer = asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true\nunknown=7\n")
    assert (answer.code, answer.remark) == (0, None)
    assert asked.server.state.configuration.name_server.order_message_enable
    assert asked.kept == {"settings": {"orderMessageEnable": "true"}}


@pytest.mark.parametrize(
    "name",
    [
        "configBlackList",
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
        "bindAddress",
        "listenPort",
        "initAuthenticationUser",
        "tls.server.keyPath",
        "own",
    ],
)
def test_what_only_a_start_reads_and_the_black_list_are_not_changed(name: str) -> None:
    asked = Asked(configBlackList="own")
    answer = asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, f"orderMessageEnable=true\n{name}=x".encode())
    rule = "in black list." if name == "own" else f"{name}: only a start reads it"
    assert answer.code == 16
    assert (answer.remark or "").startswith(f"Can not update config {rule}")
    assert not asked.server.state.configuration.name_server.order_message_enable
    assert asked.kept == {}


def test_a_value_that_is_none_is_refused_and_secrets_are_not_told() -> None:
    asked = Asked(initAuthenticationUser=USER_SETTING)
    answer = asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"scanNotActiveBrokerInterval=soon")
    assert answer.code == 1
    assert "scanNotActiveBrokerInterval: 'soon' is not a plain integer" in (answer.remark or "")
    assert b"secret" not in asked.ask(RequestCode.GET_NAMESRV_CONFIG).body
    asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true")
    assert asked.kept == {"settings": {"orderMessageEnable": "true"}}
    assert asked.server.state.configuration.name_server.administrator == USER


# Anything else.


def test_what_nobody_answers_is_not_supported() -> None:
    for code in (0, 10, 301, 1_001, -1, 200_050):
        answer = Asked().ask(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


@pytest.mark.parametrize("code", sorted(HANDLERS))
def test_every_request_is_answered_whatever_it_holds(code: int) -> None:
    bodies = (b"", b"{", b"{}", b"[]", b'"x"', b"\0" * 9, b'{"topicConfigSerializeWrapper":[]}', b"a\\u00zz=1")
    asked = Asked()
    asked.register()
    names = ("topic", "brokerName", "brokerAddr", "clusterName", "cluster", "haServerAddr", "namespace", "key", "value")
    for fields in (
        {},
        dict.fromkeys(names, ""),
        dict.fromkeys(names, "x"),
        {**dict.fromkeys(names, "\0/.."), "brokerId": "7"},
    ):
        for body in bodies:
            for number in ("1", "", "x", str(1 << 70)):
                answer = asked.ask(code, {**fields, "brokerId": number, "bodyCrc32": "0"}, body)
                assert answer.is_response


# Who may.


@pytest.mark.parametrize("code", sorted(ADMIN_CODES))
def test_operators_of_other_hosts_need_a_signature(code: int) -> None:
    fields = {**KEY, "value": "v", "topic": "T", "brokerName": "b"}
    assert Asked().ask(code, fields).code == 0
    answer = Asked().ask(code, fields, host=ELSEWHERE)
    assert answer.code == 16
    assert "initAuthenticationUser is not set" in (answer.remark or "")
    asked = Asked(initAuthenticationUser=USER_SETTING)
    request = make_request(code, fields)
    right = signed(request, USER).ext_fields
    assert asked.ask(code, right, host=ELSEWHERE).code == 0
    for bad, remark in (
        (fields, "username cannot be null."),
        (signed(request, Credentials("other", "secret")).ext_fields, "User:other is not found."),
        (signed(request, Credentials("root", "guess")).ext_fields, "check signature failed."),
        ({**(right or {}), "key": "other"}, "check signature failed."),
    ):
        answer = asked.ask(code, bad, host=ELSEWHERE)
        assert (answer.code, answer.remark) == (16, remark)
    assert asked.ask(code, right, b"another body", host=ELSEWHERE).code == 16


def test_clients_and_brokers_of_other_hosts_need_none() -> None:
    asked = Asked()
    asked.register()
    for code in sorted(set(HANDLERS) - ADMIN_CODES):
        assert asked.ask(code, {"topic": "T", **KEY, "cluster": "C"}, host=ELSEWHERE).code != 16


def test_this_host_is_known_by_its_loopback_addresses() -> None:
    here = ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")
    elsewhere = ("10.0.0.7", "::ffff:10.0.0.7", "fe80::1%eth0", "", "localhost", "0.0.0.0")
    assert [is_this_host(host) for host in here] == [True] * len(here)
    assert [is_this_host(host) for host in elsewhere] == [False] * len(elsewhere)


def test_json_of_all_bodies_is_json() -> None:
    asked = Asked()
    asked.register()
    answer = asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert json.loads(bytes(answer.body))["brokerDatas"][0]["brokerAddrs"] == {"0": "h:0"}
