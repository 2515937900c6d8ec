"""Blocking requests to the name servers and brokers of one cluster, several in flight to each.

For the driver of a query. All requests may be repeated: a connection that breaks before its answers is opened once more, because
brokers close connections that were silent for two minutes. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.calls import make_call, read_answer_body, read_answer_header
from spark_mq.client.errors import (
    BrokerUnreachableError,
    ClientError,
    NameServerUnreachableError,
    TlsError,
    request_text,
    response_error,
)
from spark_mq.client.routes import check_queue_counts
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, WireBody
from spark_mq.remoting.administration import TopicRequest
from spark_mq.remoting.command import Header
from spark_mq.remoting.routes import ClusterInfo, RouteRequest, TopicList, TopicRouteData
from storage.format.typed_json import TopicConfig
from storage.rules.response_codes import ResponseCode

IN_FLIGHT = 256
"""Requests to one server at a time."""
CONNECTS_AT_ONCE = 16
"""Connections that are made side by side: of a server that is not there each takes as long as connecting may."""

B = TypeVar("B", bound=WireBody)
H = TypeVar("H", bound=Header)


Addresses = Mapping[int, str]
"""Of the brokers of one name, by broker id; 0 is the master."""


def addresses_of(info: ClusterInfo) -> dict[str, Addresses]:
    """All brokers by name, sorted; those without an address are not there."""
    found = {name: dict(sorted(data.broker_addresses.items())) for name, data in info.broker_address_table.items()}
    return {name: found[name] for name in sorted(found) if found[name]}


class Answered:
    """A server's answer to one request, whatever its code; typed where one asks for it."""

    def __init__(self, address: str, request: RemotingCommand, command: RemotingCommand) -> None:
        self.address = address
        self.command = command
        self._request = request

    @property
    def code(self) -> int:
        return self.command.code

    def header(self, kind: type[H], *codes: int) -> H:
        """Raises ResponseError unless the code is SUCCESS, or one of these; MalformedResponseError."""
        self.expect(*codes)
        return read_answer_header(kind, self.command, self.address, self._request.code)

    def body(self, kind: type[B]) -> B:
        """Raises ResponseError unless the code is SUCCESS, MalformedResponseError."""
        self.expect()
        return read_answer_body(kind, self.command, self.address, self._request.code)

    def expect(self, *codes: int) -> None:
        """Raises ResponseError unless the code is SUCCESS, or one of these."""
        if self.code not in (ResponseCode.SUCCESS, *codes):
            fields = self._request.ext_fields or {}
            topic, group = fields.get("topic"), fields.get("consumerGroup")
            what = request_text(self._request.code)
            raise response_error(self.code, self.command.remark, self.address, what, topic, group)


def exchange(
    connection: BlockingConnection[int], requests: Sequence[RemotingCommand], timeout_ms: int
) -> list[Answered]:
    """The answers to requests over one connection, all in flight at once, in the requests' order. Raises what the connection does."""
    connection.send(((command, number) for number, command in enumerate(requests)), timeout_ms)
    found: dict[int, RemotingCommand] = {}
    while len(found) < len(requests):
        found.update(connection.receive(timeout_ms))
    return [Answered(connection.address, command, found[number]) for number, command in enumerate(requests)]


def compaction_request(topic: str) -> RemotingCommand:
    """Asks a broker what `is_compacted` reads. With ACL 2.0 that needs the right Get on the topic."""
    return make_call(RequestCode.GET_TOPIC_CONFIG, TopicRequest(topic=topic))


def is_compacted(answer: Answered) -> bool:
    """Whether the broker keeps only the newest message of each key of a topic: then any offset may have no message.

    Brokers before 5.0 have no such topics, and do not know the request. Raises ResponseError where the broker does not say.
    """
    if answer.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST):
        return False
    return answer.body(TopicConfig).is_compacted


