"""Options as source and sink have them alike: how they are declared and parsed, and those that name a cluster of running brokers.

Each field of a dataclass declares one option. Its annotation holds an `Option`: the parser, the mode that it is valid in, and the line
of meaning that the documentation shows. Names are matched whatever their case (Spark lower-cases them). Unknown ones are refused with
the nearest known one: Spark hands a Python source its own options and nothing else.

Each parser takes (text, option name) and raises OptionError or OffsetJsonError. Durations and sizes are spelled as in Spark's
configuration (JavaUtils.timeStringAs, byteStringAs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from spark_mq.client.errors import ClientSettingError
from spark_mq.client.settings import MQ_CLIENT_API_TIMEOUT_MS, ClientSettings, Credentials, TlsSettings, parse_addresses
from spark_mq.conditions import OptionError, UnknownOptionError, names
from storage.epoch_times import other_unit_rule
from storage.files.remote import name_server, unexpanded_home
from storage.names import nearest

Mode = Literal["batch", "streaming"]
Guarantee = Literal["exactlyOnce", "atLeastOnce"]


class Option(NamedTuple):
    """The annotation that describes a field's option.

    `shown` is the default as the documentation spells it; that of a boolean need not be given.
    """

    parse: Callable[[str, str], Any]
    meaning: str
    mode: Mode | None = None
    shown: str = "-"
    guarantee: Guarantee | None = None
    """The one guarantee of a cluster's sink that it belongs to; a store has no choice of guarantees."""


class OptionRow(NamedTuple):
    """One line of an option table in the documentation; `mode` is "batch", "streaming" or "both"."""

    name: str
    default: str
    mode: str
    meaning: str


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    """Lower-case name → text. Raises OptionError where a name is given twice, or where Spark has dropped all options."""
    given: dict[str, str] = {}
    for name, text in options.items():
        if name.lower() in given:
            raise OptionError(name, "is given twice")
        given[name.lower()] = text
    if not given:  # also where a table is read or written
        raise OptionError(
            "path", f"no option is given: {_PLACE_AND_TOPIC}; a table of CREATE TABLE loses its options: {_NO_TABLE}"
        )
    if {"provider", "owner"} <= given.keys():  # a table is made
        raise OptionError(
            "path", f"Spark keeps a table's options from the source, for reading and writing alike: {_NO_TABLE}"
        )
    return given


_PLACE_AND_TOPIC = "give path (a store) or nameServer (a running cluster), and topic"
_NO_TABLE = "use CREATE TEMPORARY VIEW, or .option(…)"

NAMES_ELSEWHERE: Mapping[str, str] = {
    name: ours
    for ours, theirs in {
        "nameServer": "bootstrap.servers kafka.bootstrap.servers brokers namesrv namesrvAddr nameServers nameServerAddress "
        "rocketmq.namesrv.addr rocketmq.nameserver.address",
        "topic": "kafka.topic topicName",
        "subscribePattern": "topicsPattern topicPattern pattern",
        "consumerGroup": "group.id kafka.group.id groupId group groupIdPrefix",
        "startingOffsets": "auto.offset.reset kafka.auto.offset.reset",
        "commitOffsets": "enable.auto.commit kafka.enable.auto.commit",
        "maxOffsetsPerTrigger": "max.poll.records kafka.max.poll.records maxRowsPerTrigger maxFilesPerTrigger",
        "pullTimeout": "kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs",
        "acks": "kafka.acks",
        "tls": "kafka.security.protocol security.protocol",
        "accessKey": "kafka.sasl.jaas.config sasl.jaas.config kafka.sasl.mechanism sasl.mechanism",
        "batchBytes": "kafka.batch.size batch.size",
    }.items()
    for name in theirs.lower().split()
}
"""By the name that Spark's Kafka connector or a client of RocketMQ or Kafka has for it, our option."""

