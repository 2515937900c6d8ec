"""Answers that say "stored, but not as safely as the broker is configured", and what `acks=all` makes of them.

Java: SendStatus. A broker with SYNC_FLUSH or SYNC_MASTER answers 10, 11 or 12 when the message is in its log, and the disk or a slave
did not confirm it in time.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_mq.client.send_results import SendStatus, stored_status
from spark_mq.conditions import NotConfirmedError
from storage.rules.response_codes import ResponseCode


def refuse_unsafe(rows_by_code: Mapping[int, int], broker_name: str) -> None:
    """Raises NotConfirmedError where rows were stored with another status than SEND_OK."""
    for code, count in rows_by_code.items():
        status = stored_status(code)
        if code != ResponseCode.SUCCESS and status is not None:
            raise NotConfirmedError(broker_name, count, status.name, _MEANING[status])


def statuses_text(rows_by_code: Mapping[int, int]) -> str:
    """Statuses with their rows, for people."""
    return ", ".join(f"{SendStatus(code).name} {count}" for code, count in sorted(rows_by_code.items())) or "no rows"


_MEANING = {
    SendStatus.FLUSH_DISK_TIMEOUT: "its disk did not confirm them in time",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "its slaves did not confirm them in time",
    SendStatus.SLAVE_NOT_AVAILABLE: "no slave is near enough to confirm them",
}
