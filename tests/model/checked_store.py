"""A store and its model, hand in hand: what a step has brought, what a crash has left, whether both say the same."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import ClassVar

from hypothesis import assume
from hypothesis.stateful import RuleBasedStateMachine

from jobs.verify_store import verify_store
from storage import Message, MessageStore
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.errors import CorruptRecordError
from storage.format.delay import SCHEDULE_TOPIC
from storage.rules.half_messages import HALF_TOPIC, OP_TOPIC, half_message
from storage.rules.inner_messages import InnerMessage
from storage.tables.consumer_groups import ConsumerOffsets
from tests.model.held_store import HeldStore, PowerLoss, served
from tests.model.store_model import Asked, Queue, Stored, StoreModel
from tests.support.rebuilt_store import differences_from_rebuild
from tests.support.reproducible import reproducible

TOPICS = ("orders", "bills")
QUEUE_COUNT = 2
UNSEEN = {HALF_TOPIC, OP_TOPIC, LEDGER_TOPIC}
"""Topics for the engine's own use, of which the model knows only what comes of them."""
SHARED = "shared"
"""A key that many messages have."""
GROUP = "readers"
PRODUCERS = "producers"


class CheckedStore(RuleBasedStateMachine):
    """What all rules of `store_machine.py` are made of."""

    place: ClassVar[Path | None] = None
    """Where stores are made; None: where temporary files are."""
    figures: ClassVar[Counter[str]] = Counter()
    """What scripts have come to, all together."""

    def __init__(self) -> None:
        super().__init__()
        self._resources = ExitStack()
        self._resources.enter_context(reproducible(Random(0)))
        self._directory = self._resources.enter_context(TemporaryDirectory(prefix="model-", dir=self.place))
        self.figures["scripts"] += 1
        self.held = HeldStore(Path(self._directory))
        self.held.open()
        self.model = self.before = StoreModel()
        self._key_count = 0
        self.is_index_new = False
        self.rows_in_doubt: int | None = None
        self.counts: dict[int, tuple[int, ...]] = {}
        """How many rows each batch has, by partition."""
        """The number of the batch that the last step committed."""

    def teardown(self) -> None:
        """Where no rule has failed, the store is closed, and its files must agree with each other."""
        with self._resources:
            if sys.exc_info()[0] is None:
                self.held.let_go(close=True)
                self.is_index_new = True
                self.compare_everything()
                report = verify_store(self.held.root)
                assert self.model.holes or report.findings == (), report.findings
                assert report.undispatched_bytes == 0
                assert differences_from_rebuild(self.held.root) == []

    def compare_everything(self) -> None:
        with self.held.look() as store:
            for queue in self._queues(store):
                self._compare_queue(store, queue)
            for topic in UNSEEN & set(store.topics()):
                for offset, message in served(store, topic, 0, store.min_offset(topic, 0)):
                    assert message is not None or (topic, 0, offset) in self.model.holes, f"{topic}: a hole at {offset}"
            for stored in self._to_look_up():
                hits = [hit.commitlog_offset for hit in store.messages_by_key(stored.asked.topic, stored.name, 1_000)]
                assert hits == [stored.commitlog_offset], f"a look-up of {stored} finds {hits}"
            for topic in TOPICS:
                shared = [hit.commitlog_offset for hit in store.messages_by_key(topic, SHARED, 1_000)]
                assert shared == [message.commitlog_offset for message in self.model.with_key(topic, SHARED)]
                assert store.messages_by_key(topic, "nobody's") == []
            assert self.group_offsets_of(store, self.model) == self.model.group_offsets

    def _to_look_up(self) -> list[Stored]:
        """What is new; behind a step that may have changed the index, everything."""
        known = sorted(
            (message for message in self.model.messages() if message.name), key=lambda message: message.commitlog_offset
        )
        everything, self.is_index_new = self.is_index_new, False
        return known if everything else known[-5:]

    def _compare_queue(self, store: MessageStore, queue: Queue) -> None:
        ends = store.min_offset(*queue), store.max_offset(*queue)
        assert ends == (self.model.minimum(queue), self.model.ends.get(queue, 0)), f"{queue} goes from {ends}"
        found = [as_stored(message) for _, message in served(store, *queue, ends[0]) if message is not None]
        expected = [message.as_served for message in self.model.serves(queue, 0)]
        assert found == expected, f"{queue}: {_first_difference(found, expected)}"

    # How the steps are made of

    def begin(self) -> MessageStore:
        """A step of its own begins, with the store open for writing."""
        self.figures["steps that write"] += 1
        self.before = self.model.copy()
        self.held.begin_step()
        self.rows_in_doubt = None
        if self.held.is_open:
            return self.held.open()
        self.is_index_new = True
        store = self.held.open()
        if store.recovery is not None:
            self.model.settle()
        return store

    def let_go(self, *, close: bool) -> None:
        self.held.let_go(close=close)
        if close:
            self.model.settle()

    def expect(
        self,
        asked: Sequence[Asked],
        possible: Sequence[Asked] = (),
        *,
        in_order: bool = True,
        is_durable: bool = False,
    ) -> list[Stored]:
        """These messages are new in the store, and of the possible ones any; returns them as they are stored, in log order."""
        store = self.held.open()
        new = [
            as_stored(message)
            for queue in self._queues(store)
            for offset, message in served(store, *queue, self.model.ends.get(queue, 0))
            if message is not None
        ]
        new.sort(key=lambda message: message.commitlog_offset)
        known = {(one.topic, one.keys[0]): one for one in (*asked, *possible)}
        counts = Counter((message.asked.topic, message.name) for message in new)
        must = Counter((one.topic, one.keys[0]) for one in asked)
        assert counts >= must, f"not there: {must - counts}"
        assert counts <= Counter(known.keys()), f"there, and not asked for: {counts - Counter(known.keys())}"
        found = []
        for message in new:
            wanted = known[message.asked.topic, message.name]
            queue_id = message.queue_id if wanted.queue_id is None else wanted.queue_id
            assert message.asked == wanted._replace(queue_id=queue_id, batch_id=None), (message, wanted)
            assert message.commitlog_offset >= self.model.log_end, f"{message} stands before the log's end"
            found.append(message._replace(asked=wanted._replace(queue_id=queue_id)))
        if in_order and not possible:
            assert [message.name for message in found] == [one.keys[0] for one in asked]
        self.model.add(found)
        is_synced = self.held.sync_flush and store.log_end > self.model.log_end  # who appends nothing syncs nothing
        self.model.log_end = store.log_end
        if is_durable or is_synced:
            self.model.durable_end = self.model.log_end
        return found

    def _queues(self, store: MessageStore) -> list[Queue]:
        """All queues that the store or the model knows of."""
        there = {(topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic)}
        return sorted(queue for queue in there | self.model.ends.keys() if queue[0] not in UNSEEN)

    def _is_in_doubt(self, row: Asked, is_amid: bool, begun: StoreModel) -> bool:
        """Whether the row is of the batch whose commit was interrupted, and none of its rows is there."""
        if not is_amid or row.batch_id != self.rows_in_doubt or row.batch_id is None:
            return False
        return all(message.asked.batch_id != row.batch_id for message in self.model.messages())

    def _take_torn(self, store: MessageStore, certain: int) -> None:
        """No checksum covers topic and properties: where a power loss tore those of a record that was not certain, take it as is."""
        for half in self.model.halves.values():
            if half.commitlog_offset >= max(certain, self.model.log_minimum):
                found = message_at(store, half.commitlog_offset)
                assume(found is not None and found.properties == self.half_of(half.asked).properties)
        for queue, known in self.model.queues.items():
            for number in reversed(range(len(known))):
                message = known[number]
                if message.commitlog_offset < certain or message.asked.batch_id is not None:
                    continue
                found = message_at(store, message.commitlog_offset)
                is_torn = found is None or as_asked(found) != message.asked
                assume(not is_torn or queue[0] != SCHEDULE_TOPIC)  # whether it can still be delivered is another story
                if found is None or found.topic != message.asked.topic:
                    del known[number]
                    self.model.holes[(*queue, message.queue_offset)] = message.commitlog_offset
                    self.figures["torn topics"] += 1
                elif is_torn:
                    assert found.body == message.asked.body
                    known[number] = message._replace(asked=as_asked(found))
                    self.figures["torn properties"] += 1

    def group_offsets_of(self, store: MessageStore, begun: StoreModel) -> dict[Queue, int]:
        """What is stored; of a step that was interrupted the old offset or the new one."""
        table = store.state("consumerOffset.json", ConsumerOffsets.load) or ConsumerOffsets()
        found = {queue: table.get(queue[0], GROUP, queue[1]) for queue in self.model.group_offsets}
        for queue, offset in found.items():
            assert offset in (self.model.group_offsets[queue], begun.group_offsets.get(queue)), (queue, offset)
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def crash(self, steps_back: int, sync_flush: bool, power_loss: PowerLoss | None) -> None:
        is_amid = self.held.is_amid_step(steps_back)
        begun = self.before if is_amid else self.model
        self.held.crash(steps_back, power_loss)
        self.held.sync_flush = sync_flush
        store, self.is_index_new = self.held.open(), True
        cut = store.log_end if store.recovery is None else store.recovery.log_end
        certain = begun.log_end if power_loss is None else begun.durable_end
        assert cut >= certain, f"the log ends at {cut}, and all up to {certain} was certain"
        assert is_amid or power_loss is not None or cut == self.model.log_end
        minimum = store.log.minimum
        assert begun.log_minimum <= minimum <= max(self.model.log_minimum, begun.log_minimum), minimum
        self.figures["crashes"] += 1
        self.figures["power losses among them"] += power_loss is not None
        self.figures["bytes lost"] += max(0, begun.log_end - cut)
        self.model, missing = self.model.after_crash(begun, cut, minimum)
        self.model.group_offsets = self.group_offsets_of(store, begun)
        self.before, doubted = self.model.copy(), [row for row in missing if self._is_in_doubt(row, is_amid, begun)]
        self._take_torn(store, certain)
        self.before.durable_end = cut if power_loss is not None else min(begun.durable_end, cut)
        there = self.expect([row for row in missing if row not in doubted], doubted)
        if doubted and any(message.asked in doubted for message in there):
            assert all(any(message.asked == row for message in there) for row in doubted), "half a batch"
        batches = [message.asked.batch_id for message in self.model.messages() if message.asked.batch_id is not None]
        self.model.batch_count = max([self.model.batch_count - 1, *batches]) + 1
        if store.recovery is not None:
            self.model.settle()

    def ask(self, topic: str, queue_id: int, size: int, tag: str | None, is_shared: bool) -> Asked:
        self._key_count += 1
        key = f"k{self._key_count}"
        return Asked(topic, queue_id, f"{key} ".encode().ljust(size, b"."), (key, *[SHARED] * is_shared), tag)

    def inner_of(self, asked: Asked) -> InnerMessage:
        assert asked.queue_id is not None
        properties = {"KEYS": " ".join(asked.keys), "UNIQ_KEY": f"unique-{asked.keys[0]}"}
        if asked.tags is not None:
            properties["TAGS"] = asked.tags
        return InnerMessage(
            topic=asked.topic,
            queue_id=asked.queue_id,
            body=asked.body,
            properties=properties,
            born_time_ms=self.held.clock(),
        )

    def half_of(self, asked: Asked) -> InnerMessage:
        return half_message(self.inner_of(asked), PRODUCERS)


def message_at(store: MessageStore, commitlog_offset: int) -> Message | None:
    """None: its topic is torn."""
    with suppress(CorruptRecordError):
        return store.message_by_commitlog_offset(commitlog_offset)
    return None


def as_asked(message: Message) -> Asked:
    return Asked(message.topic, message.queue_id, message.body, tuple(message.keys), message.tags)


def as_stored(message: Message) -> Stored:
    return Stored(
        as_asked(message), message.queue_id, message.queue_offset, message.commitlog_offset, message.store_time_ms
    )


def _first_difference(found: Sequence[Stored], expected: Sequence[Stored]) -> str:
    for one, other in zip(found, expected, strict=False):
        if one != other:
            return f"{one} is served in place of {other}"
    return f"{len(found)} messages are served, {len(expected)} should be: {[*found, *expected][min(len(found), len(expected)) :]}"
