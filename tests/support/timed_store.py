"""A small store with messages in the timer's topic, and a time that a test sets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from storage import MessageStore, StoreConfig, open_store
from storage.delay.timer_files import TimerLog
from storage.delay.timer_store import Put, TimerReport, deliver_timed
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import TimerCheckpoint
from storage.format.record import Message
from storage.rules.delays import TIMER_TOPIC
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import TimerConfig
from storage.tables.masters import read_timer_checkpoint
from tests.support.clock import Clock
from tests.support.served import served

NOW = 1_795_251_500_000
WINDOW = 60
TIMER = TimerConfig(mapped_file_size_timer_log=512, timer_roll_window_slot=WINDOW)


class TimedStore:
    """A small store and its time."""

    def __init__(
        self,
        root: Path,
        timer: TimerConfig = TIMER,
        *,
        config: StoreConfig | None = None,
        files: LocalFileSystem | None = None,
    ) -> None:
        self.root = root
        self.clock = Clock(NOW)
        self._config = replace(config or StoreConfig.tiny(), timer=timer)
        self._files = files
        self.store = self.open()

    def open(self) -> MessageStore:
        return open_store(
            self.root, config=self._config, read_only=False, create=True, clock=self.clock, file_system=self._files
        )

    def reopen(self) -> None:
        self.store.release()
        self.store = self.open()

    def park(self, name: str, out_ms: int | str | None, **properties: str) -> InnerMessage:
        """A message for TopicA queue 3 in the timer's topic; a property can be set to "" to be left out."""
        given = {"UNIQ_KEY": name, "REAL_TOPIC": "TopicA", "REAL_QID": "3", **properties}
        if out_ms is not None:
            given["TIMER_OUT_MS"] = str(out_ms)
        kept = {key: value for key, value in given.items() if value}
        message = InnerMessage(topic=TIMER_TOPIC, queue_id=0, body=name.encode(), properties=kept, born_time_ms=NOW - 7)
        self.store.put_inner([message])
        return message

    def deliver(self, at_ms: int, put: Put | None = None) -> TimerReport:
        self.clock.now_ms = max(self.clock.now_ms, at_ms)
        return deliver_timed(self.store, at_ms, put)

    def messages(self, topic: str = "TopicA", queue_id: int = 3) -> list[Message]:
        return list(served(self.store, topic, queue_id))

    @property
    def delivered(self) -> list[str]:
        return [message.body.decode() for message in self.messages()]

    @property
    def checkpoint(self) -> TimerCheckpoint:
        return read_timer_checkpoint(LocalFileSystem(), str(self.root))

    def units(self) -> list[dict[str, int]]:
        log = TimerLog(LocalFileSystem(), str(self.root), 512)
        runs = list(log.walk(0))
        names = runs[0].units.dtype.names if runs else ()
        return [{name: int(unit[name]) for name in names or ()} for run in runs for unit in run.units]

    def counts(self) -> dict[str, int]:
        path = self.root / "config" / "timermetrics"
        table = json.loads(path.read_text("utf-8"))["timingCount"] if path.exists() else {}
        return {topic: entry["count"] for topic, entry in table.items()}
