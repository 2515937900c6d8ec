"""The first offset of a queue that is not older than a time, from a guess that may be wrong. Pure.

Brokers search for a time themselves. Releases before 5.0 give the nearest message, any of those of one millisecond, and begin in the
file that the files' own times lead to, which copies do not keep. So their answer is where the search begins, and mostly ends.

Java: MessageStore.getOffsetInQueueByTime, ConsumeQueue of 4.9.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache


def first_not_older(
    timestamp_ms: int, guess: int, minimum: int, maximum: int, time_of: Callable[[int], int | None]
) -> int:
    """The first offset of [minimum, maximum) that is not older; `maximum` where all are.

    `time_of` tells the store time of the first message at or behind an offset, None where there is none. It is asked twice where the
    guess is right, and twice the logarithm of the distance where it is not.
    """

    @cache
    def is_older(offset: int) -> bool:
        time_ms = time_of(offset) if offset < maximum else None
        return time_ms is not None and time_ms < timestamp_ms

    low, high, step = minimum, maximum, 1
    probe = min(max(guess, minimum), maximum)
    if is_older(probe):
        while probe < maximum and is_older(probe):
            low, probe, step = probe + 1, min(probe + step, maximum), 2 * step
        high = probe
    else:
        while probe > minimum and not is_older(max(probe - step, minimum)):
            probe, step = max(probe - step, minimum), 2 * step
        low, high = (max(probe - step, minimum) + 1 if probe > minimum else minimum), probe
    while low < high:
        middle = (low + high) // 2
        if is_older(middle):
            low = middle + 1
        else:
            high = middle
    return low
