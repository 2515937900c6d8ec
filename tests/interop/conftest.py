"""Apache RocketMQ's own classes as judge, for every module here."""

from __future__ import annotations

import pytest

from tests.support.java_broker import Oracle


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    reason = Oracle.available()
    if reason is not None:
        pytest.skip(reason)
    return Oracle(tmp_path_factory.mktemp("oracle-"))
