"""Dead letters put into the topics that they came from, or into their group's retry topic, as new messages. No Spark:
`jobs/replay_dead_letters.py` says which, and `cluster_replay.py` does the same at running brokers.

A copy keeps body, tags, keys, unique key, flag, birth and the application's properties; what brokers and consumers noted on the
message goes, retries begin again. Its property REPLAYED_FROM is the dead letter's message id. It finds a copy in the log if a run
died before it noted the put.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.source.rows import PLAIN_BYTES, RowSource, arrow_schema, columns_named, to_record_batches
from storage import MessageStore
from storage.errors import MessageIllegalError, RowIllegalError
from storage.format.properties import decode_property_maps, is_reserved_name
from storage.format.record import COMPRESSED, COMPRESSION_ZLIB, compress, decode_offset_message_id
from storage.names import RETRY_PREFIX, dead_letter_topic, retry_topic
from storage.put.settings import PutOptions, message_rules
from storage.queues.scan import scan_queue
from storage.rules.inner_messages import InnerMessage
from storage.rules.retries import retry_queue_count, retry_topic_config

REPLAYED_FROM = "REPLAYED_FROM"
COMPRESS_OVER_BYTES = 4_096
"""Bodies from here on are compressed, as a client does: some were, and would be too large inflated."""
_LISTED = ("queue_id", "queue_offset", "msg_id", "unique_key", "origin_topic")
_READ = (
    "queue_offset",
    "msg_id",
    "body",
    "tags",
    "keys",
    "unique_key",
    "properties",
    "flag",
    "born_timestamp",
    "_corrupt",
)
_PUT = ("topic", "body", "tags", "keys", "unique_key", "properties", "flag", "born_timestamp")
_POP_RETRY_SEPARATORS = ("+", "_")
_KEPT = ("UNIQ_KEY", "TAGS", "KEYS", "__SHARDINGKEY")

Target = Literal["topic", "retry"]
"""The target of copies: the letter's original topic, for all its groups, or the retry topic of the group alone."""
TARGETS = get_args(Target)

PLANNED = "planned"
REPLAYED = "replayed"
REFUSED = "refused"
NOT_MADE = "not_made"
UNKNOWN = "unknown"
SETTLED = (REPLAYED, UNKNOWN)
"""Results that keep a dead letter from another replay."""


class DeadLetter(NamedTuple):
    """A message of a group's dead-letter topic, and its origin."""

    queue_id: int
    queue_offset: int
    msg_id: str
    unique_key: str | None
    origin_topic: str


class Outcome(NamedTuple):
    """The result for a dead letter."""

    letter: DeadLetter
    result: str
    reason: str | None = None
    new_msg_id: str | None = None


class OpenPlan(NamedTuple):
    """Dead letters that a run was about to replay when it ended, and has not said of what became of them."""

    run: str
    log_end: int
    """The log's end before the first of them."""
    letters: list[DeadLetter]


def list_letters(
    store: MessageStore, group: str, *, since_ms: int | None = None, until_ms: int | None = None
) -> list[DeadLetter]:
    """The group's dead letters that became such in [since_ms, until_ms), by queue and offset.

    `replay_audit.select_letters` is the same by Spark.
    """
    columns = columns_named(_LISTED, kafka=False)
    schema, topic = arrow_schema(columns), dead_letter_topic(group)
    found: list[DeadLetter] = []
    for queue_id in store.queue_ids(topic):
        offsets = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
        for source in _sources(store, topic, queue_id, offsets):
            times_ms = source.records.column("store_time_ms")
            wanted = np.ones(len(times_ms), bool)
            if since_ms is not None:
                wanted &= times_ms >= since_ms
            if until_ms is not None:
                wanted &= times_ms < until_ms
            source.take(wanted)
            for batch in to_record_batches(source, columns, schema):
                rows = zip(*(batch.column(name).to_pylist() for name in _LISTED), strict=True)
                found += [DeadLetter(*row) for row in rows]
    return found


