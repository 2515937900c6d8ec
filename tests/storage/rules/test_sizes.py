"""How large a message may be: MessageExtEncoder.encode, for one message and for columns by the same lines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from storage import open_store
from storage.errors import MessageIllegalError, PutRefusedError
from storage.pending import PutStatus
from storage.rules.inner_messages import Limits, Numbers, Sizes, Truths, excesses, refuse_any_excess, refuse_excess
from tests.support.fixture_stores import Fixture

LIMITS = Limits(1_000)
CASES = [
    (1, 1_000, 32_767, 66_536, False, None),
    (1, 1_000, 32_768, 0, False, "properties"),
    (1, 1_001, 32_768, 0, False, "properties"),  # judged before the body
    (1, 1_001, 0, 0, False, "body"),
    (1, 1_000, 0, 66_537, False, "record"),
    (255, 0, 0, 0, False, None),
    (256, 0, 0, 0, False, "topic"),
    # TimerMessageStore reads a record into maxMessageSize + 100 bytes, and stays at one that is longer.
    (1, 1_000, 0, 1_100, True, None),
    (1, 1_000, 0, 1_101, True, "record"),
    # It adds TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS, of up to 20 digits each with their separators.
    (1, 0, 32_767 - 72, 0, True, None),
    (1, 0, 32_767 - 71, 0, True, "properties"),
]


@pytest.mark.parametrize(("topic", "body", "properties", "record", "is_timed", "broken"), CASES)
def test_topic_properties_body_and_record_have_limits(
    topic: int, body: int, properties: int, record: int, is_timed: bool, broken: str | None
) -> None:
    """MessageExtEncoder.encode, HookUtils.checkBeforePutMessage."""
    sizes = Sizes(topic, properties, body, record)
    assert next((excess.what for excess in excesses(sizes, LIMITS, is_timed) if excess.over), None) == broken
    if broken is None:
        refuse_excess(sizes, LIMITS, is_timed=is_timed)
        return
    with pytest.raises(PutRefusedError) as refused:
        refuse_excess(sizes, LIMITS, is_timed=is_timed)
    is_of_properties = broken == "properties"
    assert (refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED) is is_of_properties


def test_columns_are_judged_as_their_messages_one_by_one() -> None:
    topics, bodies, properties, records, timed, _ = (np.array(column) for column in zip(*CASES, strict=True))
    is_timed = timed.astype(bool)
    sizes = Sizes(*(column.astype(np.int64) for column in (topics, properties, bodies, records)))
    found = [""] * len(CASES)
    for excess in excesses(sizes, LIMITS, is_timed):
        for row in np.flatnonzero(excess.over).tolist():
            found[row] = found[row] or excess.what
    assert found == [broken or "" for *_, broken in CASES]


def test_a_record_fits_into_a_log_file_with_the_filler_behind_it() -> None:
    """MappedFile: END_FILE_MIN_BLANK_LENGTH."""
    fits, over = Sizes(1, 0, 0, 4_088), Sizes(1, 0, 0, 4_089)
    limits = Limits(1 << 20, 4_096)
    refuse_any_excess(fits, limits, is_timed=False)
    with pytest.raises(MessageIllegalError) as refused:
        refuse_any_excess(over, limits, is_timed=False)
    assert (refused.value.what, refused.value.limit, refused.value.actual) == ("record", 4_088, 4_089)


def test_of_many_the_first_row_over_the_first_limit_is_named() -> None:
    nothing = np.zeros(3, np.int64)
    sizes = Sizes(nothing, nothing, np.array([9, 1_003, 1_002]), nothing)
    with pytest.raises(MessageIllegalError) as refused:
        refuse_any_excess(sizes, LIMITS, is_timed=False)
    assert (refused.value.what, refused.value.actual) == ("body", 1_003)


@pytest.mark.parametrize("name", ["clean", "ipv6"])
def test_a_record_is_as_long_as_the_brokers(pristine_store: Callable[[str], Fixture], name: str) -> None:
    """MessageExtEncoder.calMsgLength, over every record that a broker wrote."""
    fixture = pristine_store(name)
    count = 0
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        for topic in store.topics():
            for queue_id in store.queue_ids(topic):
                for message in store.get(topic, queue_id, store.min_offset(topic, queue_id), 100).messages:
                    v6_hosts = sum(len(host) == 20 for host in (message.born_host, message.store_host))
                    parts = len(message.topic), len(message.raw_properties), len(message.body)
                    assert Sizes.of(*parts, v6_hosts).record == message.size_bytes
                    count += 1
    assert count > 10


@pytest.mark.parametrize(
    ("topic", "v6_hosts", "is_timed", "size"),
    [
        (127, 0, False, 91 + 127),
        (128, 0, False, 91 + 1 + 128),
        (1, 1, False, 91 + 1 + 12),
        (1, 0, True, 91 + 1 + 24),  # a roll may write it to a store at an IPv6 host
        (1, 2, True, 91 + 1 + 24),
        (np.array([1, 1]), 0, np.array([True, False]), [91 + 1 + 24, 91 + 1]),
    ],
)
def test_a_longer_topic_and_longer_hosts_make_a_longer_record(
    topic: Numbers, v6_hosts: int, is_timed: Truths, size: object
) -> None:
    """MessageVersion.getTopicLengthSize, MessageSysFlag.BORNHOST_V6_FLAG."""
    assert np.asarray(Sizes.of(topic, 0, 0, v6_hosts, is_timed).record).tolist() == size