_NO_OPTION_HERE: Mapping[str, tuple[str, str]] = {
    "checkpointlocation": ("checkpointLocation", "it belongs to the query: .writeStream.option(…)"),
    "includeheaders": ("includeHeaders", "it is for reading; headers are written where rows have a column headers"),
}
"""Options that exist, and not here."""


def option_name(field_name: str) -> str:
    """The option that a field declares, as users write it."""
    first, *rest = field_name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class OptionTable:
    """The options that a dataclass declares; `refused` are names that have no meaning here, with the rule of each."""

    def __init__(self, declaring: type, refused: Mapping[str, str] = MappingProxyType({})) -> None:
        self._refused = {name.lower(): (name, rule) for name, rule in refused.items()}
        self._declared: dict[str, tuple[str, OptionRow, Option]] = {}
        hints = get_type_hints(declaring, include_extras=True)
        has_choice = "guarantee" in hints
        for each in fields(declaring):
            option: Option = hints[each.name].__metadata__[0]
            shown = str(each.default).lower() if isinstance(each.default, bool) else option.shown
            meaning = f"{option.guarantee}: {option.meaning}" if has_choice and option.guarantee else option.meaning
            row = OptionRow(option_name(each.name), shown, option.mode or "both", meaning)
            self._declared[row.name.lower()] = (each.name, row, option)

    def rows(self) -> list[OptionRow]:
        """The documentation's table, in the order of declaration."""
        return [row for _, row, _ in self._declared.values()]

    def of_guarantee(self, guarantee: Guarantee) -> Iterator[tuple[str, str]]:
        """Field and option of those that belong to one guarantee alone."""
        return ((field, row.name) for field, row, option in self._declared.values() if option.guarantee == guarantee)

    def _unknown(self, name: str) -> OptionError | UnknownOptionError:
        if name in _NO_OPTION_HERE:
            return OptionError(*_NO_OPTION_HERE[name])
        return UnknownOptionError(name, NAMES_ELSEWHERE.get(name) or nearest(name, [row.name for row in self.rows()]))

    def parse(self, given: Mapping[str, str], mode: Mode | None) -> dict[str, Any]:
        """Field → value of what is given, by lower-case name; with a `mode` also refuses what has no meaning in it."""
        parsed: dict[str, Any] = {}
        for name, text in given.items():
            if name in self._refused:
                raise OptionError(*self._refused[name])
            if name not in self._declared:
                raise self._unknown(name)
            field_name, row, option = self._declared[name]
            if mode is not None and option.mode not in (None, mode):
                raise OptionError(row.name, f"is for {option.mode} queries only, this is a {mode} query")
            parsed[field_name] = option.parse(text, row.name)
        return parsed


# Texts

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1

