"""Batches of rows for one broker: one request in flight per queue, so that a queue keeps its order, and many queues in parallel.

    lane = BrokerLane(connect, terms)
    lane.offer(batch); …          blocks while too much waits
    lane.finish()                 returns when all are stored; raises what stopped the lane

A lane has its own thread and connection. `sends.py` decides what an answer means. Under exactly once the lane stops at the first
doubt and never connects again: another attempt has to find out which rows the broker holds. `Lanes` are the lanes of one task, made
when the first batch for their broker comes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.errors import ClientError, RequestTimeoutError, WaitedInVainError, request_text, response_error
from spark_mq.client.settings import with_namespace
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.sink.live_routes import Routes
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.sink.sends import Verdict, send_request, verdict_of, verdict_of_call, verdict_of_failure
from storage.epoch_times import current_time_ms

QUEUED_BYTES = 16 << 20
"""Bytes that may wait in a lane before `offer` blocks."""
KEEP_ALIVE_S = 20.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_CALL_BYTES = 1_024
"""Size that a call without a body counts for."""


class QueueBatch(NamedTuple):
    """Rows for one queue, as one request carries them."""

    queue: MessageQueue
    body: bytes | memoryview
    row_count: int
    sys_flag: int
    call: RemotingCommand | None = None
    """A request in place of a send."""
    row: int = -1
    """The row's number if the batch has one row whose answer must be known by row."""
    waits: bool = False
    """True for a batch of one message that its broker may put elsewhere first, and then answers with the offset there."""

    @property
    def code(self) -> int:
        """That of its request."""
        if self.call is not None:
            return self.call.code
        return RequestCode.SEND_MESSAGE_V2 if self.row_count == 1 else RequestCode.SEND_BATCH_MESSAGE

    @property
    def size_bytes(self) -> int:
        """Size that it counts for while it waits."""
        return len(self.body) if self.call is None else _CALL_BYTES


class LaneStoppedError(ClientError):
    """A lane has stopped because of `cause`; with `is_doubt` it is unknown which batches in flight the broker has stored."""

    def __init__(self, cause: ClientError, *, is_doubt: bool) -> None:
        super().__init__(cause, is_doubt)
        self.cause = cause
        self.is_doubt = is_doubt

    def describe(self) -> str:
        return self.cause.describe()


Connect = Callable[[], BlockingConnection["_Try | None"]]


class LaneTerms(NamedTuple):
    """Terms of a lane's sends."""

    group: str
    is_exact: bool
    send_timeout_ms: int
    retry_timeout_ms: int
    on_stored: Callable[[QueueBatch, RemotingCommand], None]
    """Called with each stored batch and the broker's answer, on the lane's thread."""
    keep_alive: RemotingCommand | None = None
    """Sent now and then while the lane works."""
    leave: RemotingCommand | None = None
    """Sent when all is stored. A broker up to 4.9 keeps the name of a producer group for ever unless a client takes leave."""
    on_refused: Callable[[QueueBatch, ClientError], bool] | None = None
    """Called with each batch that its broker will never take; True = handled, and the lane continues."""


class _Try:
    """A batch, and how its sends went so far."""

    __slots__ = ("batch", "first_s", "not_before_s", "sent_s", "tries")

    def __init__(self, batch: QueueBatch) -> None:
        self.batch = batch
        self.tries = 0
        self.first_s = 0.0
        self.sent_s = 0.0
        self.not_before_s = 0.0


