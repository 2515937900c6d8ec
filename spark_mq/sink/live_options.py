"""Options of the sink that sends to running brokers: `nameServer` in place of `path`. Parsed and checked once, at construction.

How the cluster is reached is said as for the source (`spark_mq/source/cluster_options.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from spark_mq.conditions import OptionError
from spark_mq.option_table import Mode, Option, OptionRow, OptionTable, given_options
from spark_mq.remoting.frames import MOST_BODY_BYTES
from spark_mq.sink.options import (
    CompressBodyOver,
    KeepUniqueKey,
    OneTopic,
    OnInvalidRow,
    StrictProperties,
    WriteToSource,
    check_dead_letters,
    check_send_back,
    one_of,
    parse_group,
    parse_on_invalid_row,
    parse_sink_id,
    parse_times,
)
from spark_mq.source import option_values as values
from spark_mq.source.cluster_options import ClusterOptions
from storage.files.remote import absolute_path, only_for_reading, plain_path
from storage.rules.sizes import MAX_MESSAGE_SIZE

Guarantee = Literal["exactlyOnce", "atLeastOnce"]
Acks = Literal["stored", "all"]

DEFAULT_GROUP = "SPARK_MQ_SINK"
MOST_BATCH_BYTES = MAX_MESSAGE_SIZE
"""What brokers take by default. Java: MessageExtEncoder.encode(MessageExtBatch)."""
_STAGING_SUFFIX = ".spark_mq"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_OF_STORES = "is for stores (path), and has no meaning with nameServer"


def parse_guarantee(text: str, option: str) -> str:
    return one_of(text, option, get_args(Guarantee))


def parse_acks(text: str, option: str) -> str:
    return one_of(text, option, get_args(Acks))


def parse_batch_bytes(text: str, option: str) -> int:
    """A request's size; brokers answer a larger one with an error that says nothing of it, each time it is sent."""
    size = values.parse_size_bytes(text, option)
    if size > MOST_BATCH_BYTES:
        raise OptionError(option, f"a broker takes up to {MOST_BATCH_BYTES >> 20}m (maxMessageSize), found {text!r}")
    return size