def without_copies(store: MessageStore, group: str, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Those that the log holds no copy of. It says so for certain: a copy stands behind its letter, and so expires after it."""
    if not letters:
        return []
    first = min(decode_offset_message_id(letter.msg_id)[2] for letter in letters)
    copies = find_copies(store, targets_of(letters, group), {letter.msg_id for letter in letters}, first)
    return [letter for letter in letters if letter.msg_id not in copies]


def topic_of(origin_topic: str, group: str) -> str:
    """The topic that messages of `origin_topic` go back to: a pop consumer's retry topic stands for the topic behind its group's name.

    Java: KeyBuilder.parseNormalTopic.
    """
    for separator in _POP_RETRY_SEPARATORS:
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if origin_topic.startswith(prefix) and len(origin_topic) > len(prefix):
            return origin_topic[len(prefix) :]
    return origin_topic


def target_of(origin_topic: str, group: str, to: Target) -> str:
    """The topic for the copy of a letter from `origin_topic`. For a pop consumer's retry topic, that topic itself."""
    topic = topic_of(origin_topic, group)
    if to == "topic":
        return topic
    return retry_topic(group) if topic == origin_topic else origin_topic


def targets_of(letters: Iterable[DeadLetter], group: str) -> set[str]:
    """The topics where copies of letters may lie, whatever the options of earlier runs."""
    return {target_of(letter.origin_topic, group, to) for letter in letters for to in TARGETS}


def copied_properties(properties: Mapping[str, str], msg_id: str, origin: str | None) -> dict[str, str]:
    """What a copy of the dead letter of that id keeps: tags, keys, unique key and the application's own. With `origin`, of a copy that
    lies in a retry topic, the topic under which consumers are to get it.
    """
    kept = {name: text for name, text in properties.items() if name in _KEPT or not is_reserved_name(name)}
    return kept | {REPLAYED_FROM: msg_id} | ({} if origin is None else {"RETRY_TOPIC": origin})


def refused_topics(store: MessageStore, topics: Iterable[str]) -> dict[str, str]:
    """Those of the topics that no message may be put into, with the rule. The store is open for writing."""
    rules = message_rules(store.writer.settings, PutOptions(create_topic=False))
    refusals = {topic: rules.target(topic).refusal for topic in topics}
    return {topic: refusal for topic, refusal in refusals.items() if refusal is not None}


def replay(store: MessageStore, group: str, letters: Sequence[DeadLetter], to: Target = "topic") -> list[Outcome]:
    """Put copies of dead letters into the topics that they came from, or into the group's retry topic, and sync; the outcome of each,
    in their order.

    Rows are put by the rules of `put_batch`. One that no topic takes, that has expired, that is another message by now or whose body
    does not decompress is refused alone. They are put PLAIN_BYTES at a time: a few stored bytes may say gigabytes. A crash or an error
    leaves some of the copies in the log, the first ones: `find_copies` tells. Raises StoreNotWritableError, OSError.
    """
    targets = {letter: target_of(letter.origin_topic, group, to) for letter in letters}
    own = {topic for topic in targets.values() if to == "retry"}
    closed = refused_topics(store, set(targets.values()) - own) | _refused_retry_topics(store, group, own)
    outcomes = {letter: Outcome(letter, REFUSED, closed[topic]) for letter, topic in targets.items() if topic in closed}
    for found, rows in _read(store, group, [letter for letter in letters if letter not in outcomes]):
        topics = pa.array([targets[letter] for letter in found], pa.string())
        rows = rows.append_column("topic", topics)
        put = _put(store, found, rows) if to == "topic" else _put_again(store, group, found, rows)
        outcomes |= {outcome.letter: outcome for outcome in put}
    store.flush()
    gone = "it is not there any more"
    return [outcomes.get(letter) or Outcome(letter, REFUSED, gone) for letter in letters]


def _put(store: MessageStore, letters: list[DeadLetter], rows: pa.Table) -> Iterator[Outcome]:
    corrupt = rows.column("_corrupt").to_pylist()
    for letter, reason in zip(letters, corrupt, strict=True):
        if reason is not None:
            yield Outcome(letter, REFUSED, f"body: {reason}")
    letters = [letter for letter, reason in zip(letters, corrupt, strict=True) if reason is None]
    rows = rows.filter(pc.is_null(rows.column("_corrupt")))
    while letters:
        try:
            put = store.put_batch(
                rows.select(_PUT), create_topic=False, keep_unique_key=True, compress_body_over=COMPRESS_OVER_BYTES
            )
        except RowIllegalError as error:
            yield Outcome(letters[error.row], REFUSED, f"{error.column}: {error.rule}")
            keep = np.arange(len(letters)) != error.row
            rows, letters = rows.filter(pa.array(keep)), [*letters[: error.row], *letters[error.row + 1 :]]
            continue
        for letter, msg_id in zip(letters, put.column("msg_id").to_pylist(), strict=True):
            yield Outcome(letter, REPLAYED, None, msg_id)
        return


def _refused_retry_topics(store: MessageStore, group: str, topics: Iterable[str]) -> dict[str, str]:
    """The group's retry topic is made where it is missing, as consumers of it do. Those of pop consumers are theirs to make."""
    there = store.writer.settings.topics.topics
    refusals = {}
    for topic in topics:
        config = message_rules(store.writer.settings, PutOptions()).retries.group(group)
        if topic == retry_topic(group) and config is None:
            refusals[topic] = f"there is no consumer group {group!r}"
        elif topic != retry_topic(group) and topic not in there:
            refusals[topic] = f"there is no topic {topic!r}"
        elif config is not None and topic == retry_topic(group):
            made = store.make_topic(retry_topic_config(config, there))
            if not retry_queue_count(config, made):
                refusals[topic] = f"group {group!r} takes no retries (retryQueueNums)"
    return refusals


def _put_again(store: MessageStore, group: str, letters: list[DeadLetter], rows: pa.Table) -> Iterator[Outcome]:
    """Copies in retry topics, which consumers get as their first try of a message of the topic that it came from."""
    topics = store.writer.settings.topics.topics
    for number, (letter, row) in enumerate(zip(letters, rows.to_pylist(), strict=True)):
        if row["_corrupt"] is not None:
            yield Outcome(letter, REFUSED, f"body: {row['_corrupt']}")
            continue
        named = {"TAGS": row["tags"], "KEYS": " ".join(row["keys"] or ()), "UNIQ_KEY": row["unique_key"]}
        properties = {name: text for name, text in named.items() if text} | dict(row["properties"])
        body, sys_flag = row["body"], 0
        if len(body) >= COMPRESS_OVER_BYTES:
            body, sys_flag = compress(body, COMPRESSION_ZLIB), COMPRESSED | COMPRESSION_ZLIB
        copy = InnerMessage(
            topic=row["topic"],
            queue_id=number % topics[row["topic"]].write_queue_count,
            body=body,
            properties=copied_properties(properties, letter.msg_id, topic_of(letter.origin_topic, group)),
            flag=row["flag"],
            sys_flag=sys_flag,
            born_time_ms=int(row["born_timestamp"].timestamp() * 1_000),
        )
        try:
            (msg_id,) = store.put_inner([copy]).column("msg_id").to_pylist()
        except MessageIllegalError as error:
            yield Outcome(letter, REFUSED, error.describe())
        else:
            yield Outcome(letter, REPLAYED, None, msg_id)


def find_copies(
    store: MessageStore, topics: Iterable[str], msg_ids: Collection[str], since_commitlog_offset: int
) -> dict[str, str]:
    """The copies of dead letters that the topics hold from a place in the log on: their message ids by the dead letters'."""
    copies: dict[str, str] = {}
    wanted = pa.array(sorted(msg_ids), pa.string())
    for topic in topics:
        for queue_id in store.queue_ids(topic):
            queue = store.queues.get(topic, queue_id)
            if queue is None:
                continue
            start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            start += int(np.searchsorted(queue.entries(start, end)["commitlog_offset"], since_commitlog_offset))
            for part in scan_queue(queue, store.log, store.log_end, start, end):
                sources = decode_property_maps(part.records.raw_properties()).values_of(REPLAYED_FROM)
                rows = pc.is_in(sources, wanted)
                copies |= dict(
                    zip(
                        sources.filter(rows).to_pylist(),
                        part.records.message_ids().filter(rows).to_pylist(),
                        strict=True,
                    )
                )
    return copies


def _read(
    store: MessageStore, group: str, letters: Sequence[DeadLetter]
) -> Iterator[tuple[list[DeadLetter], pa.Table]]:
    """The letters that are still there, and beside each its row: as many at once as have PLAIN_BYTES together, or one part."""
    found: list[DeadLetter] = []
    batches: list[pa.RecordBatch] = []
    for of_batch, batch in _parts(store, group, letters):
        if batches and sum(one.nbytes for one in batches) + batch.nbytes > PLAIN_BYTES:
            yield found, pa.Table.from_batches(batches)
            found, batches = [], []
        found += of_batch
        batches.append(batch)
    if batches:
        yield found, pa.Table.from_batches(batches)


def _parts(
    store: MessageStore, group: str, letters: Sequence[DeadLetter]
) -> Iterator[tuple[list[DeadLetter], pa.RecordBatch]]:
    """The letters that are still there, part by part, and beside each its row, with REPLAYED_FROM among its properties."""
    columns = columns_named(_READ, kafka=False, permissive=True)
    schema = arrow_schema(columns)
    for queue_id, of_queue in groupby(sorted(letters), attrgetter("queue_id")):
        by_place = {(letter.queue_offset, letter.msg_id): letter for letter in of_queue}
        for source in _sources(store, dead_letter_topic(group), queue_id, {offset for offset, _ in by_place}):
            for batch in to_record_batches(source, columns, schema):
                places = zip(batch.column("queue_offset").to_pylist(), batch.column("msg_id").to_pylist(), strict=True)
                of_batch = [by_place.get(place) for place in places]
                kept = batch.filter(pa.array([letter is not None for letter in of_batch]))
                properties = with_property(kept.column("properties"), REPLAYED_FROM, kept.column("msg_id"))
                kept = kept.set_column(kept.schema.names.index("properties"), "properties", properties)
                yield [letter for letter in of_batch if letter is not None], kept


def _sources(store: MessageStore, topic: str, queue_id: int, offsets: Collection[int]) -> Iterator[RowSource]:
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return
    wanted = np.array(sorted(offsets))
    wanted = wanted[(wanted >= store.min_offset(topic, queue_id)) & (wanted < store.max_offset(topic, queue_id))]
    runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1)
    for run in runs:
        if len(run):
            for part in scan_queue(queue, store.log, store.log_end, int(run[0]), int(run[-1]) + 1):
                yield RowSource(part, topic, "", queue_id, all_properties=True, permissive=True)


def with_property(maps: pa.MapArray, name: str, values: pa.Array) -> pa.MapArray:
    """The maps with one entry more in each, in place of one of that name."""
    offsets = np.asarray(maps.offsets.to_numpy(), np.int64)
    names, texts = (
        maps.keys.slice(offsets[0], offsets[-1] - offsets[0]),
        maps.items.slice(offsets[0], offsets[-1] - offsets[0]),
    )
    keep = pc.not_equal(names, name).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(keep)))[offsets - offsets[0]]
    count, total = len(maps), int(offsets[-1])
    order = pa.array(np.insert(np.arange(total), offsets[1:], total + np.arange(count)))
    mask = pa.array(keep)
    return pa.MapArray.from_arrays(
        pa.array((offsets + np.arange(count + 1)).astype(np.int32)),
        pa.concat_arrays([names.filter(mask), pa.repeat(pa.scalar(name, names.type), count)]).take(order),
        pa.concat_arrays([texts.filter(mask), values.cast(texts.type)]).take(order),
    )
