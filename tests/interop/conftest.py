"""Apache RocketMQ's own classes as judge, for every module here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.java_broker import Oracle, RunningBroker


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    reason = Oracle.available()
    if reason is not None:
        pytest.skip(reason)
    return Oracle(tmp_path_factory.mktemp("oracle-"))


@pytest.fixture(scope="session")
def live_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A name server and a broker for all tests that leave them running and use topics and groups of their own."""
    reason = Oracle.available()
    if reason is not None:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("live-broker-")
    oracle = Oracle(directory)
    unhurried = {
        "waitTimeMillsInSendQueue": 60_000,
        "osPageCacheBusyTimeOutMills": 60_000,
    }  # a busy machine is no failure
    with oracle.namesrv() as name_server, oracle.broker(directory / "store", name_server, **unhurried) as broker:
        yield broker