class BrokerLane:
    """The way to one broker, for one thread that offers."""

    def __init__(self, connect: Connect, terms: LaneTerms) -> None:
        self._connect = connect
        self._terms = terms
        self._waiting: dict[MessageQueue, deque[_Try]] = {}
        self._in_flight: dict[MessageQueue, _Try] = {}
        self._queued_bytes = 0
        self._is_finished = False
        self._is_given_up = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._connection: BlockingConnection[_Try | None] | None = None
        self._alive_s = time.monotonic()
        self.statuses: Counter[int] = Counter()
        """Number of stored rows, by the code of the answer."""
        self._thread = threading.Thread(target=self._run, name="spark-mq-lane", daemon=True)
        self._thread.start()

    def offer(self, batch: QueueBatch) -> None:
        """Take a batch. Raises what has stopped the lane."""
        with self._changed:
            while self._queued_bytes > QUEUED_BYTES and self._failure is None:
                self._changed.wait()
            self._raise_failure()
            self._waiting.setdefault(batch.queue, deque()).append(_Try(batch))
            self._queued_bytes += batch.size_bytes
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until nothing that was offered is on its way. Raises what has stopped the lane."""
        with self._changed:
            while (self._waiting or self._in_flight) and self._failure is None:
                self._changed.wait()
            self._raise_failure()

    def finish(self) -> None:
        """Wait until everything is stored. Raises what has stopped the lane."""
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()
        self._thread.join()
        self._raise_failure()

    def give_up(self) -> None:
        """Drop waiting batches, and read the answers to those in flight, once. Raises nothing."""
        with self._changed:
            self._is_given_up = self._is_finished = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()

    def stop(self) -> None:
        """Give up what waits; batches in flight may be stored or not."""
        with self._changed:
            self._failure = self._failure or InterruptedError("the lane was stopped")
            self._changed.notify_all()
        self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while self._step():
                pass
            self._take_leave()
        except BaseException as error:  # raised by the next `offer` or `finish`
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
        finally:
            self._hang_up()

    def _step(self) -> bool:
        """Send what may be sent, then take answers. False when there is nothing left."""
        with self._changed:
            while not self._waiting and not self._in_flight and not self._is_finished and self._failure is None:
                self._changed.wait()
            if self._failure is not None or (not self._waiting and not self._in_flight):
                return False
            due = self._due(time.monotonic())
        try:
            self._send(due)
            if self._in_flight:
                self._receive()
            else:
                time.sleep(0.01)  # all wait for a pause to end
        except ClientError as error:
            self._fail(error)
        return True

    def _due(self, now_s: float) -> list[_Try]:
        due = []
        for queue in [queue for queue in self._waiting if queue not in self._in_flight]:
            if self._waiting[queue][0].not_before_s <= now_s:
                taken = self._waiting[queue].popleft()
                if not self._waiting[queue]:
                    del self._waiting[queue]
                taken.first_s, taken.sent_s = taken.first_s or now_s, now_s
                self._in_flight[queue] = taken
                due.append(taken)
        return due

    def _send(self, due: list[_Try]) -> None:
        if self._connection is None:
            self._connection = self._connect()
        now_s, now_ms = time.monotonic(), current_time_ms()
        requests: list[tuple[RemotingCommand, _Try | None]] = []
        if self._terms.keep_alive is not None and now_s - self._alive_s > KEEP_ALIVE_S:
            self._alive_s = now_s
            requests.append((self._terms.keep_alive, None))
        for one in due:
            queue, body, row_count, sys_flag, call, *_ = one.batch
            group = self._terms.group
            made = call or send_request(queue, body, row_count, sys_flag, group=group, born_time_ms=now_ms)
            requests.append((made, one))
        self._connection.send(requests, self._terms.send_timeout_ms)

    def _receive(self) -> None:
        assert self._connection is not None
        oldest = min(self._in_flight.values(), key=lambda one: one.sent_s)
        left_s = oldest.sent_s + self._terms.send_timeout_ms / 1_000 - time.monotonic()
        if left_s <= 0:
            raise RequestTimeoutError("a send", self._terms.send_timeout_ms, self._connection.address)
        for one, answer in self._connection.receive(max(int(left_s * 1_000), 1)):
            if one is not None:
                self._take(one, answer, self._connection.address)

    def _take(self, one: _Try, answer: RemotingCommand, address: str) -> None:
        if one.batch.call is None:
            verdict = verdict_of(answer.code, is_exact=self._terms.is_exact)
        else:
            verdict = verdict_of_call(answer.code, answer.remark)
        if verdict is Verdict.STORED:
            self._terms.on_stored(one.batch, answer)
            self._end(one, answer.code)
            return
        error = response_error(answer.code, answer.remark, address, request_text(one.batch.code), one.batch.queue.topic)
        if (
            verdict is Verdict.REFUSED
            and self._terms.on_refused is not None
            and self._terms.on_refused(one.batch, error)
        ):
            self._end(one, None)
            return
        if verdict is not Verdict.AGAIN:
            raise LaneStoppedError(error, is_doubt=verdict is Verdict.DOUBT)
        self._try_again([one], error)

    def _end(self, one: _Try, code: int | None) -> None:
        """End a batch; `code` is the code of the answer by which it is stored."""
        with self._changed:
            del self._in_flight[one.batch.queue]
            self._queued_bytes -= one.batch.size_bytes
            if code is not None:
                self.statuses[code] += one.batch.row_count
            self._changed.notify_all()

    def _fail(self, error: ClientError) -> None:
        """The connection is no more, or one batch was refused."""
        self._hang_up()
        if isinstance(error, LaneStoppedError):
            raise error
        verdict = verdict_of_failure(error, is_exact=self._terms.is_exact)
        if verdict is not Verdict.AGAIN:
            raise LaneStoppedError(error, is_doubt=verdict is Verdict.DOUBT)
        self._try_again(list(self._in_flight.values()), error)

    def _try_again(self, tried: list[_Try], error: ClientError) -> None:
        """Put batches back where they stood, each to be sent after a pause. Raises the error when their time is over."""
        now_s = time.monotonic()
        with self._changed:
            for one in tried:
                pause_s = min(_FIRST_PAUSE_S * 2**one.tries, _LONGEST_PAUSE_S)
                waited_s = now_s - one.first_s
                if not self._is_given_up and waited_s + pause_s > self._terms.retry_timeout_ms / 1_000:
                    what = f"broker {one.batch.queue.broker_name} ({request_text(one.batch.code)})"
                    error = WaitedInVainError(error, what, round(1_000 * waited_s))
                if self._is_given_up or isinstance(error, WaitedInVainError):
                    raise LaneStoppedError(error, is_doubt=False)
                one.tries += 1
                one.not_before_s = now_s + pause_s
                del self._in_flight[one.batch.queue]
                self._waiting.setdefault(one.batch.queue, deque()).appendleft(one)

    def _take_leave(self) -> None:
        connection, leave = self._connection, self._terms.leave
        if connection is None or leave is None or self._failure is not None:
            return
        with suppress(ClientError):  # all is stored
            connection.send([(leave, None)], self._terms.send_timeout_ms)
            while connection.in_flight:
                connection.receive(self._terms.send_timeout_ms)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Lanes:
    """For one thread that offers. What a lane raises is a LaneStoppedError, or what its callbacks raise."""

    def __init__(
        self,
        routes: Routes,
        options: LiveSinkOptions,
        on_stored: Callable[[QueueBatch, RemotingCommand], None],
        *,
        on_refused: Callable[[QueueBatch, ClientError], bool] | None = None,
        retry_timeout_ms: int | None = None,
    ) -> None:
        """Callbacks as of `LaneTerms`; `retry_timeout_ms` in place of the option's."""
        self._routes = routes
        self._settings = options.client_settings()
        self._terms = LaneTerms(
            with_namespace(options.namespace, options.producer_group),
            False,
            options.send_timeout,
            options.retry_timeout if retry_timeout_ms is None else retry_timeout_ms,
            on_stored,
            on_refused=on_refused,
        )
        self._lanes: dict[str, BrokerLane] = {}

    def offer(self, batch: QueueBatch) -> None:
        """Take a batch to its queue's broker."""
        broker_name, topic = batch.queue.broker_name, batch.queue.topic
        if broker_name not in self._lanes:
            self._lanes[broker_name] = BrokerLane(
                lambda: BlockingConnection(self._routes.address_of(broker_name, topic), self._settings), self._terms
            )
        self._lanes[broker_name].offer(batch)

    def settle(self) -> None:
        """Wait until nothing is on its way."""
        for lane in self._lanes.values():
            lane.settle()

    def finish(self) -> dict[int, int]:
        """Wait until everything is stored, and end. Rows by the code of their answers."""
        for lane in self._lanes.values():
            lane.finish()
        return dict(sum((lane.statuses for lane in self._lanes.values()), Counter[int]()))

    def give_up(self) -> None:
        """Drop waiting batches, and read the answers to those in flight."""
        for lane in self._lanes.values():
            lane.give_up()

    def stop(self) -> None:
        """Give up what waits."""
        for lane in self._lanes.values():
            lane.stop()
