"""How a producer behaves. Java: DefaultMQProducer, ClientConfig; the same defaults, names in our spelling.

Not supported: automatic batches (autoBatch), trace messages, request and reply, SOCKS.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from spark_mq.client.errors import ClientSettingError
from spark_mq.client.routes import DEFAULT_TOPIC
from spark_mq.client.send_retries import RETRIED_CODES
from spark_mq.client.settings import check_range
from storage.format.record import COMPRESSION_LEVEL, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD

Compression = Literal["zlib", "lz4", "zstd"]
COMPRESSIONS: dict[str, int] = {"zlib": COMPRESSION_ZLIB, "lz4": COMPRESSION_LZ4, "zstd": COMPRESSION_ZSTD}


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Of a producer. Times are ms; a send's time-out is for all its tries together."""

    send_timeout_ms: int = 3_000
    max_try_timeout_ms: int | None = None
    """The most that one try may take while others are left. Java: sendMsgMaxTimeoutPerRequest."""
    retries: int = 2
    """Tries after the first, of a send that is waited for."""
    async_retries: int = 2
    """The same of one that is not, after network failures."""
    retried_codes: Set[int] = RETRIED_CODES
    """After which refusals a send that is waited for tries another broker."""
    retries_unless_ok: bool = False
    """Whether a message that is stored with another status than SEND_OK is sent once more, to another broker: a double.
    Java: retryAnotherBrokerWhenNotStoreOK."""
    compress_over_bytes: int | None = 4_096
    """Bodies of so many bytes and more are compressed; None: none is. Batches never are."""
    compression: Compression = "zlib"
    compression_level: int = COMPRESSION_LEVEL
    max_message_bytes: int = 4 << 20
    """The largest body, before it is compressed; of a batch all its messages together."""
    avoids_slow_brokers: bool = False
    """Java: sendLatencyEnable."""
    max_in_flight: int = 10_000
    """Messages that wait for their answers, at most. Java: backPressureForAsyncSendNum, which is off by default."""
    max_in_flight_bytes: int = 100 << 20
    when_full: Literal["block", "refuse"] = "block"
    """Whether `send_async` waits for room (at most the send's time-out) or raises TooManyInFlightError at once."""
    template_topic: str = DEFAULT_TOPIC
    """What a topic is made after that is not there. Java: createTopicKey."""
    default_queue_count: int = 4
    """How many queues such a topic gets a broker, at most."""
    unit_mode: bool = False
    check_threads: int = 1
    """Of a transaction producer: who answers check-backs."""
    check_limit: int = 2_000
    """Check-backs that may wait; the broker asks those again that are dropped."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("send_timeout_ms", 1, 2**31 - 1),
            ("retries", 0, 100),
            ("async_retries", 0, 100),
            ("compression_level", 0, 9),
            ("max_message_bytes", 1, 2**31 - 1),
            ("max_in_flight", 1, 2**31 - 1),
            ("max_in_flight_bytes", 1, 2**53),
            ("default_queue_count", 1, 65_535),
            ("check_threads", 1, 1_000),
            ("check_limit", 1, 2**31 - 1),
        ):
            check_range(self, name, least, most)
        if self.compress_over_bytes is not None:
            check_range(self, "compress_over_bytes", 0, 2**31 - 1)
        if self.max_try_timeout_ms is not None:
            check_range(self, "max_try_timeout_ms", 1, 2**31 - 1)
        if self.compression not in COMPRESSIONS:
            raise ClientSettingError("compression", self.compression, f"it must be one of {', '.join(COMPRESSIONS)}")
        if self.when_full not in ("block", "refuse"):
            raise ClientSettingError("when_full", self.when_full, "it must be block or refuse")
