"""Waiting for what comes about in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError


def wait_until(
    met: Callable[[], object], what: str, timeout_seconds: float = 60, *, pause_seconds: float = 0.1
) -> None:
    """Look again and again. Raises AssertionError if it does not come to that."""
    deadline = time.monotonic() + timeout_seconds
    while not met():
        assert time.monotonic() < deadline, f"{timeout_seconds:.0f} s have passed, and not yet: {what}"
        time.sleep(pause_seconds)


def await_route(admin: Admin, topic: str, queues: int) -> None:
    """Wait until name servers know a route with so many queues to send to."""

    def has_route() -> bool:
        with suppress(ClientError):
            return len(admin.route(topic).publish_queues) == queues
        return False

    wait_until(has_route, f"{topic} has a route of {queues} queues")