def parse_message_size(text: str, option: str) -> int:
    """The largest body; of a larger one no frame would come through."""
    size = values.parse_size_bytes(text, option)
    if size > MOST_BODY_BYTES:
        raise OptionError(option, f"a frame of 16m carries bodies of up to {MOST_BODY_BYTES} bytes, found {text!r}")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSinkOptions(ClusterOptions):
    """How rows are to be sent. `parse` makes it and refuses what makes no sense."""

    topic: OneTopic = None
    write_to_source: WriteToSource = False
    create_topic: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "rows of a topic without a route go to the queues of TBW102, whose brokers make the topic (autoCreateTopicEnable); "
            "else they are invalid",
            shown="true",
        ),
    ] = True
    guarantee: Annotated[
        Guarantee | None,
        Option(
            parse_guarantee,
            "exactlyOnce or atLeastOnce",
            shown="exactlyOnce where there is a staging directory (df.write: and a writeId); else atLeastOnce (df.write), or an error "
            "(streaming)",
        ),
    ] = None
    staging_path: Annotated[
        str | None,
        Option(
            values.parse_path,
            "exactlyOnce: a directory that driver and workers share, for rows that are not sent yet and for what was",
            shown=f"streaming: the checkpointLocation with {_STAGING_SUFFIX} behind its name, where that is a local path",
        ),
    ] = None
    acks: Annotated[
        Acks,
        Option(
            parse_acks,
            "all: an answer that the message is stored, but not flushed or replicated as the broker is configured, is an error; "
            "stored: it counts",
            shown="all",
        ),
    ] = "all"
    producer_group: Annotated[
        str,
        Option(
            parse_group,
            "atLeastOnce: the producer group of the sends; with transactional whom a broker asks back about all rows; it comes before "
            "the column producer_group",
            shown=DEFAULT_GROUP,
        ),
    ] = DEFAULT_GROUP
    send_timeout: Annotated[
        int, Option(values.parse_duration_ms, "how long the answer to one request is waited for", shown="10s")
    ] = 10_000
    retry_timeout: Annotated[
        int,
        Option(
            values.parse_duration_ms,
            "how long a batch of rows, or a question of a commit, is tried again while its broker is away (frozen, restarted, moved) "
            "or refuses it for a while",
            shown="2m",
        ),
    ] = 120_000
    fence_timeout: Annotated[
        int,
        Option(
            values.parse_duration_ms,
            "exactlyOnce: how long a commit waits for a broker that must say what became of an attempt before",
            shown="2m",
        ),
    ] = 120_000
    lock_timeout: Annotated[
        int,
        Option(
            values.parse_duration_ms,
            "exactlyOnce: how long to wait for another process that commits for the same sink",
            shown="60s",
        ),
    ] = 60_000
    batch_bytes: Annotated[
        int,
        Option(
            parse_batch_bytes,
            "how large a request may be, up to `4m` and to what its broker takes; a larger row goes alone",
            shown="512k",
        ),
    ] = 512 << 10
    max_message_size: Annotated[
        int | None,
        Option(
            parse_message_size,
            "the largest body as stored, where it is lower than the brokers' own maxMessageSize, or where they do not say theirs",
            shown="the brokers'; 4m of one that does not say it",
        ),
    ] = None
    compress_body_over: CompressBodyOver = None
    keep_unique_key: KeepUniqueKey = False
    strict_properties: StrictProperties = False
    on_invalid_row: Annotated[
        OnInvalidRow,
        Option(
            parse_on_invalid_row,
            "atLeastOnce: fail the write, or deadLetter: put such rows aside and go on",
            shown="fail",
        ),
    ] = "fail"
    dead_letter_path: Annotated[
        str | None,
        Option(
            values.parse_path,
            "atLeastOnce: a directory that driver and workers share, for invalid rows, as Parquet with their error",
        ),
    ] = None
    transactional: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "atLeastOnce: rows are transactions: each is sent as a half message, and ended as its transaction_state says when all rows "
            "of its task are stored",
            shown="false",
        ),
    ] = False
    send_back: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "atLeastOnce: rows are messages of these brokers that consumers failed on: each broker puts its own into the group's retry "
            "topic, or into its dead letters",
            shown="false",
        ),
    ] = False
    consumer_group: Annotated[str | None, Option(parse_group, "with sendBack: whose consumers failed")] = None
    max_reconsume_times: Annotated[
        int | None,
        Option(
            parse_times,
            "with sendBack or retry_group: how often a message is tried again before it becomes a dead letter",
            shown="the group's retryMaxTimes",
        ),
    ] = None
    write_id: Annotated[
        str | None,
        Option(parse_sink_id, "exactlyOnce: the name of this write; a second one of that name writes nothing", "batch"),
    ] = None
    sink_id: Annotated[
        str | None,
        Option(
            parse_sink_id,
            "exactlyOnce: the name under which the staging directory keeps what was sent",
            "streaming",
            "the query's id",
        ),
    ] = None
    sink_takeover: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "exactlyOnce: pass over batches that another run of the query has sent, or this one with other rows: no broker gets the "
            "rows that they bring now",
            "streaming",
            "false",
        ),
    ] = False

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode) -> LiveSinkOptions:
        """Parse and check; the guarantee and the staging directory are settled then. Raises UnknownOptionError or OptionError."""
        given = given_options(options)
        checkpoint = given.pop("checkpointlocation", None) if mode == "streaming" else None
        if mode == "streaming":
            given.pop("queryname", None)
        if "path" in given:
            raise OptionError("path", "give the store to write, or the cluster: one of path and nameServer")
        parsed = _TABLE.parse(given, mode)
        if "staging_path" not in parsed and parsed.get("guarantee") != "atLeastOnce":
            found = None if checkpoint is None else staging_beside(checkpoint)
            if found is not None:
                parsed["staging_path"] = found
        if "staging_path" in parsed:
            if rule := only_for_reading(parsed["staging_path"]):
                raise OptionError("stagingPath", f"{parsed['staging_path']}: {rule}")
            parsed["staging_path"] = plain_path(absolute_path(parsed["staging_path"])).rstrip("/") or "/"
        if parsed.get("guarantee") is None:
            parsed["guarantee"] = _default_guarantee(parsed, mode)
        if "dead_letter_path" in parsed:
            parsed["dead_letter_path"] = absolute_path(parsed["dead_letter_path"])
        made = cls(**parsed)
        made.check_access()
        made._check_guarantee(mode)
        check_dead_letters(made.on_invalid_row, made.dead_letter_path)
        check_send_back(made)
        return made

    @property
    def is_exact(self) -> bool:
        """Whether each row is sent exactly once."""
        return self.guarantee == "exactlyOnce"

    def _check_guarantee(self, mode: Mode) -> None:
        if not self.is_exact:
            for option, is_given in (
                ("stagingPath", self.staging_path is not None),
                ("writeId", self.write_id is not None),
                ("sinkId", self.sink_id is not None),
                ("sinkTakeover", self.sink_takeover),
            ):
                if is_given:
                    raise OptionError(option, "belongs to guarantee=exactlyOnce")
            return
        if self.staging_path is None:
            rule = "exactlyOnce needs a directory that driver and workers share; give one, or guarantee=atLeastOnce"
            raise OptionError("stagingPath", rule)
        if mode == "batch" and self.write_id is None:
            raise OptionError("writeId", "exactlyOnce needs it: a job that is run again is known by it")
        if self.producer_group != DEFAULT_GROUP:
            raise OptionError(
                "producerGroup", "belongs to guarantee=atLeastOnce; exactlyOnce has a group for each attempt"
            )
        for option, is_given, why in (
            ("transactional", self.transactional, "a half message lies in a system topic, where no row is looked for"),
            ("sendBack", self.send_back, "what was sent back cannot be told from what another consumer sends back"),
            ("onInvalidRow", self.on_invalid_row != "fail", "an invalid row fails the write"),
            ("deadLetterPath", self.dead_letter_path is not None, "an invalid row fails the write"),
        ):
            if is_given:
                raise OptionError(option, f"belongs to guarantee=atLeastOnce; with exactlyOnce {why}")


