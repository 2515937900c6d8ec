"""Names get and lose their namespace as in Java's NamespaceUtil."""

from __future__ import annotations

import pytest

from spark_mq.client.settings import with_namespace, without_namespace


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
