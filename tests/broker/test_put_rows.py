"""The cases of `put_cases.py` that a row can express, over the way that rows take into a store: the rules are the same there.

A row says less than a request, so its record is compared in what both say; a row that is no message is refused with its column.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from storage import MessageStore
from storage.errors import RowIllegalError
from tests.broker.put_cases import CASES, CONFS, PutCase
from tests.broker.put_stores import open_case_store

TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "queue_id": pa.int32(),
    "delay_level": pa.int32(),
    "deliver_at": pa.timestamp("ms", "UTC"),
}
SAID_BY_REQUESTS_ONLY = {"born_time_ms", "reconsume_times"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, MessageStore]]:
    """A store for each conf."""
    opened = {conf: open_case_store(tmp_path_factory.mktemp(conf) / "store", conf) for conf in CONFS}
    yield opened
    for store in opened.values():
        store.close()


def rows_of(case: PutCase) -> pa.RecordBatch:
    assert case.row is not None
    values = {name: list(value.items()) if name == "properties" else value for name, value in case.row.items()}
    return pa.record_batch({name: pa.array([value], TYPES[name]) for name, value in values.items()})


@pytest.mark.parametrize("case", [case for case in CASES if case.row is not None], ids=str)
def test_a_row_is_stored_or_refused_by_the_rule(stores: dict[str, MessageStore], case: PutCase) -> None:
    """Each case names its Java class and method."""
    store = stores[case.conf]
    end = store.log_end
    if case.code != 0 or case.no_producer is not None:
        with pytest.raises(RowIllegalError):
            store.put_batch(rows_of(case))
        assert store.log_end == end
        return
    (place,) = store.put_batch(rows_of(case)).to_pylist()
    message = store.message_by_commitlog_offset(place["commitlog_offset"])
    expected = {name: value for name, value in case.stored.items() if name not in SAID_BY_REQUESTS_ONLY}
    assert {name: getattr(message, name) for name in expected} == expected
    named = {name: value for name, value in case.properties.items() if name != "UNIQ_KEY"}
    assert {name: message.properties.get(name) for name in named} == named
