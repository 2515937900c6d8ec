"""Nothing that takes messages from others writes to the ledger's topic, or a mark into any record."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from storage import StoreConfig, open_store
from storage.batch.ledger import MARK, TOPIC
from storage.errors import RowIllegalError
from storage.rules.response_codes import ResponseCode
from tests.support.broker_handlers import Send, Sender

TINY = StoreConfig.tiny()


@pytest.mark.parametrize("properties", [{}, {"DELAY": "1"}, {"TRAN_MSG": "true", "PGROUP": "p"}], ids=str)
@pytest.mark.parametrize("sys_flag", [0, 4, 8, 12, 0x10, 0x20, 0x30])
def test_a_request_to_the_ledgers_topic_is_refused(tmp_path: Path, sys_flag: int, properties: dict[str, str]) -> None:
    """Java's broker takes it, as the topic is not among its own."""
    with open_store(tmp_path / "store", config=TINY, read_only=False, create=True) as store:
        request = Send(topic=TOPIC, body=b"{}", queue_id=0, sys_flag=sys_flag, properties=properties)
        response = Sender(store).send(request)
        assert (response.code, response.is_stored) == (ResponseCode.NO_PERMISSION, False)
        assert store.log_end == 0


def test_rows_go_neither_to_its_topic_nor_bring_a_mark(tmp_path: Path) -> None:
    """The source's columns are taken from rows as they are read, and those that a broker sets are left out."""
    columns = {
        "body": pa.array([b"row"]),
        "prepared_transaction_offset": pa.array([MARK]),
        "sys_flag": pa.array([0], pa.int32()),
        "store_host": pa.array(["127.0.0.1:10911"]),
    }
    with open_store(tmp_path / "store", config=TINY, read_only=False, create=True) as store:
        with pytest.raises(RowIllegalError, match="system topic"):
            store.put_batch(pa.record_batch({**columns, "topic": pa.array([TOPIC])}))
        (placed,) = store.put_batch(pa.record_batch({**columns, "topic": pa.array(["T"])})).to_pylist()
        record = store.message_by_commitlog_offset(placed["commitlog_offset"])
        assert (record.body, record.prepared_transaction_offset) == (b"row", 0)


def test_the_command_does_not_write_to_it_either(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["produce", str(tmp_path / "store"), "--topic", TOPIC], input="{}\n")
    assert result.exit_code != 0
    assert TOPIC in result.output
