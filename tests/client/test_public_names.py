"""What `spark_mq.client` says it has, it has."""

from __future__ import annotations

import spark_mq.client


def test_every_public_name_can_be_had() -> None:
    assert [name for name in spark_mq.client.__all__ if not hasattr(spark_mq.client, name)] == []
    assert dir(spark_mq.client) == sorted(spark_mq.client.__all__)
