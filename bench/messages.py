"""The messages that every peer holds: message `i` is the same in Kafka and in RocketMQ.

    body   bodies(...)[i % DISTINCT_BODIES], 1 KiB of JSON
    key    "order-<i>"
    tag    TAGS[i // 7 % len(TAGS)], in RocketMQ only
    queue  (i // BATCH_MESSAGES) % QUEUES, so that a producer's batch lies in one queue; where sinks write, they choose

A RocketMQ message that is to be read has two properties besides (LoadRocketMQ.java, which makes the same key and tag).
Kafka's has no headers, which its source shows only when asked.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence

TOPIC = "orders"
QUEUES = 4
TAGS = ("placed", "paid", "shipped", "returned")
BATCH_MESSAGES = 32
BODY_SIZE_BYTES = 1024
DISTINCT_BODIES = 4096  # 4 MiB: more than a processor's near caches hold


def key_of(number: int) -> str:
    """The key of message `number` (LoadRocketMQ.java makes the same)."""
    return f"order-{number}"


def bodies() -> list[bytes]:
    """DISTINCT_BODIES orders as JSON, each of BODY_SIZE_BYTES bytes, the same in every run."""
    source = random.Random(0)
    return [_body(source) for _ in range(DISTINCT_BODIES)]


def _body(source: random.Random) -> bytes:
    order = {
        "customer": source.randrange(10**9),
        "placed": f"2025-{source.randint(1, 12):02}-{source.randint(1, 28):02}",
        "lines": [_line(source) for _ in range(source.randint(2, 12))],
        "note": "",
    }
    text = json.dumps(order)
    order["note"] = f"{source.getrandbits(4096):01024x}"[: BODY_SIZE_BYTES - len(text)]
    return json.dumps(order).encode("ascii")


def _line(source: random.Random) -> dict[str, str | int]:
    article, count, cents = source.getrandbits(40), source.randint(1, 9), source.randrange(10**5)
    return {"article": f"{article:010x}", "count": count, "cents": cents}


def crc_sum(distinct: Sequence[bytes], messages: int) -> int:
    """Sum of the CRC-32 of the bodies of messages 0 … `messages` - 1, where `distinct` is `bodies()`."""
    crcs = [zlib.crc32(body) for body in distinct]
    rounds, rest = divmod(messages, len(crcs))
    return rounds * sum(crcs) + sum(crcs[:rest])


def expected_sums(messages: int) -> tuple[int, int, int]:
    """Number, bytes of bodies and sum of their CRC-32, of messages 0 … `messages` - 1."""
    return messages, messages * BODY_SIZE_BYTES, crc_sum(bodies(), messages)
