"""Faults to be planted into the duties: what a judge of killed duties must notice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

from spark_mq.broker.end_transaction import Ending, settle
from storage import MessageStore, failpoints
from storage.delay.schedule import DueRange, _Delivery, deliver_due
from storage.delay.timer_records import PutBefore
from storage.delay.timer_store import deliver_timed
from storage.rules.half_messages import GROUP, HALF_TOPIC
from storage.tables.document import OFFSETS_FILE
from storage.transaction.progress import TransactionProgress, read_progress, save_progress

_HOUR_MS = 3_600_000


def _blind_to_commit_records() -> Any:
    def committed(store: object, halves: Any, started_at: object) -> np.ndarray:
        return np.zeros(halves.row_count, bool)

    return mock.patch("storage.transaction.outcomes.committed", committed)


def _commits_whatever_is_said() -> Any:
    def settle_wrongly(commit_or_rollback: int, **outcome: bool) -> Any:
        ending, response = settle(commit_or_rollback, **outcome)
        return (Ending.COMMIT if ending is Ending.ROLLBACK else ending), response

    return mock.patch("spark_mq.broker.end_transaction.settle", settle_wrongly)


def _moves_on_over_halves() -> Any:
    return mock.patch("storage.transaction.check._Pass._apply")


def _goes_back_over_halves() -> Any:
    """In each life that finds the queue gone forward; a check saves its progress several times."""
    goes_back: list[bool] = []

    def save(store: MessageStore, progress: TransactionProgress, *, now_ms: int) -> None:
        goes_back.append(read_progress(store).half_offset > 0)
        save_progress(store, progress, now_ms=now_ms)
        if goes_back[0]:
            with open(f"{store.root}/config/{OFFSETS_FILE}", encoding="utf-8") as file:
                table = json.load(file)
            table["offsetTable"][f"{HALF_TOPIC}@{GROUP}"] = {"0": 0}
            store.save_state(OFFSETS_FILE, json.dumps(table))

    return mock.patch("storage.transaction.check.save_progress", save)


def _saves_before_it_delivers() -> Any:
    original = _Delivery._deliver

    def deliver(self: _Delivery, ranges: tuple[DueRange, ...]) -> None:
        self._save({due.level: due.end for due in ranges})
        failpoints.reach("after-delivery-save")
        original(self, ranges)

    return mock.patch.object(_Delivery, "_deliver", deliver)


def _forgets_its_marks() -> Any:
    return mock.patch("storage.delay.schedule.read_mark", return_value=None)


def _delivers_early() -> Any:
    def deliver(store: MessageStore, now_ms: int) -> Any:
        return deliver_due(store, now_ms + _HOUR_MS)

    return mock.patch("tests.crash.duty_life.deliver_due", deliver)


def _timer_runs_ahead() -> Any:
    def deliver(store: MessageStore, now_ms: int) -> Any:
        return deliver_timed(store, now_ms + _HOUR_MS)

    return mock.patch("tests.crash.duty_life.deliver_timed", deliver)


def _timer_does_not_look_back() -> Any:
    return mock.patch("storage.delay.timer_store.put_since", side_effect=lambda *_: PutBefore())


def _repeats_without_looking() -> Any:
    return mock.patch("tests.crash.duty_life.records_of", return_value=())


FAULTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = MappingProxyType(
    {
        "no commit record is ever found": _blind_to_commit_records,
        "a rollback commits": _commits_whatever_is_said,
        "a check moves on over halves": _moves_on_over_halves,
        "a check goes back to the first half": _goes_back_over_halves,
        "progress is saved before the delivery": _saves_before_it_delivers,
        "a killed delivery is forgotten": _forgets_its_marks,
        "levels are delivered early": _delivers_early,
        "the timer runs ahead": _timer_runs_ahead,
        "the timer does not look back": _timer_does_not_look_back,
        "requests are repeated without looking": _repeats_without_looking,
    }
)
"""What is wrong → how to make it so."""
