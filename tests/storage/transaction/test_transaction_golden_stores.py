"""The half and op topics of stores that the Apache broker wrote, read with their meaning, and carried on from.

What each transaction was to become is the `plan` that the producer followed (sent.jsonl): commit and rollback at once,
later and laterRollback when asked back, pending never answered. The broker was stopped when all but the pending ones were ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from storage import Message, MessageStore, open_store
from storage.rules.half_messages import CHECK_TIMES, HALF_TOPIC
from storage.transaction.check_plan import CheckRules
from storage.transaction.half_queue import copies_of, read_halves
from storage.transaction.outcomes import outcomes_of
from storage.transaction.progress import TransactionProgress, read_progress
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.held_check import check_half_messages

STOPPED = ("clean", "ext", "syncflush")
COMMITTED, ROLLED_BACK = {"commit", "later"}, {"rollback", "laterRollback"}


def plans(fixture: Fixture) -> dict[str, str]:
    """What is to become of each transaction, by unique key."""
    assert fixture.sent is not None
    lines = (json.loads(line) for line in fixture.sent.read_text("utf-8").splitlines())
    return {line["msgId"]: line["plan"] for line in lines if line["kind"] == "tx"}


def visible(store: MessageStore) -> Counter[str | None]:
    """How often each transaction's message is to be seen."""
    return Counter(
        message.unique_key
        for queue_id in store.queue_ids("TopicTx")
        for message in store.get("TopicTx", queue_id, 0, 1_000, max_bytes=1 << 20).messages
    )


@pytest.mark.parametrize("name", STOPPED)
def test_every_half_has_the_outcome_that_its_producer_gave_it(
    name: str, pristine_store: Callable[[str], Fixture]
) -> None:
    fixture = pristine_store(name)
    expected = plans(fixture)
    with open_store(fixture.root) as store:
        halves = read_halves(store, 0, store.max_offset(HALF_TOPIC, 0))
        outcomes = outcomes_of(store, halves)
        keys = halves.keys.to_pylist()
        assert {*keys} == {*expected}
        for row, key in enumerate(keys):
            assert outcomes.is_committed[row] == (expected[key] in COMMITTED), expected[key]
            assert outcomes.is_rolled_back[row] == (expected[key] in ROLLED_BACK), expected[key]
        assert visible(store) == Counter(key for key, plan in expected.items() if plan in COMMITTED)


@pytest.mark.parametrize("name", STOPPED)
def test_halves_that_were_put_back_are_known_as_one_transaction(
    name: str, pristine_store: Callable[[str], Fixture]
) -> None:
    fixture = pristine_store(name)
    golden = [line for line in golden_lines(fixture.golden, "message") if line["topic"] == HALF_TOPIC]
    with open_store(fixture.root) as store:
        halves = read_halves(store, 0, store.max_offset(HALF_TOPIC, 0))
        last = halves.take(halves.queue_offsets == halves.queue_offsets[-1])  # a pending one, asked again and again
        assert last.check_times[0] > 1
        key = last.keys[0].as_py()
        copies = copies_of(store, last)
        same = [line for line in golden if line["properties"].get("UNIQ_KEY") == key]
        assert sorted(copies.queue_offsets[copies.of(0)].tolist()) == sorted(line["queueOffset"] for line in same)
        first = next(line for line in same if CHECK_TIMES not in line["properties"])
        assert copies.started_at.tolist() == [first["physicalOffset"]]


@pytest.mark.parametrize("name", STOPPED)
def test_progress_is_the_brokers_and_a_check_asks_only_for_what_is_pending(
    name: str, fixture_store: Callable[[str], Fixture]
) -> None:
    fixture = fixture_store(name)
    expected = plans(fixture)
    pending = {key for key, plan in expected.items() if plan == "pending"}
    offsets = (fixture.root / "config" / "consumerOffset.json").read_text()
    asked: list[Message] = []

    def commit(message: Message) -> str:
        asked.append(message)
        return "commit"

    with open_store(fixture.root, read_only=False) as store:
        before = read_progress(store)
        assert f'"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{{0:{before.half_offset}' in offsets
        assert f'"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS":{{0:{before.op_offset}' in offsets
        last = store.get(HALF_TOPIC, 0, store.max_offset(HALF_TOPIC, 0) - 1).messages[0]
        check_half_messages(store, commit, last.store_time_ms + 60_000, rules=CheckRules(max_checks=1_000))
        after = read_progress(store)
        assert {message.unique_key for message in asked} == pending
        assert visible(store) == Counter(key for key, plan in expected.items() if plan in COMMITTED or key in pending)
        assert after >= before
        assert after.half_offset == store.max_offset(HALF_TOPIC, 0)


def test_a_broker_that_was_killed_left_no_transaction_to_be_committed_twice(
    fixture_store: Callable[[str], Fixture],
) -> None:
    """Killed during sends: whatever was committed is found to be, with or without an op message."""
    fixture = fixture_store("crashed")
    with open_store(fixture.root, read_only=False) as store:
        before = visible(store)
        last = store.get(HALF_TOPIC, 0, store.max_offset(HALF_TOPIC, 0) - 1).messages[0]
        store.save_state("consumerOffset.json", "{}")  # from the queue's beginning: everything is looked at again
        check_half_messages(store, lambda _: "commit", last.store_time_ms + 60_000, rules=CheckRules(max_checks=1_000))
        after = visible(store)
        assert set(after.values()) == {1}
        assert {*before} <= {*after}
        rolled_back = {key for key, plan in plans(fixture).items() if plan == "rollback"}
        assert not rolled_back & {*after}
        assert read_progress(store) >= TransactionProgress(store.max_offset(HALF_TOPIC, 0), 0)
