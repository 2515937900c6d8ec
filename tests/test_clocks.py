"""Who looks at the machine's clock, which anybody may set: what stores a time or sends one, and nobody who waits for something.

In the rooms below all else goes by a clock that nobody sets (`storage/epoch_times.py`, the event loop's, `time.monotonic`).
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_mq.client.process_queue import ProcessQueue
from storage.epoch_times import shown_time_ms, steady_time_ms

HOME = Path(__file__).parents[1]
ROOMS = (
    *("storage/ha", "storage/service", "spark_mq/remoting", "spark_mq/client", "spark_mq/remoting_server"),
    *("spark_mq/namesrv", "spark_mq/controller", "spark_mq/broker", "spark_mq/broker_server", "spark_mq/hand_over"),
)
LOOKS = {
    "stored with a table, a journal's event, or a message": (
        "spark_mq/broker/broker.py Broker.__exit__",
        "spark_mq/broker/broker.py Broker.store_group_offsets",
        "spark_mq/broker/consumer_filters.py ConsumerFilters._bury",
        "spark_mq/broker/consumer_filters.py ConsumerFilters._register",
        "spark_mq/broker/consumer_filters.py ConsumerFilters.take_change",
        "spark_mq/broker/send.py SendMessageHandler._begin",
        "spark_mq/broker/send.py SendMessageHandler.begin_run",
        "spark_mq/broker/send.py SendMessageHandler.checked",
        "spark_mq/broker/send.py SendMessageHandler.close",
        "spark_mq/broker/send_back.py SendBackHandler._put",
        "spark_mq/broker_server/controlled.py ControlledBroker._registered_id",
        "spark_mq/broker_server/grouped.py GroupedBroker._lead",
        "spark_mq/broker_server/server.py RunningBroker._answer",
        "spark_mq/broker_server/server.py RunningBroker._answer_run",
        "spark_mq/broker_server/server.py RunningBroker._close_store",
        "spark_mq/broker_server/server.py RunningBroker._run_again",
        "spark_mq/hand_over/messages.py _note",
        "spark_mq/hand_over/messages.py commit_staged",
        "storage/service/put_service.py PutService.delete_group",
        "storage/service/put_service.py PutService.forbid",
    ),
    "compared with times that are stored": (
        "spark_mq/broker/offset_handlers.py ProgressHandlers.time_spans",
        "spark_mq/broker_server/duties.py Duties._check_transactions",
        "spark_mq/broker_server/server.py RunningBroker._begin",
        "spark_mq/broker_server/duties.py Duties._clean_mappings",
        "spark_mq/broker_server/duties.py Duties._deliver",
        "spark_mq/broker_server/duties.py Duties._escape",
        "spark_mq/broker_server/duties.py Duties._expire",
        "spark_mq/broker_server/duties.py Duties._tick",
        "spark_mq/broker_server/duties.py Duties._trim",
    ),
    "sent": (
        "spark_mq/broker_server/controllers.py Controllers.alter",
        "spark_mq/broker_server/controllers.py Controllers.elect",
        "spark_mq/broker_server/controllers.py Controllers.register",
        "spark_mq/client/settings.py _half_an_hour_ago",
        "spark_mq/client/pull_consumer.py PullConsumer.assign",
        "spark_mq/client/pull_consumer.py PullConsumer.subscribe",
        "spark_mq/client/pull_consumer.py _AtWork.__init__",
        "spark_mq/client/push_consumer.py PushConsumer.subscribe",
        "spark_mq/client/push_consumer.py _AtWork.__init__",
        "spark_mq/client/rebalance.py Rebalancer._changed",
        "spark_mq/client/request_reply.py PendingRequests._reply",
        "spark_mq/client/sender.py SendRequests._header",
        "spark_mq/client/sender.py SendRequests.make",
        "spark_mq/client/outgoing_messages.py UniqueIds.__init__",
        "spark_mq/client/outgoing_messages.py UniqueIds.make",
        "spark_mq/client/trace.py TracingHook.consume_message_after",
        "spark_mq/client/trace.py TracingHook.consume_message_before",
        "spark_mq/client/trace.py TracingHook.end_transaction",
        "spark_mq/client/trace.py TracingHook.send_message_after",
        "spark_mq/client/trace.py TracingHook.send_message_before",
    ),
    "told to people, or a figure": (
        "spark_mq/broker/client_tables.py Clients.shown_ms",
        "spark_mq/broker/send.py SendMessageHandler._begin.answer",
        "spark_mq/broker/send.py SendMessageHandler._run_answers",
        "storage/ha/listener.py ReplicationListener._note_refusal",
    ),
    "of a duty at intervals that comes at once where the clock was set": (
        "storage/service/put_service.py PutService.log_turn",
        "storage/service/put_service.py PutService.pool_turn",
        "storage/service/put_service.py PutService.queue_turn",
    ),
    "handed on": (
        "spark_mq/broker/broker.py Broker.__init__",
        "spark_mq/broker/message_handlers.py MessageHandlers.__init__",
        "spark_mq/broker/send.py SendMessageHandler.__init__",
        "spark_mq/broker/send_back.py SendBackHandler.__init__",
        "spark_mq/broker_server/opening.py opened_service",
        "spark_mq/broker_server/opening.py opened_store",
        "spark_mq/broker_server/server.py RunningBroker.__init__",
        "spark_mq/broker_server/server.py RunningBroker.start",
        "spark_mq/broker_server/duties.py Duties.__init__",
    ),
    "another clock, which nobody sets": (
        "spark_mq/client/sender.py LatencyFaults.is_available",
        "spark_mq/client/sender.py LatencyFaults.note",
        "spark_mq/controller/server.py RunningController._answer",
        "spark_mq/controller/server.py RunningController._answer_at_once",
        "spark_mq/controller/server.py RunningController._peer_left",
        "spark_mq/controller/server.py RunningController._scan_brokers",
        "spark_mq/controller/server.py RunningController._scan_masters",
        "spark_mq/controller/server.py RunningController.close",
    ),
}
"""Why each function of these rooms that looks at it may do so."""


def _looks(path: Path) -> Iterator[str]:
    """Each place of a file at which the machine's clock is looked at, or handed on."""

    def walk(node: ast.AST, name: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from walk(child, f"{name}.{child.name}".lstrip("."))
                continue
            text = ast.unparse(child) if isinstance(child, ast.Name | ast.Attribute) else ""
            is_look = text in ("current_time_ms", "time.time", "time.time_ns") or text.endswith((".clock", "._clock"))
            if is_look and isinstance(getattr(child, "ctx", None), ast.Load):
                yield f"{path.relative_to(HOME)} {name}"
            yield from walk(child, name)

    yield from walk(ast.parse(path.read_text("utf-8")), "")


def test_who_looks_at_the_machines_clock_stores_a_time_or_sends_one() -> None:
    found = {look for room in ROOMS for path in sorted((HOME / room).rglob("*.py")) for look in _looks(path)}
    assert found == {look for looks in LOOKS.values() for look in looks}


def test_what_a_client_tells_of_its_queues_is_told_by_the_clock_as_it_is_set_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = ProcessQueue(steady_time_ms() - 5_000)
    set_ms = time.time_ns() // 1_000_000 + 3 * 86_400_000
    monkeypatch.setattr(time, "time_ns", lambda: set_ms * 1_000_000)
    assert abs(set_ms - shown_time_ms(steady_time_ms())) <= 60_000
    info = queue.info(0)
    for shown_ms in (info.last_pull_time_ms, info.last_lock_time_ms, info.last_consume_time_ms):
        assert abs(shown_ms - (set_ms - 5_000)) <= 60_000  # the steady clock goes on meanwhile
    assert not queue.is_pull_expired(steady_time_ms())
    assert queue.has_live_lock(steady_time_ms())
