"""When a connection counts as dead: judged by the time without a byte, not by how long one caller would have waited."""

from __future__ import annotations

import asyncio

from spark_mq.client.errors import BrokerUnreachableError, RequestTimeoutError
from spark_mq.client.transport import Transport, Waiter
from spark_mq.remoting import RemotingCommand, make_request, make_response
from tests.client.virtual_time import play
from tests.support.planned_server import frame

SILENT_MS = 1_500
REQUEST = make_request(105, {})


class Owner:
    """Remembers that the connection has ended."""

    is_lost = False

    def handle_request(self, transport: Transport, command: RemotingCommand) -> None:
        """Nothing is asked."""

    def handle_go_away(self, transport: Transport, waiter: Waiter) -> None:
        """Nobody goes away."""

    def handle_lost(self, transport: Transport) -> None:
        self.is_lost = True


def connection(owner: Owner) -> Transport:
    return Transport("b:1", owner, silent_ms=SILENT_MS, max_idle_ms=120_000)


def asked(transport: Transport, timeout_ms: int, waited_ms: int = 0) -> asyncio.Future[RemotingCommand]:
    """A request whose caller has waited for a while already."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[RemotingCommand] = loop.create_future()
    deadline = loop.time() + (timeout_ms - waited_ms) / 1000
    transport.request(REQUEST, Waiter(future, REQUEST, deadline, timeout_ms))
    return future


async def times_out(future: asyncio.Future[RemotingCommand]) -> bool:
    (error,) = await asyncio.gather(future, return_exceptions=True)
    return isinstance(error, RequestTimeoutError)


def answer(transport: Transport, opaque: int) -> None:
    transport.data_received(frame(make_response(REQUEST._replace(opaque=opaque), 0)))


async def test_a_try_with_a_little_less_than_the_usual_time_out_finds_a_dead_connection_at_once() -> None:
    owner = Owner()
    transport = connection(owner)
    answered = asked(transport, 3_000)
    answer(transport, 0)
    assert (await answered).code == 0
    await asyncio.sleep(60)
    assert await times_out(asked(transport, 2_999))
    assert owner.is_lost


def test_short_time_outs_find_it_together() -> None:
    async def story() -> list[bool]:
        owner = Owner()
        transport = connection(owner)
        found = []
        for _ in range(3):
            assert await times_out(asked(transport, 600))
            found.append(owner.is_lost)
        return found

    assert play(story()) == [False, False, True]


async def test_anything_that_comes_begins_the_silence_anew() -> None:
    owner = Owner()
    transport = connection(owner)
    for _ in range(10):
        slow = asked(transport, 1_000)
        await asyncio.sleep(0.5)
        transport.data_received(b"")  # any byte would do
        assert await times_out(slow)
    assert not owner.is_lost
    assert not transport.is_mute


async def test_a_long_poll_is_no_silence_until_its_own_time_is_over() -> None:
    owner = Owner()
    transport = connection(owner)
    long_poll = asked(transport, 30_000)
    await asyncio.sleep(15)
    assert await times_out(asked(transport, 100))
    assert not owner.is_lost
    assert await times_out(long_poll)
    assert owner.is_lost


async def test_the_time_before_a_request_was_sent_is_no_silence() -> None:
    owner = Owner()
    transport = connection(owner)
    assert await times_out(asked(transport, 3_000, waited_ms=2_900))
    assert not owner.is_lost


async def test_who_tries_again_after_a_time_out_finds_the_dead_connection_closed() -> None:
    transport = connection(Owner())
    seen: list[bool] = []
    others = asked(transport, 30_000)

    class Again:
        def done(self) -> bool:
            return False

        def set_result(self, answer: RemotingCommand) -> None:
            raise AssertionError

        def set_exception(self, error: Exception) -> None:
            seen.append(transport.is_open)

    transport.request(REQUEST, Waiter(Again(), REQUEST, asyncio.get_running_loop().time() + 3, 3_000))
    (error,) = await asyncio.gather(others, return_exceptions=True)
    assert isinstance(error, BrokerUnreachableError)
    assert "nothing came over the connection" in str(error)
    await asyncio.sleep(0)
    assert seen == [False]
