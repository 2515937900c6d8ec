"""What a broker.conf says of a broker's process."""

from __future__ import annotations

import pytest

from spark_mq.broker.request_table import Pool
from spark_mq.broker_server.settings import read_configuration
from storage.errors import ConfigurationError


def test_the_command_line_comes_before_the_file() -> None:
    found = read_configuration(b"namesrvAddr=a:1;a:1; b:2\nbrokerName=b\n", None, {})
    assert (found.process.addresses, found.broker_name, found.server.listen_port) == (("a:1", "b:2"), "b", 10_911)
    assert found.store_host == "127.0.0.1:10911"
    assert read_configuration(b"namesrvAddr=a:1\n", None, {"namesrvAddr": "c:3"}).process.addresses == ("c:3",)
    assert read_configuration(b"", None, {}).process.addresses == ()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"listenPort=0\n", "listenPort"),
        (b"listenPort=2\n", "listenPort"),
        (b"bindAddress=0.0.0.0\n", "brokerIP1"),
        (b"brokerId=1\n", "brokerId"),
        (b"transactionCheckInterval=0\n", "transactionCheckInterval"),
        (b"tls.server.mode=perhaps\n", "tls.server.mode"),
    ],
)
def test_what_no_client_could_use_is_refused_by_its_name(text: bytes, key: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_configuration(text, "broker.conf", {})
    assert (raised.value.key, raised.value.file) == (key, "broker.conf")


def test_pools_are_as_large_and_as_patient_as_configured() -> None:
    java = read_configuration(b"", None, {})
    assert [java.pool(pool).wait_limit_ms for pool in (Pool.SEND, Pool.PULL, Pool.QUERY)] == [200, 5_000, None]
    text = b"sendThreadPoolQueueCapacity=7\nwaitTimeMillsInSendQueue=60000\n"
    found = read_configuration(text, None, {}).pool(Pool.SEND)
    assert (found.capacity, found.wait_limit_ms) == (7, 60_000)
    assert read_configuration(b"brokerFastFailureEnable=false\n", None, {}).pool(Pool.SEND).wait_limit_ms is None
