"""Requests to any number of servers, name servers included: one connection for each address, opened at first use.

    client = RemotingClient(settings)
    client.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, handler)
    answer = await client.invoke("broker:10911", make_request(RequestCode.GET_BROKER_CLUSTER_INFO), 3000)

Everything runs on the event loop's thread. No call waits longer than its time-out, which includes connecting.

Java: NettyRemotingClient. When a server goes away (1500), callers that wait keep the old connection, and the refused request goes
once more over a new one, as in Java. Departure: a second refusal is a BrokerUnreachableError.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from spark_mq.client.address_server import address_server_url, fetch_name_servers
from spark_mq.client.blocking_connection import tls_mismatch
from spark_mq.client.calls import make_call, read_answer_body, signed
from spark_mq.client.errors import (
    BrokerUnreachableError,
    ClientClosedError,
    ClientError,
    NameServerUnreachableError,
    RequestTimeoutError,
    TlsError,
    TopicRouteNotFoundError,
    no_address,
    request_text,
    response_error,
)
from spark_mq.client.event_loop import event_loop, own_socket
from spark_mq.client.routes import TopicRoute, check_queue_counts
from spark_mq.client.settings import ClientSettings, split_address
from spark_mq.client.transport import Promise, Transport, Waiter, timed_out
from spark_mq.remoting import HeaderEncoding, RemotingCommand, RequestCode, make_response
from spark_mq.remoting.routes import ClusterInfo, ClusterRequest, RouteRequest, TopicList, TopicRouteData
from storage.rules.response_codes import ResponseCode

RequestHandler = Callable[[str, RemotingCommand], Awaitable[RemotingCommand | None]]
"""Answers a server's request: from its address and command to the answer. None: no answer is sent."""
_LOG = logging.getLogger(__name__)