class ClusterQuestions:
    """Connections by address, made when they are needed. `close` ends them."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._open: dict[str, BlockingConnection[int]] = {}
        self._not_made: dict[str, ClientError] = {}
        self._name_servers = list(settings.name_servers)

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    # Name servers

    def topic_route(self, topic: str) -> TopicRouteData | None:
        """The topic's brokers and queues; None where no broker has it."""
        answer = self._ask_name_servers(make_call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic)))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        data = answer.body(TopicRouteData)
        check_queue_counts(data, answer.address, request_text(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        return data

    def topics(self) -> tuple[str, ...]:
        """The names of all topics."""
        return self._ask_name_servers(make_call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body(TopicList).topics

    def cluster_info(self) -> ClusterInfo:
        """All brokers that are registered."""
        return self._ask_name_servers(make_call(RequestCode.GET_BROKER_CLUSTER_INFO)).body(ClusterInfo)

    def _ask_name_servers(self, command: RemotingCommand) -> Answered:
        """The answer of the first name server that gives one; the next request starts with that server."""
        tries: list[tuple[str, str]] = []
        for address in list(self._name_servers):
            try:
                answer = self._ask_all({address: [command]}, self.settings.request_timeout_ms)[address][0]
                if answer.code == ResponseCode.SYSTEM_ERROR:  # it has just started, and knows no broker yet
                    answer.expect()
            except TlsError:
                raise
            except ClientError as error:
                if not error.retriable and not tries and address == self._name_servers[-1]:
                    raise
                tries.append((address, error.describe().removeprefix(f"{address}: ")))
                continue
            self._name_servers.remove(address)
            self._name_servers.insert(0, address)
            return answer
        raise NameServerUnreachableError(tries)

    # Any server

    def ask(self, address: str, commands: Sequence[RemotingCommand]) -> list[Answered]:
        """The answers to requests, in their order. Raises BrokerUnreachableError (TlsError, FrameRefusedError), RequestTimeoutError."""
        return self.ask_all({address: commands})[address]

    def ask_all(
        self, commands: Mapping[str, Sequence[RemotingCommand]], failures: dict[str, ClientError] | None = None
    ) -> dict[str, list[Answered]]:
        """The same at several servers side by side. A server that fails is left out, and stands in `failures` where that is given."""
        return self._ask_all(commands, self.settings.question_timeout_ms, failures)

    def _ask_all(
        self,
        commands: Mapping[str, Sequence[RemotingCommand]],
        timeout_ms: int,
        failures: dict[str, ClientError] | None = None,
    ) -> dict[str, list[Answered]]:
        started: dict[str, _Exchange] = {}
        try:
            return self._answers(commands, timeout_ms, failures, started)
        except BaseException:
            for address, exchange in started.items():
                if not exchange.is_done:  # its answers would be taken for those of the next requests
                    self._drop(address)
            raise

    def _answers(
        self,
        commands: Mapping[str, Sequence[RemotingCommand]],
        timeout_ms: int,
        failures: dict[str, ClientError] | None,
        started: dict[str, _Exchange],
    ) -> dict[str, list[Answered]]:
        was_open = {address: address in self._open for address in commands}
        self._connect_all(address for address, is_open in was_open.items() if not is_open)
        answers: dict[str, list[Answered]] = {}
        for address, requests in commands.items():
            started[address] = _Exchange(address, requests, timeout_ms)
            self._try(started[address], was_open[address], failures, begin=True)
        for address, exchange in started.items():
            if failures is None or address not in failures:
                self._try(exchange, was_open[address], failures, begin=False)
            if failures is None or address not in failures:
                answers[address] = exchange.answers()
        return answers

    def _try(
        self, exchange: _Exchange, may_be_stale: bool, failures: dict[str, ClientError] | None, *, begin: bool
    ) -> None:
        step = exchange.begin if begin else exchange.finish
        try:
            try:
                step(self._connected(exchange.address))
            except BrokerUnreachableError:
                self._drop(exchange.address)
                if not may_be_stale or exchange.has_answers:
                    raise
                exchange.begin(self._connected(exchange.address))
                if not begin:
                    exchange.finish(self._connected(exchange.address))
        except ClientError as error:
            self._drop(exchange.address)
            if failures is None:
                raise
            failures[exchange.address] = error

    def _connect_all(self, addresses: Iterable[str]) -> None:
        """Connect in parallel. A failure is raised by the server's first request."""
        wanted = list(addresses)
        self._not_made.clear()
        if len(wanted) < 2:
            return
        with ThreadPoolExecutor(min(len(wanted), CONNECTS_AT_ONCE)) as pool:
            for address, made in zip(wanted, pool.map(self._made, wanted), strict=True):
                if isinstance(made, ClientError):
                    self._not_made[address] = made
                else:
                    self._open[address] = made

    def _made(self, address: str) -> BlockingConnection[int] | ClientError:
        try:
            return BlockingConnection(address, self.settings)
        except ClientError as error:
            return error

    def _connected(self, address: str) -> BlockingConnection[int]:
        if address in self._not_made:
            raise self._not_made.pop(address)
        if address not in self._open:
            self._open[address] = BlockingConnection(address, self.settings)
        return self._open[address]

    def _drop(self, address: str) -> None:
        if address in self._open:
            self._open.pop(address).close()


class _Exchange:
    """Requests to one server and their answers, so many in flight."""

    def __init__(self, address: str, requests: Sequence[RemotingCommand], timeout_ms: int) -> None:
        self.address = address
        self._timeout_ms = timeout_ms
        self._requests = requests
        self._sent = 0
        self._found: dict[int, RemotingCommand] = {}

    @property
    def has_answers(self) -> bool:
        return bool(self._found)

    @property
    def is_done(self) -> bool:
        return len(self._found) == len(self._requests)

    def answers(self) -> list[Answered]:
        return [Answered(self.address, request, self._found[number]) for number, request in enumerate(self._requests)]

    def begin(self, connection: BlockingConnection[int]) -> None:
        """Send as many as may be in flight, from the first on."""
        self._sent = 0
        self._send(connection)

    def finish(self, connection: BlockingConnection[int]) -> None:
        while not self.is_done:
            for number, command in connection.receive(self._timeout_ms):
                self._found[number] = command
            self._send(connection)

    def _send(self, connection: BlockingConnection[int]) -> None:
        most = len(self._found) + IN_FLIGHT
        numbers = range(self._sent, min(most, len(self._requests)))
        self._sent = max(self._sent, numbers.stop)
        connection.send((self._requests[number], number) for number in numbers)
