"""One word to a broker that a server has not been asked for, one-way."""

from __future__ import annotations

import logging

from spark_mq.client.errors import ClientError
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.remoting import RemotingCommand

_LOG = logging.getLogger(__name__)


async def tell_broker(client: RemotingClient, address: str, command: RemotingCommand, timeout_ms: int) -> None:
    """Tells it within the time. A broker that is not reached is logged, and asks for itself later."""
    try:
        await client.invoke_oneway(address, command, timeout_ms)
    except ClientError as error:
        _LOG.warning("broker %s was not told: %s", address, error.describe())
