"""Settings of clients, producers and consumers: name servers, identity, time-outs, limits; with Java's names and defaults.

Java: ClientConfig, NettyClientConfig, TlsSystemConfig, DefaultMQProducer, DefaultMQPushConsumer, DefaultLitePullConsumer.
Not supported: SOCKS proxies, heartbeats of version 2, automatic batches (autoBatch).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Set
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Literal

from spark_mq.client.allocation import Allocation, Averagely
from spark_mq.client.errors import ClientSettingError, TlsError
from spark_mq.remoting.consumers import ConsumeFromWhere, MessageModel
from storage import names
from storage.epoch_times import current_time_ms, other_unit_rule
from storage.errors import NameIllegalError
from storage.format.record import COMPRESSION_LEVEL, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from storage.rules.response_codes import ResponseCode
from storage.rules.topics import AUTO_CREATE_TOPIC

Compression = Literal["zlib", "lz4", "zstd"]
COMPRESSIONS: dict[str, int] = {"zlib": COMPRESSION_ZLIB, "lz4": COMPRESSION_LZ4, "zstd": COMPRESSION_ZSTD}
Encoding = Literal["JSON", "ROCKETMQ"]
MQ_CLIENT_API_TIMEOUT_MS = 3_000
"""A client's wait for an answer. Java: ClientConfig.mqClientApiTimeout."""
_QUESTION_TIMEOUTS = 2
_DEFAULT_INSTANCE_NAME = "DEFAULT"
_HIDDEN = "***"
_HALF_HOUR_MS = 30 * 60_000
MAX_RECONSUME_TIMES = 16
"""Tries after the first one of a concurrent consumer that names no number."""
_SEPARATOR = "%"
RETRIED_CODES: Set[int] = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals after which the client tries another broker. Java: DefaultMQProducer.retryResponseCodes."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """Credentials for signatures: ACL user (1.0 and 2.0), its secret, and a token if a security service gave one.

    Neither `repr` nor `str` shows a secret.
    """

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name):
                raise ClientSettingError(name, "", "it must not be empty")

    def __repr__(self) -> str:
        token = "" if self.security_token is None else f", security_token={_HIDDEN!r}"
        return f"Credentials(access_key={self.access_key!r}, secret_key={_HIDDEN!r}{token})"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS of a client. All files are PEM.

    With `verify` (the default) the server's certificate must be signed by `ca_file`, or by the system's authorities
    without one, and with `check_hostname` name the address. Java's client verifies neither by default; brokers in
    `tls.test.mode` make their own certificate at each start, which only `verify=False` takes.
    """

    verify: bool = True
    check_hostname: bool = True
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    server_hostname: str | None = None

    def context(self) -> ssl.SSLContext:
        """The SSL context of the sockets. Raises TlsError if a file is not readable."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        try:
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
            if self.cert_file is not None:
                # None as password would ask a terminal.
                context.load_cert_chain(self.cert_file, self.key_file, self.key_password or "")
        except (OSError, ssl.SSLError) as error:
            named = self.ca_file if self.cert_file is None else self.cert_file
            raise TlsError(str(named), f"the certificate or key cannot be read: {error}") from None
        if not self.verify or not self.check_hostname:
            context.check_hostname = False
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """All that clients of one instance share. Two equal settings in one process share one instance.

    `name_servers` are "host:port" texts; a single text with several (`a:9876;b:9876`) is split. `encoding` is that
    of the headers this client writes; what it reads says its own. Times are milliseconds.

    In place of `name_servers`, `namesrv_domain` names a web server that lists them (`address_server.py`).
    """

    name_servers: tuple[str, ...] = ()
    namespace: str | None = None
    instance_name: str = _DEFAULT_INSTANCE_NAME
    unit_name: str | None = None
    client_ip: str | None = None
    credentials: Credentials | None = None
    tls: TlsSettings | None = None
    connect_timeout_ms: int = 3_000
    request_timeout_ms: int = MQ_CLIENT_API_TIMEOUT_MS
    """For the answer to one request: routes, heartbeats, pulls beyond the time that a broker holds them. Java: mqClientApiTimeout."""
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000
    persist_consumer_offset_interval_ms: int = 5_000
    max_idle_ms: int = 120_000
    encoding: Encoding = "JSON"
    vip_channel_enabled: bool = False
    namesrv_domain: str | None = None
    """Host, or host:port (else 8080), of an HTTP address server. Java: system property rocketmq.namesrv.domain."""
    namesrv_domain_subgroup: str = "nsaddr"
    """Its page. Java: rocketmq.namesrv.domain.subgroup."""
    enable_trace: bool = False
    """Whether producers and consumers send traces of their messages to `trace_topic`."""
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    trace_batch_size: int = 10
    """Traces of a message; fewer leave after five seconds. Java: traceMsgBatchNum, at most 20."""

    def __post_init__(self) -> None:
        given = self.name_servers
        object.__setattr__(self, "name_servers", parse_addresses("name_servers", given))
        self._check_name_servers(given)
        try:
            names.validate_topic(self.trace_topic)
        except NameIllegalError as error:
            raise ClientSettingError("trace_topic", self.trace_topic, error.rule) from None
        _check_ranges(self, trace_batch_size=(1, 20))
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_ms") and not (isinstance(value, int) and value > 0):
                raise ClientSettingError(each.name, value, "it must be a whole number of milliseconds above 0")
        if self.encoding not in ("JSON", "ROCKETMQ"):
            raise ClientSettingError("encoding", self.encoding, "it must be JSON or ROCKETMQ")

    def _check_name_servers(self, given: object) -> None:
        domain = self.namesrv_domain
        if domain is None:
            if not self.name_servers:
                raise ClientSettingError("name_servers", given, "name at least one as host:port")
            return
        if self.name_servers:
            raise ClientSettingError("namesrv_domain", domain, "give this or name_servers, not both")
        split_address(domain if ":" in domain else f"{domain}:8080", "namesrv_domain")
        if re.fullmatch(r"[\w.~-]+", self.namesrv_domain_subgroup, re.ASCII) is None:
            rule = "it is a word of a URL: letters, digits, and _ - . ~"
            raise ClientSettingError("namesrv_domain_subgroup", self.namesrv_domain_subgroup, rule)

    @property
    def question_timeout_ms(self) -> int:
        """For the answer to a question about queues, topics, groups and messages, and to an operator's request: twice
        `request_timeout_ms`. Java: MQAdminImpl.timeoutMillis (6 s); DefaultMQAdminExt has 5 s, RemoteBrokerOffsetStore too.
        """
        return _QUESTION_TIMEOUTS * self.request_timeout_ms

    @property
    def has_own_name(self) -> bool:
        """Whether the user named the instance, rather than leave that to process id and clock."""
        return self.instance_name != _DEFAULT_INSTANCE_NAME


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer. Times are ms; a send's time-out is for all its tries together."""

    send_timeout_ms: int = 3_000
    max_try_timeout_ms: int | None = None
    """The most that one try may take while others are left. Java: sendMsgMaxTimeoutPerRequest."""
    retries: int = 2
    """Tries after the first, of a send that is waited for."""
    async_retries: int = 2
    """The same of one that is not, after network failures and 501."""
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
    template_topic: str = AUTO_CREATE_TOPIC
    """The topic whose settings a new topic gets. Java: createTopicKey."""
    default_queue_count: int = 4
    """Most queues of a new topic at each broker."""
    unit_mode: bool = False
    check_threads: int = 1
    """Settings of a transaction producer, which answers check-backs."""
    check_limit: int = 2_000
    """Check-backs that may wait; the broker asks those again that are dropped."""

    def __post_init__(self) -> None:
        _check_ranges(
            self,
            send_timeout_ms=(1, 2**31 - 1),
            retries=(0, 100),
            async_retries=(0, 100),
            compression_level=(0, 9),
            max_message_bytes=(1, 2**31 - 1),
            max_in_flight=(1, 2**31 - 1),
            max_in_flight_bytes=(1, 2**53),
            default_queue_count=(1, 65_535),
            check_threads=(1, 1_000),
            check_limit=(1, 2**31 - 1),
        )
        if self.compress_over_bytes is not None:
            _check_ranges(self, compress_over_bytes=(0, 2**31 - 1))
        if self.max_try_timeout_ms is not None:
            _check_ranges(self, max_try_timeout_ms=(1, 2**31 - 1))
        if self.compression not in COMPRESSIONS:
            raise ClientSettingError("compression", self.compression, f"it must be one of {', '.join(COMPRESSIONS)}")
        if self.when_full not in ("block", "refuse"):
            raise ClientSettingError("when_full", self.when_full, "it must be block or refuse")


