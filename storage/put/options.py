"""What the user of a put says of its rows, and with what the store says the rules for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.put.settings import PutSettings
from storage.rules.half_messages import TransactionRules
from storage.rules.retries import RetryRules
from storage.rules.row_rules import MessageRules


@dataclass(frozen=True, slots=True)
class PutOptions:
    """What the user of a put, or of the sink, says of its rows: the keywords of `put_batch`."""

    topic: str | None = None
    """Where all rows go, whatever they name; None = each goes where its column says."""
    queue_count: int | None = None
    """Queues of a topic that is made, unless rows name more; None = its template's, which are `defaultTopicQueueNums`. A given one
    also allows a topic that is there to get as many, where rows name them."""
    growing: frozenset[str] = frozenset()
    """Topics that are there and get the queues that rows name, as if they were created."""
    create_topic: bool | None = None
    """Whether missing topics are made; None = as `autoCreateTopicEnable` says."""
    compress_body_over: int | None = None
    """Bodies of at least so many bytes are compressed, as a Java client does (compressMsgBodyOverHowmuch)."""
    keep_unique_key: bool = False
    strict_properties: bool = False
    transactional: bool = False
    """Every row is a half message."""
    producer_group: str | None = None
    """Whom a broker asks back about all halves, whatever they name; None = each one's column says."""
    marks: tuple[tuple[str, str], ...] = ()
    """Properties that halves get besides where their end is known."""
    retries: RetryRules = field(default_factory=RetryRules)
    is_repeatable: bool = False
    """The same rows make the same messages at any time (`MessageRules.is_repeatable`)."""


def message_rules(settings: PutSettings, options: PutOptions) -> MessageRules:
    """The rules for rows that go into a store of these settings."""
    transaction = None
    if options.transactional:
        transaction = TransactionRules(options.producer_group, options.marks, not settings.takes_transactions)
    return MessageRules(
        topic=options.topic,
        topics=settings.topics.topics,
        create_topic=options.create_topic,
        queue_count=options.queue_count,
        send=settings.send,
        mappings=settings.mappings.mappings,
        grow_to=options.queue_count or 0,
        growing=options.growing,
        broker_name=settings.broker_name,
        cluster_name=settings.cluster,
        region=settings.region,
        trace_on=settings.trace_on,
        max_message_size=settings.max_message_size,
        log_file_size=settings.log_file_size_bytes,
        host_size=len(settings.host),
        appends_crc=settings.appends_crc,
        compress_body_over=options.compress_body_over,
        keep_unique_key=options.keep_unique_key,
        strict_properties=options.strict_properties,
        delays_ms=settings.delays_ms,
        timer=settings.timer,
        is_congested=settings.full_slots,
        is_repeatable=options.is_repeatable,
        transaction=transaction,
        retries=options.retries,
    )
