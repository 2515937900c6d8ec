"""Apache RocketMQ's own classes as judge, and brokers, for every module here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support import own_servers
from tests.support.java_broker import Oracle, RunningBroker, needed_oracle


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return needed_oracle(tmp_path_factory.mktemp("oracle-"))


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """What makes name server and broker. Of a module that says `OURS = True` they are ours, unless SPARK_MQ_TEST_SERVERS=apache."""
    if not getattr(request.module, "OURS", False):
        return oracle
    return Oracle(tmp_path_factory.mktemp("servers-"), is_ours=os.environ.get(own_servers.VARIABLE) != "apache")


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, servers: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """One broker for all tests of a module, with the module's SETTINGS; each test has topics and groups of its own."""
    store, settings = tmp_path_factory.mktemp("store-") / "store", getattr(request.module, "SETTINGS", {})
    with servers.namesrv() as name_server, servers.broker(store, name_server, **settings) as running:
        yield running


@pytest.fixture(scope="session")
def live_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A name server and a broker for all tests that leave them running and use topics and groups of their own."""
    directory = tmp_path_factory.mktemp("live-broker-")
    oracle = needed_oracle(directory)
    with oracle.namesrv() as name_server, oracle.broker(directory / "store", name_server) as broker:
        yield broker