class ConsumeFrom(Enum):
    """The start of a group without stored offsets."""

    LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits of one queue's waiting messages, above which pulling pauses.

    Java: pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan.
    """

    count: int = 1000
    size_mib: int = 100
    span: int | None = 2000
    """Between the first and the last offset; None (orderly) is no limit."""


def default_offset_directory() -> Path:
    """The directory of a broadcast's offsets, the same as of Java's clients. Java: LOCAL_OFFSET_STORE_DIR."""
    return Path.home() / ".rocketmq_offsets"


def _half_an_hour_ago() -> int:
    return current_time_ms() - _HALF_HOUR_MS


@dataclass(frozen=True, slots=True)
class PushSettings:
    """Settings of a push consumer. Times are ms. All clients of a group must agree on model, allocation and start."""

    model: MessageModel = MessageModel.CLUSTERING
    allocation: Allocation = field(default_factory=Averagely)
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """The start of a group without a stored offset."""
    consume_time_ms: int = field(default_factory=_half_an_hour_ago)
    """… with `ConsumeFrom.TIMESTAMP`."""
    thread_count: int = 20
    batch_size: int = 1
    """Messages of a listener's call, at most."""
    pull_limit: int = 32
    """Messages of a pull, at most; brokers give no more than 32 by default."""
    pull_limit_bytes: int = 262_144
    pull_interval_ms: int = 0
    queue_limit: int = 1_000
    """Messages that may wait in a queue before pulling pauses."""
    queue_limit_mib: int = 100
    span_limit: int = 2_000
    """Offsets between a queue's first unfinished message and its last (concurrent)."""
    max_reconsume_times: int | None = None
    """Tries after the first; None: 16 for a concurrent listener, for ever for an orderly one."""
    consume_timeout_ms: int = 15 * 60_000
    """A concurrent listener that takes longer loses the message to the next try."""
    suspend_ms: int = 1_000
    """Wait of an orderly queue after a failure."""
    sends_subscription: bool = False
    """Whether pulls carry the subscription, for groups whose clients subscribe differently. Java: postSubscriptionWhenPull."""
    offset_directory: Path | None = None
    """Where a broadcast keeps its offsets; None: where Java's clients keep theirs."""

    def __post_init__(self) -> None:
        _check_ranges(
            self,
            thread_count=(1, 1_000),
            batch_size=(1, 1_024),
            pull_limit=(1, 1_024),
            pull_limit_bytes=(1, 2**31 - 1),
            pull_interval_ms=(0, 65_535),
            queue_limit=(1, 65_535),
            queue_limit_mib=(1, 1_024),
            span_limit=(1, 65_535),
            consume_timeout_ms=(1, 2**53),
            suspend_ms=(0, 2**31 - 1),
            consume_time_ms=(0, 2**53),
        )
        _check_time(self.consume_time_ms)
        if self.max_reconsume_times is not None:
            _check_ranges(self, max_reconsume_times=(0, 2**31 - 1))

    def flow_limits(self, *, is_orderly: bool) -> FlowLimits:
        """Limits of one queue's waiting messages."""
        return FlowLimits(self.queue_limit, self.queue_limit_mib, None if is_orderly else self.span_limit)


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Settings of a pull consumer. Times are ms."""

    model: MessageModel = MessageModel.CLUSTERING
    allocation: Allocation = field(default_factory=Averagely)
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """The start of a group without a stored offset."""
    consume_time_ms: int = field(default_factory=_half_an_hour_ago)
    """… with `ConsumeFrom.TIMESTAMP`."""
    auto_commit: bool = True
    """Whether what is consumed is stored every now and then, by the calls of `poll`."""
    auto_commit_interval_ms: int = 5_000
    poll_limit: int = 500
    """Messages of a poll, at most."""
    pull_limit: int = 32
    """Messages of a pull, at most. Java's lite pull consumer asks for 10; brokers give no more than 32 by default."""
    buffer_limit: int = 10_000
    """Messages that may wait in all queues before pulling pauses."""
    queue_limit: int = 1_000
    queue_limit_mib: int = 100
    span_limit: int = 2_000
    """Offsets between a queue's first unfinished message and its last."""
    offset_directory: Path | None = None
    """Where a broadcast keeps its offsets; None: where Java's clients keep theirs."""

    def __post_init__(self) -> None:
        _check_ranges(
            self,
            auto_commit_interval_ms=(1, 2**53),
            poll_limit=(1, 2**31 - 1),
            pull_limit=(1, 1_024),
            buffer_limit=(1, 2**31 - 1),
            queue_limit=(1, 65_535),
            queue_limit_mib=(1, 1_024),
            span_limit=(1, 65_535),
            consume_time_ms=(0, 2**53),
        )
        _check_time(self.consume_time_ms)

    def flow_limits(self) -> FlowLimits:
        """Limits of one queue's waiting messages."""
        return FlowLimits(self.queue_limit, self.queue_limit_mib, self.span_limit)


