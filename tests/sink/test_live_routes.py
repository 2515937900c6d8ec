"""Where rows can go, as name servers say."""

from __future__ import annotations

import pytest

from spark_mq.client.errors import BrokerNotFoundError, WaitedInVainError
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, write_body
from spark_mq.remoting.routes import BrokerData, ClusterInfo
from spark_mq.sink.live_routes import LiveRoutes
from tests.support.fake_broker import FakeBroker


class NameServer(FakeBroker):
    """Knows a broker, and no topic."""

    def __init__(self) -> None:
        super().__init__([])

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        if request.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            return make_response(request, 17, "No topic route info in name server for the topic")
        addresses = {0: "10.0.0.7:10911", 1: "10.0.0.8:10911"}
        broker = BrokerData(cluster="C", broker_name="broker-a", broker_addresses=addresses)
        info = ClusterInfo(broker_address_table={"broker-a": broker}, cluster_address_table={"C": ("broker-a",)})
        return make_response(request, 0, None, None, write_body(info))


def test_a_broker_whose_topics_are_gone_is_found_by_name_and_by_its_address() -> None:
    with NameServer() as server:
        settings = ClientSettings((server.address,))
        with LiveRoutes(settings, create_topic=True, retry_timeout_ms=600) as routes:
            assert routes.address_of("broker-a", "Gone") == "10.0.0.7:10911"
            assert routes.broker_at("10.0.0.7:10911") == routes.broker_at("10.0.0.8:10911") == "broker-a"
            asked = len(server.requests)
            assert routes.broker_at("10.0.0.7:10911") == "broker-a"
            assert len(server.requests) == asked, "it is asked for once"
            with pytest.raises(BrokerNotFoundError):
                routes.address_of("broker-b", "Gone")
            with pytest.raises(WaitedInVainError, match="no broker of the cluster is registered there"):
                routes.broker_at("10.0.0.9:10911")
