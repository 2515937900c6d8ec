"""A name server and a broker of one queue in one process, on one port; what either knows a test changes."""

from __future__ import annotations

from collections.abc import Sequence

from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, WireBody, make_response, write_body
from spark_mq.remoting.administration import TopicOffset, TopicStatsTable
from spark_mq.remoting.routes import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRouteData,
)
from storage.format.record import encode_record
from storage.format.table_entries import TopicConfig
from storage.rules.response_codes import ResponseCode
from tests.support.fake_broker import FakeBroker
from tests.support.message_builder import make_message

FIRST_TIME_MS = 1_700_000_000_000


def timed_records(times: Sequence[int]) -> list[bytes | None]:
    """Records of TopicA's queue 0, stored so many ms after FIRST_TIME_MS; a body is its offset."""
    return [
        encode_record(
            make_message(
                queue_offset=at, commitlog_offset=100 * at, body=b"%d" % at, store_time_ms=FIRST_TIME_MS + time_ms
            )
        )
        for at, time_ms in enumerate(times)
    ]


class FakeCluster(FakeBroker):
    """Topic `TopicA` with one queue at `broker-a`; `broker-b` has no queue. Codes that are not known here are answered with 3."""

    def __init__(self, times: Sequence[int]) -> None:
        super().__init__(timed_records(times))
        self.times = list(times)
        self.has_topic = True
        self.unregistered = 0
        """So many times more the name server does not know broker-a."""
        self.searched = 0
        """The offset that the broker gives for any time."""
        self.refused: dict[int, int] = {}
        """Requests that are refused with a code."""
        self.understands = False
        """Whether it knows about expressions."""
        self.broker_address: str | None = None
        """Where the brokers are, as the name server says; None = here."""

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        """An answer to any request."""
        if request.code in self.refused:
            return make_response(request, self.refused[request.code], "refused")
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                self.unregistered -= 1
                names = ["broker-b"] if self.unregistered >= 0 else ["broker-a", "broker-b"]
                datas = {
                    name: BrokerData(
                        broker_name=name, cluster="C", broker_addresses={0: self.broker_address or self.address}
                    )
                    for name in names
                }
                return self._body(request, ClusterInfo(broker_address_table=datas))
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return self._body(request, TopicList(topics=("TopicA",)))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC if self.has_topic and self.unregistered < 0:
                data = QueueData(broker_name="broker-a", read_queue_count=1, write_queue_count=1, perm=6)
                return self._body(request, TopicRouteData(queue_datas=(data,)))
            case RequestCode.GET_TOPIC_STATS_INFO if self.has_topic:
                last = FIRST_TIME_MS + self.times[-1] if self.times else 0
                ends = TopicOffset(min_offset=self.minimum, max_offset=len(self.records), last_update_time_ms=last)
                table = {MessageQueue("TopicA", "broker-a", 0): ends}
                return self._body(request, TopicStatsTable(offset_table=table))
            case RequestCode.GET_TOPIC_CONFIG:
                return self._body(request, TopicConfig(topic="TopicA"))
            case RequestCode.CHECK_CLIENT_CONFIG if self.understands:
                return make_response(request, 0, None)
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return make_response(request, 0, None, {"offset": str(self.searched)})
            case RequestCode.PULL_MESSAGE if self.has_topic:
                return super().pull(request)
            case RequestCode.GET_ROUTEINFO_BY_TOPIC | RequestCode.GET_TOPIC_STATS_INFO | RequestCode.PULL_MESSAGE:
                return make_response(request, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not known")

    def _body(self, request: RemotingCommand, body: WireBody) -> RemotingCommand:
        return make_response(request, 0, None, None, write_body(body))