def parse_addresses(setting: str, given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Addresses as "host:port" each, without doubles; a text may hold several between `;` or `,`.

    Raises ClientSettingError.
    """
    texts = [given] if isinstance(given, str) else list(given)
    found = [part.strip() for text in texts for part in re.split("[;,]", text) if part.strip()]
    for address in found:
        split_address(address, setting)
    return tuple(dict.fromkeys(found))


def split_address(address: str, setting: str = "address") -> tuple[str, int]:
    """Host and port of "host:port", as `storage.names` splits it. Raises ClientSettingError."""
    try:
        return names.split_address(address)
    except ValueError as rule:
        raise ClientSettingError(setting, address, str(rule)) from None


def check_kind(name: str, given: object, kind: type) -> None:
    """Raises ClientSettingError where an argument is of another kind; None is a default where there is one."""
    if not isinstance(given, kind) and not (given is None and name == "options"):
        example = f'{kind.__name__}("host:9876")' if kind is ClientSettings else f"{kind.__name__}(…)"
        raise ClientSettingError(name, given, f"it is {type(given).__name__}; give {example}")


def _check_ranges(settings: object, **ranges: tuple[int, int]) -> None:
    """Raises ClientSettingError where a setting is no whole number in its range, ends included."""
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ClientSettingError(name, value, f"it must be a whole number from {least} to {most}")


def _check_time(consume_time_ms: int) -> None:
    rule = other_unit_rule(consume_time_ms)
    if rule is not None:
        raise ClientSettingError("consume_time_ms", consume_time_ms, rule)


def with_namespace(namespace: str | None, name: str) -> str:
    """A topic's or group's name as brokers know it: `ns%topic`, with `%RETRY%` or `%DLQ%` in front of it all. Java: NamespaceUtil.

    A name that has the namespace already stays as it is, and so do those of system topics and groups. Brokers know nothing of
    namespaces: the names simply are longer.
    """
    if not namespace or not name or is_system_topic(name) or is_system_group(name):
        return name
    prefix, rest = _split(name)
    return name if rest.startswith(namespace + _SEPARATOR) else f"{prefix}{namespace}{_SEPARATOR}{rest}"


def without_namespace(namespace: str | None, name: str) -> str:
    """A topic's or group's name as the program knows it; as it is where it has another namespace or none."""
    if not namespace:
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + _SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
