"""Fixtures for pytest: a RocketMQ cluster of `spark_mq.testing`, and a topic of one's own in each test.

    def test_orders(rocketmq_cluster, rocketmq_topic):
        rocketmq_cluster.send(rocketmq_topic, b"one")
        assert [message.body for message in rocketmq_cluster.messages(rocketmq_topic, count=1)] == [b"one"]

pytest loads this module wherever the package is installed. So it stands beside the packages, and loads nothing of them before a test
uses a fixture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spark_mq.testing import Cluster

SCOPE = "rocketmq_cluster_scope"
_numbers = count(1)
_NAME_LIMIT = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """The setting of pytest.ini or pyproject.toml."""
    parser.addini(
        SCOPE,
        "How long a cluster of rocketmq_cluster lives: session, package, module, class, function.",
        default="session",
    )


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini(SCOPE)


@pytest.fixture(scope="session")
def rocketmq_cluster_options() -> dict[str, Any]:
    """Arguments of `spark_mq.testing.Cluster`, such as {"brokers": 2}. A conftest.py overrides it."""
    return {}


@pytest.fixture(scope=_scope)
def rocketmq_cluster(rocketmq_cluster_options: dict[str, Any]) -> Iterator[Cluster]:
    """A cluster that runs: one for all tests, unless the setting rocketmq_cluster_scope says otherwise."""
    from spark_mq.testing import Cluster

    with Cluster(**rocketmq_cluster_options) as cluster:
        yield cluster


@pytest.fixture
def rocketmq_topic(rocketmq_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A new topic of the cluster with four queues, named after the test."""
    name = re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name)[:_NAME_LIMIT]
    topic = f"{name}-{next(_numbers)}"
    rocketmq_cluster.create_topic(topic)
    return topic
