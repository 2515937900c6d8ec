"""How long a question is asked again: one rule for source and sink.

    may_pass      what went wrong may be over soon: the broker is frozen, restarts, moves to another machine, or is busy
    patiently     ask until there is an answer, until something cannot pass, or until the time is over

Only questions whose second asking changes nothing go this way. A send whose answer was lost does not: what the broker holds is looked
for first (`spark_mq/sink/exact_commit.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from spark_mq.client.errors import ClientError, ResponseError, WaitedInVainError

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 100, 1_000
_STORE_CLOSED = "store getMessage return null"

T = TypeVar("T")


def monotonic_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


def may_pass(error: ClientError) -> bool:
    """Whether the same request may succeed later; a broker that stops says SYSTEM_ERROR for a moment."""
    is_closed_store = isinstance(error, ResponseError) and _STORE_CLOSED in (error.remark or "")
    return error.retriable or is_closed_store


def patiently(
    ask: Callable[[], T],
    timeout_ms: int,
    what: str,
    *,
    passes: Callable[[ClientError], bool] = may_pass,
    between: Callable[[], object] | None = None,
    longest_pause_ms: int = LONGEST_PAUSE_MS,
    clock: Callable[[], int] = monotonic_ms,
) -> T:
    """What `ask` gives. It looks up the server's address each time, because the server may have moved. `what` says what is waited for.

    `between` is called before each repetition. Raises WaitedInVainError, and what does not pass.
    """
    began_ms, pause_ms = clock(), FIRST_PAUSE_MS
    while True:
        try:
            return ask()
        except ClientError as error:
            if not passes(error):
                raise
            if clock() - began_ms + pause_ms > timeout_ms:
                raise WaitedInVainError(error, what, clock() - began_ms) from None
        time.sleep(pause_ms / 1_000)
        pause_ms = min(2 * pause_ms, longest_pause_ms)
        if between is not None:
            between()