def local_checkpoint(checkpoint: str) -> str | None:
    """The directory of a local checkpoint; None for one that is elsewhere."""
    path = plain_path(checkpoint)
    if path == checkpoint and path.startswith("file:/"):  # as Hadoop writes it
        path = path.removeprefix("file:")
    return None if _SCHEME.match(path) else path.rstrip("/")


def staging_beside(checkpoint: str) -> str | None:
    """The staging directory that belongs to a local checkpoint; None for one that is elsewhere."""
    directory = local_checkpoint(checkpoint)
    return None if directory is None else directory + _STAGING_SUFFIX


def _default_guarantee(parsed: Mapping[str, object], mode: Mode) -> Guarantee:
    if mode == "streaming":
        if "staging_path" not in parsed:
            rule = "give it for exactly once (a directory that driver and workers share), or say guarantee=atLeastOnce"
            raise OptionError("stagingPath", f"there is none, and no local checkpointLocation to put it beside: {rule}")
        return "exactlyOnce"
    return "exactlyOnce" if "staging_path" in parsed and "write_id" in parsed else "atLeastOnce"


_NOT_FOR_CLUSTERS = {
    "conf": f"{_OF_STORES}: a broker of a cluster knows its own settings",
    "brokerName": f"{_OF_STORES}: the name servers know the brokers' names",
    "storeHost": _OF_STORES,
    "rocketmqVersion": _OF_STORES,
    "flushDiskType": f"{_OF_STORES}: how brokers flush is their own setting; see acks",
    "queueNum": f"{_OF_STORES}: make topics with their queues by mqadmin updateTopic",
}
_TABLE = OptionTable(LiveSinkOptions, _NOT_FOR_CLUSTERS)


def live_sink_option_rows() -> list[OptionRow]:
    """The option table of docs/live.md, in the order of declaration."""
    return _TABLE.rows()