class RemotingClient:
    """Connections by address. Made anywhere, used on the loop's thread alone.

    `on_connected`, where it is set, is called with the address after each new connection.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._encoding = HeaderEncoding[settings.encoding]
        self._tls_context = None if settings.tls is None else settings.tls.context()
        self._loop = event_loop()
        self._open: dict[str, Transport] = {}
        self._leaving: set[Transport] = set()
        self._unknown_codes: dict[str, set[int]] = {}
        self._connecting: dict[str, asyncio.Task[Transport]] = {}
        self._handlers: dict[int, RequestHandler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed: ClientClosedError | None = None
        self.on_connected: Callable[[str], object] | None = None

    def on_request(self, code: int, handler: RequestHandler) -> None:
        """Let `handler` answer the servers' requests of this code; of two for one code the later counts."""
        self._handlers[int(code)] = handler

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of servers with a connection."""
        return tuple(self._open)

    def unknown_codes(self, address: str) -> set[int]:
        """The requests that the server is known not to know, for callers to look at and to add to: forgotten with the connection,
        because behind the next one there may be another release.
        """
        return self._unknown_codes.setdefault(address, set())

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int | None = None) -> RemotingCommand:
        """The server's answer, whatever its code.

        Raises RequestTimeoutError, BrokerUnreachableError (TlsError, FrameRefusedError), RequestIllegalError.
        """
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        waiter = self._waiter(future, command, timeout_ms)
        transport = self._open.get(address)
        if transport is None or not transport.is_open or not transport.is_writable:
            transport = await self._usable(address, waiter)
        transport.request(self._made_ready(command), waiter)
        return await future

    def invoke_for(
        self, promise: Promise, address: str, command: RemotingCommand, timeout_ms: int | None = None
    ) -> None:
        """Like `invoke`, but sends immediately and creates no task: the answer or the error goes straight to `promise`.

        Raises RequestIllegalError, ClientClosedError; the promise gets nothing then.
        """
        waiter = self._waiter(promise, command, timeout_ms)
        transport = self._open.get(address)
        if transport is not None and transport.is_open and transport.is_writable:
            transport.request(self._made_ready(command), waiter)
        else:
            self._begin(address, waiter)

    async def ask(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int | None = None,
        *,
        topic: str | None = None,
        group: str | None = None,
        accepted: tuple[int, ...] = (ResponseCode.SUCCESS,),
    ) -> RemotingCommand:
        """As `invoke`, for those who want SUCCESS (or an `accepted` code). Raises ResponseError, AccessDeniedError too."""
        answer = await self.invoke(address, command, timeout_ms)
        if answer.code not in accepted:
            raise response_error(answer.code, answer.remark, address, request_text(command.code), topic, group)
        return answer

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout_ms: int | None = None) -> None:
        """Send what is never answered: it may be lost or refused without a word. Errors of the way there are raised."""
        waiter = self._waiter(self._loop.create_future(), command, timeout_ms)
        transport = await self._usable(address, waiter)
        transport.send_oneway(self._made_ready(command))

    def disconnect_if_mute(self, address: str) -> None:
        """Close the connection to the address if a request has timed out there and nothing at all has come since it was sent.

        Requests in flight there get a BrokerUnreachableError.
        """
        transport = self._open.get(address)
        if transport is not None and transport.is_mute:
            transport.close(BrokerUnreachableError(address, "nothing came over the connection"))

    async def close(self, timeout_ms: int = 1_000) -> None:
        """End all connections; what was sent one-way still leaves, within the time. Requests in flight get a ClientClosedError."""
        self._closed = ClientClosedError("the client", "it is closed")
        for task in [*self._connecting.values(), *self._tasks]:
            task.cancel()
        transports = [*self._open.values(), *self._leaving]
        await asyncio.gather(*(each.close_gently(self._closed, timeout_ms) for each in transports))

    # What the transports tell.

    def handle_request(self, transport: Transport, command: RemotingCommand) -> None:
        """Run the handler beside the reading, and send what it answers."""
        self._keep(self._serve(transport, command))

    def handle_go_away(self, transport: Transport, waiter: Waiter) -> None:
        """Leave the connection, and send the request once more over a new one."""
        if self._open.get(transport.address) is transport:
            del self._open[transport.address]
            self._leaving.add(transport)
            transport.leave()
        if waiter.was_sent_away:
            waiter.fail(
                BrokerUnreachableError(transport.address, "it refused the request twice: it is shutting down (GO_AWAY)")
            )
        elif not waiter.future.done():
            self._begin(transport.address, waiter._replace(was_sent_away=True))

    def handle_lost(self, transport: Transport) -> None:
        """Forget the connection; the next request makes a new one."""
        if self._open.get(transport.address) is transport:
            del self._open[transport.address]
        self._leaving.discard(transport)
        self._unknown_codes.pop(transport.address, None)

    # Requests.

    def _waiter(self, promise: Promise, command: RemotingCommand, timeout_ms: int | None) -> Waiter:
        if self._closed is not None:
            raise self._closed
        timeout_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        return Waiter(promise, command, self._loop.time() + timeout_ms / 1000, timeout_ms)

    def _made_ready(self, command: RemotingCommand) -> RemotingCommand:
        if command.encoding is not self._encoding:
            command = command._replace(encoding=self._encoding)
        credentials = self._settings.credentials
        return command if credentials is None else signed(command, credentials)

    def _begin(self, address: str, waiter: Waiter) -> None:
        """Request in a task; one that is cancelled, even before its first step, fails its waiter."""
        given_up = BrokerUnreachableError(address, "the call was given up")
        task = self._keep(self._request_later(address, waiter))
        task.add_done_callback(lambda done: waiter.fail(self._closed or given_up) if done.cancelled() else None)

    async def _request_later(self, address: str, waiter: Waiter) -> None:
        try:
            transport = await self._usable(address, waiter)
            transport.request(self._made_ready(waiter.request), waiter)
        except Exception as error:
            waiter.fail(error)

    async def _usable(self, address: str, waiter: Waiter) -> Transport:
        """A connection that is open and takes more, before the waiter's deadline."""
        while True:
            left = waiter.deadline - self._loop.time()
            try:
                transport = self._open.get(address)
                if transport is None or not transport.is_open:
                    transport = await asyncio.wait_for(asyncio.shield(self._connection(address)), left)
                if transport.is_open and transport.is_writable:
                    return transport
                await asyncio.wait_for(transport.writable(), waiter.deadline - self._loop.time())
            except TimeoutError:
                raise timed_out(address, waiter) from None
            except asyncio.CancelledError:
                if self._closed is not None:  # the attempt was cancelled, not the caller
                    raise self._closed from None
                raise

    def _connection(self, address: str) -> asyncio.Task[Transport]:
        """The attempt to connect that is under way, or a new one; callers share it."""
        task = self._connecting.get(address)
        if task is None:
            if self._closed is not None:
                raise self._closed
            task = self._loop.create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connecting.pop(address, None))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # callers may have gone
        return task

    # Connecting.

    async def _connect(self, address: str) -> Transport:
        timeout_ms = self._settings.connect_timeout_ms
        end = self._loop.time() + timeout_ms / 1000
        sock = await self._connected_socket(address, end)

        def made() -> Transport:
            # Half: a request often gets what earlier tries have left.
            silent_ms = self._settings.request_timeout_ms // 2
            idle_ms = self._settings.max_idle_ms
            explain = None if self._tls_context is not None else lambda: self._probe(address)
            return Transport(address, self, silent_ms=silent_ms, max_idle_ms=idle_ms, explain=explain)

        try:
            if self._closed is not None:  # Python 3.11's wait_for may swallow a cancellation
                raise self._closed
            if self._tls_context is None:
                _, transport = await self._loop.create_connection(made, sock=sock)
            else:
                transport = await self._with_tls(address, sock, self._tls_context, made, end)
        except BaseException:
            sock.close()
            raise
        self._open[address] = transport
        if self.on_connected is not None:
            self.on_connected(address)
        return transport

    async def _connected_socket(self, address: str, end: float) -> socket.socket:
        """A connected socket to the first of the host's addresses that takes it."""
        try:
            host, port = split_address(address)
            found = await asyncio.wait_for(
                self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), end - self._loop.time()
            )
        except TimeoutError:
            raise self._too_slow(address, "finding the host's address") from None
        except OSError as error:
            raise BrokerUnreachableError(address, f"the host's address is not known: {error.strerror}") from None
        except ValueError as error:  # a route may say anything
            raise BrokerUnreachableError(address, no_address(error)) from None
        reasons = []
        for family, kind, protocol, _, sockaddr in found:
            sock = socket.socket(family, kind, protocol)
            own_socket(sock)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.wait_for(self._loop.sock_connect(sock, sockaddr), end - self._loop.time())
                return sock
            except TimeoutError:
                sock.close()
                raise self._too_slow(address, "connecting") from None
            except OSError as error:
                sock.close()
                reasons.append(os.strerror(error.errno) if error.errno else str(error))
            except BaseException:
                sock.close()
                raise
        raise BrokerUnreachableError(address, f"no connection: {'; '.join(dict.fromkeys(reasons))}")

    async def _with_tls(
        self,
        address: str,
        sock: socket.socket,
        context: ssl.SSLContext,
        made: Callable[[], Transport],
        end: float,
    ) -> Transport:
        settings = self._settings.tls
        named = None if settings is None else settings.server_hostname
        try:
            _, transport = await self._loop.create_connection(
                made,
                sock=sock,
                ssl=context,
                server_hostname=named or split_address(address)[0],
                ssl_handshake_timeout=max(end - self._loop.time(), 0.001),
                ssl_shutdown_timeout=0.5,
            )
            return transport
        except ssl.SSLCertVerificationError as error:
            raise TlsError(address, f"the server's certificate is refused: {error.verify_message}") from None
        except ssl.SSLError as error:
            reason = error.reason or str(error)
            if reason == "WRONG_VERSION_NUMBER":
                reason = "the server does not speak TLS"
            raise TlsError(address, reason) from None
        except ConnectionAbortedError as error:
            if self._loop.time() < end:
                raise TlsError(address, str(error)) from None
            raise self._too_slow(address, "the TLS handshake") from None
        except (OSError, EOFError):
            raise TlsError(
                address, "the server closed the connection during the handshake: it may not speak TLS"
            ) from None

    def _too_slow(self, address: str, what: str) -> BrokerUnreachableError:
        return BrokerUnreachableError(address, f"{what} took longer than {self._settings.connect_timeout_ms} ms")

    async def _probe(self, address: str) -> ClientError | None:
        """Whether a server that closed a plain connection without a word wants TLS: the error that says so."""
        return await self._loop.run_in_executor(None, tls_mismatch, address)

    # The servers' requests.

    async def _serve(self, transport: Transport, command: RemotingCommand) -> None:
        handler = self._handlers.get(command.code)
        answer: RemotingCommand | None
        try:
            if handler is None:
                remark = f" request type {command.code} not supported"
                answer = make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            else:
                answer = await handler(transport.address, command)
        except Exception as error:
            _LOG.exception("%s requested %s, and it failed", transport.address, request_text(command.code))
            answer = make_response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is not None and not command.is_oneway:
            transport.send_response(answer)

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class NameServers:
    """The name servers of one client. Each knows all brokers, so the client tries one after the other until one answers.

    The next request starts with the one that answered last. All tries together take no longer than the time-out: each gets its share
    of the remaining time. Java: NettyRemotingClient.getAndCreateNameserverChannel, MQClientAPIImpl.
    """

    def __init__(self, remoting: RemotingClient, settings: ClientSettings) -> None:
        self._remoting = remoting
        self._timeout_ms = settings.request_timeout_ms
        self._addresses: list[str] = []
        self._use(settings.name_servers)
        self._url = address_server_url(settings)
        self._looking: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """In the order of tries; none before the address server has answered."""
        return tuple(self._addresses)

    @property
    def are_looked_up(self) -> bool:
        """Whether an address server lists them."""
        return self._url is not None

    def _use(self, addresses: Sequence[str]) -> None:
        if set(addresses) != set(self._addresses):
            self._addresses = random.sample(addresses, len(addresses))  # so that clients spread over them

    async def look_up(self) -> None:
        """Read the address server's page. Raises NameServerUnreachableError; those that are known stay then."""
        if self._looking is None:  # callers share the question
            self._looking = asyncio.get_running_loop().create_task(self._look_up())
            self._looking.add_done_callback(lambda done: done.cancelled() or done.exception())  # callers may have gone
        await asyncio.shield(self._looking)

    async def _know_some(self, timeout_ms: int) -> None:
        """Wait for the address server's first page, so long at most. Raises NameServerUnreachableError."""
        if self._addresses:
            return
        try:
            await asyncio.wait_for(self.look_up(), timeout_ms / 1000)
        except TimeoutError:
            reason = f"the address server gives no page within {timeout_ms} ms"
            raise NameServerUnreachableError([(self._url or "", reason)]) from None

    async def _look_up(self) -> None:
        try:
            if self._url is not None:
                fetched = asyncio.get_running_loop().run_in_executor(None, fetch_name_servers, self._url)
                self._use(await fetched)
        finally:
            self._looking = None

    async def invoke(self, command: RemotingCommand, timeout_ms: int | None = None) -> tuple[str, RemotingCommand]:
        """The address that answered, and its answer. Raises NameServerUnreachableError with the error of each try."""
        loop = asyncio.get_running_loop()
        patience_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        end = loop.time() + patience_ms / 1000
        await self._know_some(patience_ms)
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
        """The route of the topic.

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

    async def cluster_info(self) -> ClusterInfo:
        """All brokers with their addresses, and which cluster has which."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        address, answer = await self.ask(make_call(code))
        return read_answer_body(ClusterInfo, answer, address, code)

    async def topics(self, cluster: str | None = None) -> tuple[str, ...]:
        """The names of all topics, or of a cluster's; sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER if cluster is None else RequestCode.GET_TOPICS_BY_CLUSTER
        header = None if cluster is None else ClusterRequest(cluster=cluster)
        address, answer = await self.ask(make_call(code, header))
        return tuple(sorted(read_answer_body(TopicList, answer, address, code).topics))

    async def ask(self, command: RemotingCommand) -> tuple[str, RemotingCommand]:
        """As `invoke`; another code than SUCCESS raises ResponseError."""
        address, answer = await self.invoke(command)
        if answer.code != ResponseCode.SUCCESS:
            raise response_error(answer.code, answer.remark, address, request_text(command.code))
        return address, answer

    async def ask_each(self, command: RemotingCommand) -> None:
        """Send to every name server; they do not notify each other. Raises the first error after all have answered."""
        await self._know_some(self._timeout_ms)
        calls = [self._remoting.ask(address, command, self._timeout_ms) for address in self._addresses]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


def _reason(error: BrokerUnreachableError | RequestTimeoutError) -> str:
    return error.describe().removeprefix(f"{error.address}: ")
