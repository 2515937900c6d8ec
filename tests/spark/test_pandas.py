"""Rows of a store in pandas, and in pandas on Spark: what pandas 3 breaks in PySpark 4.2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.store_builder import StoreBuilder

from .conftest import ReadStore

pytestmark = pytest.mark.slow


def test_rows_are_read_as_pandas_and_as_pandas_on_spark(
    read_store: ReadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYARROW_IGNORE_TIMEZONE", "1")  # pandas on Spark warns without it
    store = StoreBuilder(tmp_path / "broker-a")
    store.send_many("Topic", 5)
    rows = read_store(store.root, topic="Topic").select("queue_offset", "tags", "store_timestamp")
    assert sorted(rows.toPandas()["queue_offset"]) == [0, 1, 2, 3, 4]
    assert rows.pandas_api()["queue_offset"].sum() == 10
