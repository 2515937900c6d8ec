"""Signatures of requests, as Apache's AclUtils makes them."""

from __future__ import annotations

from spark_mq.client.calls import signed
from spark_mq.client.settings import Credentials
from spark_mq.remoting import HeaderEncoding, make_request
from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.remoting.command import is_signed_by, signature


def test_a_signature_is_what_apaches_class_makes_of_the_same_request() -> None:
    fields = {"b": "2", "AccessKey": "ak", "a": "1"}
    assert signature(fields, b"body", "secret") == "aYyc14GuFWUdXSmx7ZCg2lQ2tEM="
    command = signed(make_request(310, {"b": "2", "a": "1"}, b"body"), Credentials("ak", "secret"))
    assert command.ext_fields == {**fields, "Signature": "aYyc14GuFWUdXSmx7ZCg2lQ2tEM="}


def test_a_request_without_fields_is_signed_too_and_a_second_time_alike() -> None:
    credentials = Credentials("ak", "secret", "token")
    once = signed(make_request(106), credentials)
    assert list(once.ext_fields or {}) == ["AccessKey", "SecurityToken", "Signature"]
    assert signed(once, credentials) == once


def test_a_view_is_signed_like_its_bytes() -> None:
    fields = {"AccessKey": "ak"}
    assert signature(fields, memoryview(b"body"), "s") == signature(fields, b"body", "s") != signature(fields, b"", "s")


def test_what_a_server_would_read_as_null_is_left_out() -> None:
    credentials = Credentials("ak", "secret")
    in_json = signed(make_request(17, {"attributes": "", "topic": "T"}), credentials)
    assert in_json.ext_fields is not None
    assert in_json.ext_fields["attributes"] == ""
    binary = HeaderEncoding.ROCKETMQ
    in_binary = signed(make_request(17, {"attributes": "", "topic": "T"}, encoding=binary), credentials)
    assert in_binary == signed(make_request(17, {"topic": "T"}, encoding=binary), credentials)


def test_an_old_request_is_signed_without_the_mark_of_a_unique_key() -> None:
    """PlainAccessResource of 5.1.4; that of 4.9 leaves it out of every request."""
    credentials = Credentials("ak", "secret")
    marked = make_request(12, {"topic": "T", "_UNIQUE_KEY_QUERY": "true"})
    plain = signed(make_request(12, {"topic": "T"}), credentials).ext_fields or {}
    old = signed(marked._replace(version=ProtocolVersion.V4_9_3), credentials).ext_fields or {}
    assert old["Signature"] == plain["Signature"]
    assert old["_UNIQUE_KEY_QUERY"] == "true"
    assert (signed(marked, credentials).ext_fields or {})["Signature"] != plain["Signature"]


def test_a_server_takes_what_this_client_and_javas_sign_and_nothing_else() -> None:
    """Java's client signs the values that it sends; of one without a value a server reads nothing in the ROCKETMQ encoding."""
    credentials = Credentials("ak", "secret")
    request = signed(make_request(17, {"a": "1", "e": ""}, b"body", encoding=HeaderEncoding.ROCKETMQ), credentials)
    assert is_signed_by(request, "secret")
    javas = request._replace(ext_fields={"e": "", **(request.ext_fields or {})})
    assert is_signed_by(javas, "secret")
    assert not is_signed_by(request, "Secret")
    assert not is_signed_by(request._replace(body=b"bodY"), "secret")
    assert not is_signed_by(request._replace(ext_fields={**(request.ext_fields or {}), "a": "2"}), "secret")
    assert not is_signed_by(make_request(17, {"AccessKey": "ak"}), "secret")
    assert not is_signed_by(make_request(17), "")
