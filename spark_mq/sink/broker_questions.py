"""Requests of an exactly-once commit to masters, one connection a question: where queues end, which producers a broker knows.

    at          questions that may be asked twice: again until `retryTimeout` is over, wherever the broker's master is by then
    connected   once. For what has a rule of its own: a fence (`fenceTimeout`), a send (never again before it is looked for)

Each raises the client's errors; an answer that refuses is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.calls import make_call, patiently, read_answer_body, read_answer_header
from spark_mq.client.errors import ClientError, request_text, response_error
from spark_mq.remoting import Header, MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.administration import ProducerConnection
from spark_mq.remoting.consumers import MaxOffsetRequest, OffsetAnswer, ProducerGroupRequest, QueueRequest
from spark_mq.sink.live_options import DEFAULT_GROUP, LiveSinkOptions
from spark_mq.sink.live_routes import LiveRoutes
from spark_mq.source.offsets import QueueId
from spark_mq.source.pull_outcome import PULL_CODES
from spark_mq.source.pull_request import PullRequests, PullTerms
from spark_mq.source.pull_window import Ask
from storage.rules.response_codes import ResponseCode

T = TypeVar("T")


class BrokerQuestions:
    """What is asked, and how a broker is reached."""

    def __init__(self, options: LiveSinkOptions, routes: LiveRoutes) -> None:
        self.settings = options.client_settings()
        self._timeout_ms = options.send_timeout
        self._retry_timeout_ms = options.retry_timeout
        self._routes = routes
        self._topic_of: dict[str, str] = {}

    def names(self, queues: Iterable[MessageQueue]) -> list[str]:
        """The queues' brokers. A topic of each is remembered: by its route the address is found."""
        names = set()
        for queue in queues:
            names.add(queue.broker_name)
            self._topic_of.setdefault(queue.broker_name, queue.topic)
        return sorted(names)

    def address(self, broker_name: str, topic: str | None = None) -> str:
        """Where the master of a broker is that `names` was told of."""
        return self._routes.address_of(broker_name, topic or self._topic_of[broker_name])

    def at(self, broker_name: str, what: str, ask: Callable[[BlockingConnection[object]], T]) -> T:
        """What `ask` gives over a connection to the broker. Raises WaitedInVainError, which says `what` was waited for."""

        def once() -> T:
            with self.connected(broker_name) as connection:
                return ask(connection)

        return self.patiently(once, f"broker {broker_name} ({what})")

    def patiently(self, ask: Callable[[], T], what: str) -> T:
        """The same for a question to no broker alone."""
        return patiently(ask, self._retry_timeout_ms, what)

    @contextmanager
    def connected(self, broker_name: str) -> Iterator[BlockingConnection[object]]:
        """A connection for some questions."""
        connection = BlockingConnection[object](self.address(broker_name), self.settings)
        try:
            yield connection
        finally:
            connection.close()

    def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Where queues end, as their masters say."""
        asked, ends = list(queues), dict[MessageQueue, int]()
        for name in self.names(asked):
            of_broker = [queue for queue in asked if queue.broker_name == name]
            ends |= self.at(name, "where queues end", partial(self.ends_at, queues=of_broker))
        return ends

    def ends_at(
        self, connection: BlockingConnection[object], queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Where queues of the connection's broker end."""
        code, ends, asked = RequestCode.GET_MAX_OFFSET, dict[MessageQueue, int](), list(queues)
        headers = (MaxOffsetRequest(topic=q.topic, queue_id=q.queue_id, broker_name=q.broker_name) for q in asked)
        calls = [make_call(code, header) for header in headers]
        connection.send(zip(calls, asked, strict=True), self._timeout_ms)
        while len(ends) < len(asked):
            for queue, answer in connection.receive(self._timeout_ms):
                assert isinstance(queue, MessageQueue)
                ends[queue] = self._offset(connection, code, answer)
        return ends

    def start(self, queue: MessageQueue) -> int:
        """Where a queue begins, as its master says."""
        self.names([queue])
        code = RequestCode.GET_MIN_OFFSET
        header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)

        def ask(connection: BlockingConnection[object]) -> int:
            return self._offset(connection, code, self.call(connection, code, header))

        return self.at(queue.broker_name, f"where queue {queue.topic}/{queue.queue_id} begins", ask)

    def refuse_unreadable(self, connection: BlockingConnection[object], queues: Sequence[MessageQueue]) -> None:
        """Raises what the connection's broker refuses a pull from one of the queues with. A topic that is not there has no messages."""
        code = RequestCode.PULL_MESSAGE
        terms, ask = PullTerms(self.settings, DEFAULT_GROUP), Ask(0, 1)
        ids = [QueueId(queue.topic, queue.broker_name, queue.queue_id) for queue in queues]
        connection.send(((PullRequests(queue, terms).request(ask), queue) for queue in ids), self._timeout_ms)
        left = len(ids)
        while left:
            for queue, answer in connection.receive(self._timeout_ms):
                assert isinstance(queue, QueueId)
                left -= 1
                if answer.code not in (*PULL_CODES, ResponseCode.TOPIC_NOT_EXIST):
                    what = request_text(code)
                    raise response_error(answer.code, answer.remark, connection.address, what, queue.topic)

    def has_producers(self, connection: BlockingConnection[object], group: str) -> bool:
        """Whether the broker knows a connection of that producer group."""
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        answer = self.call(connection, code, ProducerGroupRequest(producer_group=group))
        if answer.code == ResponseCode.SUCCESS:  # brokers up to 4.9 keep a group whose last connection has ended
            return bool(read_answer_body(ProducerConnection, answer, connection.address, code).connections)
        if answer.code != ResponseCode.SYSTEM_ERROR or "not exist" not in (answer.remark or ""):
            raise self.refused(connection, code, answer)
        return False

    def ask(self, connection: BlockingConnection[object], code: RequestCode, header: Header) -> RemotingCommand:
        """The answer of success."""
        return self._succeeded(connection, code, self.call(connection, code, header))

    def call(self, connection: BlockingConnection[object], code: RequestCode, header: Header) -> RemotingCommand:
        """The answer, whatever it says."""
        return self.exchange(connection, make_call(code, header))

    def exchange(self, connection: BlockingConnection[object], request: RemotingCommand) -> RemotingCommand:
        """The answer to a request that is made already."""
        connection.send([(request, None)], self._timeout_ms)
        (_, answer), *_ = connection.receive(self._timeout_ms)
        return answer

    def refused(
        self, connection: BlockingConnection[object], code: RequestCode, answer: RemotingCommand
    ) -> ClientError:
        """The error for an answer that refuses."""
        return response_error(answer.code, answer.remark, connection.address, request_text(code))

    def _offset(self, connection: BlockingConnection[object], code: RequestCode, answer: RemotingCommand) -> int:
        answer = self._succeeded(connection, code, answer)
        return read_answer_header(OffsetAnswer, answer, connection.address, code).queue_offset

    def _succeeded(
        self, connection: BlockingConnection[object], code: RequestCode, answer: RemotingCommand
    ) -> RemotingCommand:
        if answer.code != ResponseCode.SUCCESS:
            raise self.refused(connection, code, answer)
        return answer
