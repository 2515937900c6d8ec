"""A transaction from plain Python: messages that are prepared at once, and seen when the work that they tell of is done.

    with spark_mq.transaction("/data/store", producer_group="orders") as tx:
        tx.send("OrderPlaced", b"…", keys="42")     half message, on the store's disk as far as its flush says
        …                                           the work; an error rolls back
                                                    the end of the block commits

A process that dies in between leaves half messages: a check asks the producer group back (`jobs.check_transactions`).
Java: TransactionMQProducer, EndTransactionProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from spark_mq.broker.end_transaction import TransactionEnder, request_for
from spark_mq.conditions import SparkMqError, WriteFailedError, writing_conditions
from storage import MessageStore, open_store
from storage.epoch_times import current_time_ms
from storage.errors import NameIllegalError
from storage.files.remote import plain_path
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.names import validate_group
from storage.put.put import PutResult
from storage.rules.message_rows import one_row
from storage.rules.response_codes import ResponseCode
from storage.transaction.progress import save_counts

_LOCK_TIMEOUT_MS = 60_000


class Transaction:
    """One transaction over any number of messages of one store; make it with `transaction`.

    The store is held for each `send` and for the end, not in between, so that sinks and jobs take their turns. Each message is
    committed by itself, as in RocketMQ: who reads in that moment may see some of them and not others.
    """

    def __init__(self, path: str, producer_group: str, options: Mapping[str, Any], clock: Callable[[], int]) -> None:
        self.root = plain_path(path).rstrip("/") or "/"
        self.producer_group = producer_group
        self._options = options
        self._clock = clock
        self._halves: list[PutResult] = []
        self._ended: str | None = None

    @property
    def halves(self) -> tuple[PutResult, ...]:
        """The places of this transaction's half messages, in the order of sends."""
        return tuple(self._halves)

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
        **options: Any,
    ) -> PutResult:
        """Prepare a message: when this returns, its half is readable by brokers and checks only.

        `options` are fields of `storage.put.put.PutOptions` (`queue_count`, `create_topic` …). Raises SparkMqError;
        WriteFailedError where the transaction has ended.
        """
        self._refuse_if_ended()
        message = {"topic": topic, "body": body, "tags": tags, "flag": flag, "queue_id": queue_id}
        message |= {"sharding_key": sharding_key, "transaction_state": "unknown"}
        with writing_conditions(self.root):
            row = one_row(message, keys=keys, properties=properties)
            with self._open() as store:
                rows = store.put_batch(row, transactional=True, producer_group=self.producer_group, **options)
                save_counts(store, {topic: 1}, now_ms=self._clock())
                store.release()
        self._halves.append(PutResult(**rows.to_pylist()[0]))
        return self._halves[-1]

    def commit(self) -> None:
        """Make all messages visible. May be called again where it failed half-way: nothing is committed twice."""
        self._end("committed", TRANSACTION_COMMIT)

    def rollback(self) -> None:
        """Roll all messages back; consumers never see them."""
        self._end("rolled back", TRANSACTION_ROLLBACK)

    def unknown(self) -> None:
        """Leave it to a check to find out what became of it."""
        self._refuse_if_ended()
        self._ended = "left to a check"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits, or rolls back where an error is on its way; neither where the transaction has been ended."""
        if self._ended is not None:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except SparkMqError as failed:
            error.add_note(f"the transaction could not be rolled back, and a check will ask for it: {failed}")

    def _end(self, how: str, commit_or_rollback: int) -> None:
        self._refuse_if_ended()
        if self._halves:
            with writing_conditions(self.root), self._open() as store:
                self._end_halves(store, commit_or_rollback)
                store.release()
        self._ended = how

    def _end_halves(self, store: MessageStore, commit_or_rollback: int) -> None:
        ender = TransactionEnder.of(store, self._clock())
        for place in self._halves:
            half = store.message_by_commitlog_offset(place.commitlog_offset)
            verdict = ender.end(request_for(half, commit_or_rollback), self._clock())
            if verdict is None or verdict.code is not ResponseCode.SUCCESS:
                ender.close(self._clock())
                raise WriteFailedError(f"the half message {place.msg_id} could not be ended: {verdict}")
        ender.close(self._clock())

    def _refuse_if_ended(self) -> None:
        if self._ended is not None:
            raise WriteFailedError(f"the transaction of {self.producer_group} was {self._ended} already")

    def _open(self) -> MessageStore:
        return open_store(self.root, read_only=False, clock=self._clock, **self._options)


def transaction(
    path: str,
    *,
    producer_group: str,
    conf: str | None = None,
    create: bool = True,
    lock_timeout_ms: int = _LOCK_TIMEOUT_MS,
    clock: Callable[[], int] | None = None,
) -> Transaction:
    """A transaction on the store at `path`, a local directory, which is made where it is missing unless `create` is false.

    `producer_group` is whom a check asks back, `conf` the broker's configuration file; another writer is waited for up to
    `lock_timeout_ms`. Raises WriteFailedError for a group that no broker takes.
    """
    try:
        validate_group(producer_group)
    except NameIllegalError as error:
        raise WriteFailedError(error.describe()) from error
    options = {"config": conf, "create": create, "lock_timeout_ms": lock_timeout_ms}
    return Transaction(path, producer_group, options, clock or current_time_ms)
