"""Doing what a plan says: by the store itself, or by whoever stands in front of it. Java: MessageStore.asyncPutMessage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from spark_mq.broker.put_plan import PutPlan
from spark_mq.broker.put_response import Appended, PutOutcome
from storage.errors import LogFileNotMadeError, MessageIllegalError, PutRefusedError, StoreNotWritableError
from storage.put_status import PutStatus
from storage.retention import Occasion
from storage.rules.inner_messages import columns_of
from storage.rules.put_guards import BrokerState
from storage.service.pending import Pending
from storage.service.put_group import PutReceipt
from storage.service.put_service import PutService
from storage.store import MessageStore
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.tables.topics import TopicConfig

_LOG = logging.getLogger(__name__)

HandlerStore = MessageStore | PutService
"""What a handler works on: an open store, for one thread, or its service, for many."""
Put = Callable[[PutPlan], PutOutcome]


def put_into(store: HandlerStore, *, needs_copies: bool = True) -> Put:
    """The put of a store that is open for writing: for one thread, or by its service for many. Without `needs_copies` it waits for
    no replicas.
    """
    return lambda plan: _outcome(plan, lambda: _put(store, plan, needs_copies))


def put_later_into(service: PutService) -> Callable[[PutPlan], Pending[PutOutcome]]:
    """The same put, in two steps: now it joins the next append, and what is returned waits for it (`PutService.put_later`)."""

    def put(plan: PutPlan) -> Pending[PutOutcome]:
        pending = service.put_later(plan.messages, is_heard=plan.is_heard)
        return pending.then(lambda receipt: _outcome(plan, receipt))

    return put


def _outcome(plan: PutPlan, put: Callable[[], PutReceipt]) -> PutOutcome:
    receipt = receipt_or_refusal(put, plan.message.topic)
    return (
        receipt
        if isinstance(receipt, PutOutcome)
        else PutOutcome(receipt.status, Appended.of(receipt, plan.size_bytes))
    )


def receipt_or_refusal(put: Callable[[], PutReceipt], topic: str) -> PutReceipt | PutOutcome:
    """Where the messages of a put stand, or why none does."""
    try:
        receipt = put()
    except MessageIllegalError as error:
        is_of_properties = error.what == "properties"
        status = PutStatus.PROPERTIES_SIZE_EXCEEDED if is_of_properties else PutStatus.MESSAGE_ILLEGAL
        return PutOutcome(status, reason=str(error))
    except LogFileNotMadeError as error:
        return PutOutcome(PutStatus.CREATE_MAPPED_FILE_FAILED, reason=str(error))
    except StoreNotWritableError as error:
        return PutOutcome(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(error))
    except OSError as error:  # a part may stand in the log; nobody may take that for stored
        _LOG.exception("a put to %s failed", topic)
        return PutOutcome(PutStatus.UNKNOWN_ERROR, reason=str(error))
    return receipt if receipt.status.is_stored else PutOutcome(receipt.status)


def _put(store: HandlerStore, plan: PutPlan, needs_copies: bool) -> PutReceipt:
    if isinstance(store, PutService):
        return store.put_later(plan.messages, needs_copies=needs_copies, is_heard=plan.is_heard)()
    return PutReceipt(PutStatus.PUT_OK, store.put_inner(columns_of(plan.messages)))


def store_of(store: HandlerStore) -> MessageStore:
    """The store itself, for what is thread-safe there or done under its lock."""
    return store.store if isinstance(store, PutService) else store


def at_work(store: HandlerStore) -> AbstractContextManager[None]:
    """Around what a handler computes and puts, without calls of a user's."""
    return store.at_work() if isinstance(store, PutService) else nullcontext()


def at_work_for_later(store: HandlerStore) -> AbstractContextManager[None]:
    """The same around what ends in a later put."""
    return store.at_work_for_later() if isinstance(store, PutService) else nullcontext()


def state_now(store: HandlerStore, state: BrokerState, *, is_heard: bool = True) -> BrokerState:
    """What a handler must know at the moment: what its broker says, and of a service what that knows of itself.

    For a request whose refusal nobody hears no store is busy: its put waits.
    """
    found = state_of(store, state) if isinstance(store, PutService) else state
    if is_heard:
        return found
    return replace(found, is_os_page_cache_busy=False, is_transient_store_pool_deficient=False)


@contextmanager
def _saving(store: HandlerStore) -> Iterator[None]:
    """Entries are saved beside other threads' work.

    A store that takes no entry takes no message either: the request is answered as its put would be.
    """
    try:
        with store.off_work() if isinstance(store, PutService) else nullcontext():
            yield
    except StoreNotWritableError as error:
        raise PutRefusedError(PutStatus.SERVICE_NOT_AVAILABLE, str(error)) from error


def make_topic(store: HandlerStore, topic: TopicConfig) -> TopicConfig:
    """The topic's entry: this one, saved, where there is none; else the one that is there.

    Raises PutRefusedError of a store that cannot be written, OSError.
    """
    with _saving(store):
        return store.make_topic(topic)


def save_entries(
    store: HandlerStore,
    topics: Sequence[TopicConfig],
    groups: Sequence[SubscriptionGroupConfig],
    known: Mapping[str, TopicConfig],
) -> None:
    """Save the entries that a request makes or changes, where `known` are the topics that it was judged by.

    What another thread has made meanwhile stays. Raises PutRefusedError, OSError.
    """
    for topic in topics:
        if topic.topic in known:
            with _saving(store):
                store.save_topic(topic)
        else:
            make_topic(store, topic)
    for group in groups:
        with store.off_work() if isinstance(store, PutService) else nullcontext():
            store.make_group(group)


def state_of(
    service: PutService,
    state: BrokerState = BrokerState(),  # noqa: B008 (a frozen value)
    occasion: Occasion | None = None,
) -> BrokerState:
    """What a handler must know of the store behind it at the moment, besides what its broker says in `state`.

    `occasion` is the last look of its retention at the disks (`storage.retention.plan_occasion`): while one of them is over
    `diskSpaceWarningLevelRatio`, nothing is put.
    """
    is_shut_down = state.is_shut_down or service.is_closed
    is_writable = state.is_writable and service.failure is None and not (occasion and occasion.is_full)
    is_busy, is_deficient = service.is_os_page_cache_busy, service.is_pool_deficient
    found = is_shut_down, is_writable, is_busy, is_deficient
    told = state.is_shut_down, state.is_writable, state.is_os_page_cache_busy, state.is_transient_store_pool_deficient
    if found == told:
        return state
    return replace(
        state,
        is_shut_down=is_shut_down,
        is_writable=is_writable,
        is_os_page_cache_busy=is_busy,
        is_transient_store_pool_deficient=is_deficient,
    )
