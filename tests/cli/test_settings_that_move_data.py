"""Settings by which a broker of 5.4 or later keeps data in RocksDB: what each way to read and to write says."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from storage import open_store
from storage.errors import StoreRefusedError
from storage.settings.load import parse_config
from tests.support.shares import one_in
from tests.support.store_copies import make_store, picture
from tests.support.ways_in import READING, WRITING

TRANSACTIONS, TIMER = "transRocksDBEnable=true", "timerRocksDBEnable=true"
ORIGIN = "transWriteOriginTransHalfEnable=false"
INDEX = "indexRocksDBEnable=true\nindexFileWriteEnable=false"
BEFORE_THE_COMMIT = {
    *("sink, plan", "sink, task", "sink, settings", "command sink-status --remove-orphans", "job replay_dead_letters"),
}
"""They write no message and no table of the store; without anything to do they end before it is opened for writing."""
ENDLESS = {"command follow"}
"""It may write a store whose timer is in RocksDB, and would wait for its master."""
LOOKS_UP_A_KEY = "command query"


def store_with(directory: Path, settings: str) -> tuple[str, str]:
    """A store and its broker.conf."""
    conf = make_store(directory / "store")
    conf.write_text(f"{conf.read_text('utf-8')}{settings}\n", "utf-8")
    return str(directory / "store"), str(conf)


@pytest.mark.parametrize("settings", one_in(3, [TIMER, TRANSACTIONS, f"{TRANSACTIONS}\n{ORIGIN}"]))
def test_a_store_whose_transactions_or_timer_are_in_rocksdb_is_read_and_no_way_writes_it(
    settings: str, tmp_path: Path
) -> None:
    root, conf = store_with(tmp_path, settings)
    before, name = picture(tmp_path / "store"), settings.partition("\n")[0]
    for way in WRITING.keys() - BEFORE_THE_COMMIT - ENDLESS:
        refusal = WRITING[way](root, conf)
        assert refusal is not None, way
        assert f"{name}: RocksDB holds" in " ".join(refusal.split()), f"{way}: {refusal}"
    assert {way: READING[way](root, conf) for way in READING} == dict.fromkeys(READING)
    assert picture(tmp_path / "store") == before


@pytest.mark.parametrize("settings", [TRANSACTIONS, TIMER])
def test_our_broker_does_not_start_on_such_a_store(settings: str, tmp_path: Path) -> None:
    root, conf = store_with(tmp_path, settings)
    Path(conf).write_text(f"{Path(conf).read_text('utf-8')}storePathRootDir={root}\nbrokerIP1=127.0.0.1\n", "utf-8")
    done = CliRunner().invoke(app, ["broker", "-c", conf])
    assert done.exit_code == 1
    assert f"{settings}: RocksDB holds" in done.output


def test_with_an_index_in_rocksdb_all_is_read_and_written_but_no_key_is_looked_up(tmp_path: Path) -> None:
    root, conf = store_with(tmp_path, INDEX)
    assert {way for way in READING if READING[way](root, conf) is not None} == {LOOKS_UP_A_KEY}
    refusal = READING[LOOKS_UP_A_KEY](root, conf)
    assert refusal is not None
    assert "indexRocksDBEnable=true, indexFileWriteEnable=false" in refusal
    index = picture(tmp_path / "store" / "index")
    assert WRITING["command produce"](root, conf) is None
    assert picture(tmp_path / "store" / "index") == index, "a broker writes none either"
    with open_store(root, config=conf) as store:
        assert sum(store.max_offset("T", queue_id) for queue_id in store.queue_ids("T")) == 31


def test_without_transactions_in_rocksdb_their_place_there_changes_nothing(tmp_path: Path) -> None:
    root, conf = store_with(tmp_path, ORIGIN)
    assert WRITING["command produce"](root, conf) is None
    assert WRITING["transaction"](root, conf) is None
    assert READING["command verify"](root, conf) is None


def test_a_setting_of_a_later_release_than_the_named_one_refuses_nothing(tmp_path: Path) -> None:
    """As that release's broker does not know it."""
    root, conf = store_with(tmp_path, f"{TIMER}\nrocketmqVersion=5.3.3")
    with pytest.warns(match="timerRocksDBEnable: rocketmqVersion is 5.3.3"):
        open_store(root, config=conf, read_only=False).close()
    with pytest.raises(StoreRefusedError, match=TIMER):
        open_store(root, config=parse_config(TIMER.encode()), read_only=False)
