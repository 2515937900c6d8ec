"""Recalling a timed message: its handle, and what deletes it in the timer. Pure.

Java: RecallMessageProcessor, RecallMessageHandle.HandleV1, TimerMessageStore.buildDeleteKey. The handle is made in `put_response.py`.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

_TAG = "_RECALL_TAG_"


class RecallHandle(NamedTuple):
    """Which message: its topic, broker, deliver time and unique key."""

    topic: str
    broker_name: str
    time_ms: int
    unique_key: str


def read_recall_handle(text: str) -> RecallHandle | None:
    """The handle that a send was answered with; None of a text that is none."""
    try:
        parts = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
    except (ValueError, binascii.Error):
        return None
    if len(parts) < 5 or parts[0] != "v1":
        return None
    _, topic, broker_name, time_text, unique_key, *_ = parts
    time_ms = int(time_text) if re.fullmatch("-?[0-9]{1,18}", time_text) else -1
    return RecallHandle(topic, broker_name, time_ms, unique_key)


def recall_properties(handle: RecallHandle, producer_group: str | None, now_ms: int) -> dict[str, str]:
    """Of the message that deletes it: it goes through the timer to the same time."""
    properties = {
        "TAGS": _TAG,
        "TIMER_DEL_UNIQKEY": f"{handle.topic}+{handle.unique_key}",
        "UNIQ_KEY": handle.unique_key,
        "TIMER_DELIVER_MS": str(handle.time_ms),
        "BORN_TIMESTAMP": str(now_ms),
        "TRACE_CONTEXT": "",
    }
    return properties | ({"PGROUP": producer_group} if producer_group else {})
