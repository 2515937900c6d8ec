"""Ranges of one queue, pulled from its broker by a task. Stateless: everything a task knows stands in its `PullSplit`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_mq.source.offsets import QueueId
from spark_mq.source.pull_reader import PullReader
from spark_mq.source.pull_request import PullTerms
from spark_mq.source.row_batches import RowRequest, to_batches
from spark_mq.worker_errors import named_for_spark
from storage.errors import CorruptMessageError


@dataclass(frozen=True, slots=True)
class PullSplit:
    """Ranges of offsets of one queue, ascending, and its broker's addresses by broker id, the master's is 0."""

    terms: PullTerms
    queue: QueueId
    broker_rank: int
    addresses: tuple[tuple[int, str], ...]
    ranges: tuple[tuple[int, int], ...]
    request: RowRequest

    def read(self) -> Iterator[pa.RecordBatch]:
        """The messages as Arrow batches of the request's schema, in queue order.

        Messages that are gone since the split was planned are data loss (`SPARK_MQ_DATA_LOSS`), or passed over where the request
        tolerates that. A broker that cannot be reached is not: `SPARK_MQ_BROKER_UNREACHABLE`, after its slaves were tried and the
        time is over. A corrupt message is an error that names it (`SPARK_MQ_CORRUPT_RECORD`), or a row of a permissive request.
        """
        with named_for_spark():
            verify_crc = self.request.verify_crc and not self.request.permissive
            strict = self.request.fail_on_data_loss
            reader = PullReader(
                self.queue,
                dict(self.addresses),
                self.terms,
                fail_on_data_loss=strict,
                verify_crc=verify_crc,
                wanted=self.request.wanted,
            )
            try:
                for start, end in self.ranges:
                    slices = reader.slices(start, end)
                    yield from to_batches(slices, self.queue, self.broker_rank, self.request, None)
            except CorruptMessageError as error:
                raise error.of_broker(self.queue.broker_name) from None
            finally:
                reader.close()
