"""What the JVM is given at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_mq.source.partition_reader import BATCH_BYTES, for_jvm


@pytest.mark.parametrize(
    ("rows", "columns", "body_size", "expected"),
    [
        (8_192, 8, 1_100, [2_048] * 4),
        (5_000, 8, 1_100, [2_048, 2_048, 904]),
        (8_192, 21, 1_100, [5_376, 2_816]),
        (8_192, 8, 50, [8_192]),
        (12, 8, 1 << 20, [12]),
        (2_048, 8, 5_000, [2_048]),
    ],
    ids=["1 KiB", "the rest", "many columns", "small rows", "few large rows", "no smaller than this"],
)
def test_rows_come_in_batches_that_stay_in_the_cache(
    rows: int, columns: int, body_size: int, expected: list[int]
) -> None:
    arrays = {f"column {number}": pa.array(range(rows)) for number in range(1, columns)}
    whole = pa.record_batch(arrays | {"body": pa.array([b"x" * body_size] * rows)})
    batches = list(for_jvm(whole))
    assert [batch.num_rows for batch in batches] == expected
    assert pa.Table.from_batches(batches).combine_chunks().equals(pa.Table.from_batches([whole]))


def test_rows_of_a_size_between_have_batches_of_so_many_bytes() -> None:
    whole = pa.record_batch({"body": pa.array([b"x" * 400] * 8_192)})
    first, *_ = for_jvm(whole)
    assert BATCH_BYTES * 0.95 < first.nbytes <= BATCH_BYTES


def test_no_rows_are_no_batch() -> None:
    assert list(for_jvm(pa.record_batch({"body": pa.array([], pa.binary())}))) == []