# In microseconds, the finest unit; a bare number is ms, as where Spark reads maxTriggerDelay.
_DURATION_UNITS = {
    "us": 1,
    "ms": 1_000,
    "": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_SIZE_UNITS = {"": 1, "b": 1} | {
    unit + suffix: 1024**power for power, unit in enumerate("kmgtp", start=1) for suffix in ("", "b")
}


def parse_text(text: str, option: str) -> str:
    if not text.strip():
        raise OptionError(option, "is empty")
    return text.strip()


def parse_path(text: str, option: str) -> str:
    parse_text(text, option)
    if rule := unexpanded_home(text):
        raise OptionError(option, f"{text}: {rule}")
    return text  # a path may begin or end with a blank


def parse_store_path(text: str, option: str) -> str:
    """A path, and not the address of a name server."""
    if rule := name_server(text):
        raise OptionError(option, f"{text}: {rule}; a directory of that name is ./{text}")
    return parse_path(text, option)


def parse_comma_list(text: str, option: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise OptionError(option, f"expected names separated by commas, found {text!r}")
    return parts


def parse_boolean(text: str, option: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(option, f"expected true or false, found {text!r}")
    return text.strip().lower() == "true"


def parse_positive_long(text: str, option: str, greatest: int = MAX_LONG) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or not 1 <= int(text) <= greatest:
        raise OptionError(option, f"expected a whole number from 1 to {greatest}, found {text!r}")
    return int(text)


def parse_positive_int(text: str, option: str) -> int:
    return parse_positive_long(text, option, MAX_INT)


def parse_duration_ms(text: str, option: str) -> int:
    """`15m`, `500ms`; a number alone is ms, what is finer than a ms is cut off."""
    return _quantity(text, option, _DURATION_UNITS, "15m") // 1000


def parse_size_bytes(text: str, option: str) -> int:
    """`64m`, `1gb`, in powers of 1024; a number alone is bytes."""
    size = _quantity(text, option, _SIZE_UNITS, "64m")
    if not 1 <= size <= MAX_LONG:
        raise OptionError(option, f"expected from 1 to {MAX_LONG} bytes, found {text!r}")
    return size


class TimePoint(NamedTuple):
    """A time in ms since the epoch, or, if `before_now`, that many ms before the query starts.

    A relative time gives another result at each call: call once and keep the result.
    """

    ms: int
    before_now: bool = False

    def at(self, now_ms: int) -> int:
        return max(now_ms - self.ms, 0) if self.before_now else self.ms


def parse_time(text: str, option: str) -> TimePoint:
    """ms since the epoch | `-10m`: so long before the query starts | ISO-8601, UTC unless it says otherwise.

    Digits alone are always ms, never ISO's basic form of a date.
    """
    text = parse_text(text, option)
    if re.fullmatch(r"[0-9]+", text):
        if len(text) > 19 or int(text) > MAX_LONG:
            raise OptionError(option, f"{text} is greater than {MAX_LONG}")
        if rule := other_unit_rule(int(text)):
            raise OptionError(option, rule)
        return TimePoint(int(text))
    if re.fullmatch(r"-[0-9]+[A-Za-z]+", text):
        return TimePoint(parse_duration_ms(text[1:], option), before_now=True)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        rule = "expected ms since the epoch, an ISO-8601 time (2026-01-31T10:00:00Z) or a time ago (-10m)"
        raise OptionError(option, f"{rule}, found {text!r}") from error
    since_epoch = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    if since_epoch < timedelta(0):
        raise OptionError(option, f"{text!r} lies before 1970")
    return TimePoint(since_epoch // timedelta(milliseconds=1))


def _quantity(text: str, option: str, units: Mapping[str, int], example: str) -> int:
    found = re.fullmatch(r"([0-9]{1,19})([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units:
        known = names(unit for unit in units if unit)
        raise OptionError(option, f"expected a number and a unit ({known}), such as {example}; found {text!r}")
    return int(found[1]) * units[found[2]]


# A cluster of running brokers

_TLS_OPTIONS = ("tls_ca_file", "tls_cert_file", "tls_key_file", "tls_key_password", "tls_server_name")
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,255}")


def parse_name_servers(text: str, option: str) -> tuple[str, ...]:
    """`host:port`, several between `;` or `,`."""
    try:
        addresses = parse_addresses(option, text)
    except ClientSettingError as error:
        raise OptionError(option, f"{error.value}: {error.rule}") from None
    if not addresses:
        raise OptionError(option, "name at least one as host:port")
    return addresses


def parse_request_timeout(text: str, option: str) -> int:
    """Longest wait for an answer, in ms. Longer than 0."""
    timeout_ms = parse_duration_ms(text, option)
    if timeout_ms <= 0:
        raise OptionError(option, "must be longer than 0")
    return timeout_ms


def parse_secret(text: str, option: str) -> str:
    """Any text but an empty one; never repeated in an error."""
    if not text:
        raise OptionError(option, "is empty")
    return text


def parse_namespace(text: str, option: str) -> str:
    if not _NAMESPACE.fullmatch(text.strip()):
        raise OptionError(option, f"expected letters, digits, - and _, found {text!r}")
    return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options for a running cluster, for source and sink; `name_server` is empty for a store."""

    name_server: Annotated[
        tuple[str, ...],
        Option(parse_name_servers, "name servers of a running cluster, in place of path: `host:9876;host2:9876`"),
    ] = ()
    namespace: Annotated[
        str | None,
        Option(parse_namespace, "prefix of topic and consumerGroup names at the brokers: `ns%topic`"),
    ] = None
    access_key: Annotated[str | None, Option(parse_text, "the user that signs requests (ACL)")] = None
    secret_key: Annotated[str | None, Option(parse_secret, "the user's secret; never shown")] = field(
        default=None, repr=False
    )
    security_token: Annotated[str | None, Option(parse_secret, "the token of a security service; never shown")] = field(
        default=None, repr=False
    )
    tls: Annotated[bool, Option(parse_boolean, "use TLS with name servers and brokers")] = False
    tls_verify: Annotated[
        bool,
        Option(
            parse_boolean,
            "check certificate and host name; false accepts any server, as Java's client does by default",
        ),
    ] = True
    tls_ca_file: Annotated[
        str | None,
        Option(parse_path, "certificates (PEM) of the authorities to trust", shown="the system's"),
    ] = None
    tls_cert_file: Annotated[str | None, Option(parse_path, "the client's own certificate (PEM)")] = None
    tls_key_file: Annotated[str | None, Option(parse_path, "its key (PEM)")] = None
    tls_key_password: Annotated[str | None, Option(parse_secret, "the key's password; never shown")] = field(
        default=None, repr=False
    )
    tls_server_name: Annotated[
        str | None,
        Option(parse_text, "the name in the servers' certificates", shown="the address"),
    ] = None
    request_timeout: Annotated[
        int,
        Option(
            parse_request_timeout,
            "how long to wait for an answer (Java: mqClientApiTimeout); twice as long for requests about queues, "
            "topics and groups. Raise it on a busy machine",
            shown=f"{MQ_CLIENT_API_TIMEOUT_MS // 1000}s",
        ),
    ] = MQ_CLIENT_API_TIMEOUT_MS

    @property
    def is_live(self) -> bool:
        """Whether it is a running cluster, and no store."""
        return bool(self.name_server)

    def check_access(self) -> None:
        """Raises OptionError for keys and options of TLS that do not belong together."""
        if (self.access_key is None) != (self.secret_key is None):
            raise OptionError("secretKey", "give accessKey and secretKey together")
        if self.security_token is not None and self.access_key is None:
            raise OptionError("securityToken", "needs accessKey and secretKey")
        if not self.tls and (not self.tls_verify or any(getattr(self, name) is not None for name in _TLS_OPTIONS)):
            raise OptionError("tls", "options that begin with tls need tls=true")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise OptionError("tlsKeyFile", "give tlsCertFile and tlsKeyFile together")

    def client_settings(self) -> ClientSettings:
        """The settings of the client. Raises TlsError where a file of TLS cannot be read."""
        credentials = tls = None
        if self.access_key is not None and self.secret_key is not None:
            credentials = Credentials(self.access_key, self.secret_key, self.security_token)
        if self.tls:
            tls = TlsSettings(
                verify=self.tls_verify,
                check_hostname=self.tls_verify,
                ca_file=self.tls_ca_file,
                cert_file=self.tls_cert_file,
                key_file=self.tls_key_file,
                key_password=self.tls_key_password,
                server_hostname=self.tls_server_name,
            )
        return ClientSettings(
            self.name_server,
            namespace=self.namespace,
            credentials=credentials,
            tls=tls,
            request_timeout_ms=self.request_timeout,
        )

    def to_options(self) -> dict[str, str]:
        """The same as Spark's source takes it: what is given, by option."""
        found = {}
        for each in fields(ClusterOptions):
            value = getattr(self, each.name)
            if value != each.default and value is not None:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                found[option_name(each.name)] = ";".join(value) if isinstance(value, tuple) else text
        return found
