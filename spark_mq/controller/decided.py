"""What comes of a request: events that are to hold, and an answer that may be given once they do."""

from __future__ import annotations

from typing import NamedTuple

from spark_mq.controller.events import Event
from spark_mq.controller.state import Group
from spark_mq.remoting import Header, WireBody
from spark_mq.remoting.controller_bodies import SyncStateSet
from storage.rules.response_codes import ResponseCode


class Decided(NamedTuple):
    """Nothing has changed yet. A refusal has its header all the same, as in Java."""

    header: Header | None = None
    body: WireBody | None = None
    events: tuple[Event, ...] = ()
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None


def refused(code: ResponseCode, remark: str, header: Header | None = None, body: WireBody | None = None) -> Decided:
    """An answer that says no; nothing changes."""
    return Decided(header, body, (), code, remark)


def set_of(group: Group) -> SyncStateSet:
    """Who is in sync, as it is sent."""
    return SyncStateSet(broker_ids=tuple(sorted(group.sync_state_set)), epoch=group.sync_state_set_epoch)
