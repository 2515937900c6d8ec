"""Name servers: several of them, each knowing all brokers, asked one at a time until one answers.

The one that answered last is asked first the next time. All tries together take no longer than the time-out: each
gets its share of what is left. Java: NettyRemotingClient.getAndCreateNameserverChannel, MQClientAPIImpl.
"""

from __future__ import annotations

import asyncio
import random

from spark_mq.client.calls import make_call, read_answer_body
from spark_mq.client.errors import (
    BrokerUnreachableError,
    NameServerUnreachableError,
    RequestTimeoutError,
    TopicRouteNotFoundError,
    request_text,
    response_error,
)
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.routes import TopicRoute, check_queue_counts
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting.routes import ClusterInfo, ClusterRequest, RouteRequest, TopicList, TopicRouteData
from storage.rules.response_codes import ResponseCode


class NameServers:
    """The name servers of one client."""

    def __init__(self, remoting: RemotingClient, settings: ClientSettings) -> None:
        self._remoting = remoting
        self._timeout_ms = settings.request_timeout_ms
        self._addresses = list(settings.name_servers)
        random.shuffle(self._addresses)  # so that clients spread over them

    @property
    def addresses(self) -> tuple[str, ...]:
        """The one to be asked first stands first."""
        return tuple(self._addresses)

    async def invoke(self, command: RemotingCommand, timeout_ms: int | None = None) -> tuple[str, RemotingCommand]:
        """Which one answered, and what. Raises NameServerUnreachableError with what each one's try gave."""
        loop = asyncio.get_running_loop()
        end = loop.time() + (self._timeout_ms if timeout_ms is None else timeout_ms) / 1000
        tries = []
        for number, address in enumerate(self.addresses):
            share_ms = max(int((end - loop.time()) * 1000 / (len(self._addresses) - number)), 1)
            try:
                answer = await self._remoting.invoke(address, command, share_ms)
            except (BrokerUnreachableError, RequestTimeoutError) as error:
                if len(self._addresses) == 1 and not error.retriable:
                    raise  # TLS, or no frame: no other server to ask, and the error says more
                if isinstance(error, RequestTimeoutError):
                    self._remoting.disconnect_if_mute(address)  # after a share of the time-out, however short
                tries.append((address, _reason(error)))
                continue
            if number:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
            return address, answer
        raise NameServerUnreachableError(tries)

    async def route(self, topic: str, timeout_ms: int | None = None) -> TopicRoute:
        """Where the topic's queues are.

        Raises TopicRouteNotFoundError, NameServerUnreachableError, ResponseError, MalformedResponseError.
        """
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        request = make_call(code, RouteRequest(topic=topic, accept_standard_json_only=True))
        address, answer = await self.invoke(request, timeout_ms)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicRouteNotFoundError(topic, address, answer.remark)
        if answer.code != ResponseCode.SUCCESS:
            raise response_error(answer.code, answer.remark, address, request_text(code), topic)
        data = read_answer_body(TopicRouteData, answer, address, code)
        check_queue_counts(data, address, request_text(code))
        return TopicRoute(topic, data)

    async def cluster_info(self, timeout_ms: int | None = None) -> ClusterInfo:
        """All brokers with their addresses, and which cluster has which."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        address, answer = await self.ask(make_call(code), timeout_ms)
        return read_answer_body(ClusterInfo, answer, address, code)

    async def topics(self, cluster: str | None = None, timeout_ms: int | None = None) -> tuple[str, ...]:
        """The names of all topics, or of a cluster's; sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER if cluster is None else RequestCode.GET_TOPICS_BY_CLUSTER
        header = None if cluster is None else ClusterRequest(cluster=cluster)
        address, answer = await self.ask(make_call(code, header), timeout_ms)
        return tuple(sorted(read_answer_body(TopicList, answer, address, code).topics))

    async def ask(self, command: RemotingCommand, timeout_ms: int | None = None) -> tuple[str, RemotingCommand]:
        """As `invoke`; another code than SUCCESS raises ResponseError."""
        address, answer = await self.invoke(command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise response_error(answer.code, answer.remark, address, request_text(command.code))
        return address, answer

    async def ask_each(self, command: RemotingCommand, timeout_ms: int | None = None) -> None:
        """Tell every one of them; they do not tell each other. Raises the error of the first that fails, after all were asked."""
        calls = [self._remoting.ask(address, command, timeout_ms or self._timeout_ms) for address in self._addresses]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


def _reason(error: BrokerUnreachableError | RequestTimeoutError) -> str:
    return error.describe().removeprefix(f"{error.address}: ")
