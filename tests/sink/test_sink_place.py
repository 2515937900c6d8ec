"""Tasks, driver and commit of the sink look at one directory, or the write fails by name with nothing written."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructType

from spark_mq.conditions import SparkMqError
from spark_mq.data_source import SparkMqDataSource
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from spark_mq.sink.place import check_place
from storage import open_store
from storage.batch.intent import load_intents
from storage.batch.ledger import Batch
from storage.files.local_file_system import LocalFileSystem
from tests.support.store_builder import StoreBuilder

from .test_sink_tasks import Row, bodies, commit, files_under, frames_of, options_of, stage, texts

FILES = LocalFileSystem()
SCHEMA = StructType().add("body", StringType())


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Where the commit sees the store."""
    return tmp_path / "mount" / "broker-a"


def elsewhere(here: Path) -> None:
    """What stands there is from now on seen by others only."""
    shutil.move(here, here.parent.parent / f"private-{len(list(here.parent.parent.iterdir()))}")


def stage_as_a_task(options: SinkOptions, rows: list[Row], *, batch_id: int = 0) -> StagedRows:
    """With what the driver has seen before."""
    seen = check_place(options)
    columns = InputColumns(("body",), kafka=False)
    return stage_rows(options, columns, Batch("sink", "query", batch_id), 0, 0, frames_of(rows), seen=seen)


def not_found(text: str, *words: object) -> None:
    assert text.startswith("[SPARK_MQ_STORE_NOT_FOUND] "), text
    for word in (f"machine {socket.gethostname()} ", *words):
        assert str(word) in text


def test_rows_that_were_staged_elsewhere_make_no_store(here: Path) -> None:
    options = options_of(str(here))
    staged = stage_as_a_task(options, bodies("a", "b"))
    elsewhere(here)
    with pytest.raises(SparkMqError) as caught:
        commit(options, staged)
    not_found(str(caught.value), f"at {here} ", f"{here}/spark_mq/staged/{staged.segments[0].path}", "the commit on")
    assert not here.exists(), "nothing was made where the rows are not"


@pytest.mark.slow
def test_rows_that_were_staged_elsewhere_leave_a_store_as_it_was(here: Path) -> None:
    options = options_of(str(here))
    commit(options, stage(options, bodies("a")))
    staged = stage(options, bodies("b"), batch_id=1)
    os.unlink(here / "spark_mq" / "staged" / staged.segments[0].path)
    log = [path.read_bytes() for path in sorted((here / "commitlog").iterdir())]
    intents = load_intents(FILES, str(here))
    with pytest.raises(SparkMqError) as caught:
        commit(options, staged, batch_id=1)
    not_found(str(caught.value), staged.segments[0].path)
    assert [path.read_bytes() for path in sorted((here / "commitlog").iterdir())] == log
    assert load_intents(FILES, str(here)) == intents
    commit(options, stage(options, bodies("b"), batch_id=1), batch_id=1)
    assert texts(str(here)) == ["a", "b"]


def test_a_batch_that_is_there_already_needs_its_files_no_more(here: Path) -> None:
    options = options_of(str(here))
    commit(options, stage(options, bodies("a")))
    late = stage(options, bodies("a"), attempt=1)
    os.unlink(here / "spark_mq" / "staged" / late.segments[0].path)
    commit(options, late)
    assert texts(str(here)) == ["a"]


@pytest.mark.parametrize("rows", [[{"body": None}], [{"body": b"a"}, {"body": None}]], ids=["alone", "beside rows"])
@pytest.mark.parametrize("exists", [True, False], ids=["store", "no store"])
def test_dead_letters_that_were_written_elsewhere_fail_the_commit(
    here: Path, tmp_path: Path, rows: list[Row], exists: bool
) -> None:
    dead = tmp_path / "dead"
    options = options_of(str(here), onInvalidRow="deadLetter", deadLetterPath=str(dead))
    if exists:
        commit(options, stage(options, bodies("before"), batch_id=0))
    staged = stage(options, rows, batch_id=1)
    shutil.rmtree(dead)
    with pytest.raises(SparkMqError) as caught:
        commit(options, staged, batch_id=1)
    not_found(str(caught.value), f"at {dead} ", "does not find that file")
    if exists:
        assert texts(str(here)) == ["before"]
    else:
        assert not (here / "commitlog").exists()


def test_a_task_that_does_not_see_the_store_stages_nothing(here: Path, tmp_path: Path) -> None:
    """And judges no row: the store's topics are not known to it."""
    options = options_of(
        str(here), createTopic="false", onInvalidRow="deadLetter", deadLetterPath=str(tmp_path / "dead")
    )
    made = options_of(str(here))
    commit(made, stage(made, bodies("a")))
    seen = check_place(options)
    assert seen is not None
    elsewhere(here)
    other = StoreBuilder(tmp_path / "other")
    other.send_many("Another", 3)
    columns = InputColumns(("body",), kafka=False)
    for place in (None, tmp_path / "empty", other.root):
        if place is not None:
            place.mkdir(exist_ok=True)
            os.symlink(place, here)
        before = files_under(str(tmp_path))
        with pytest.raises(SparkMqError) as caught:
            stage_rows(options, columns, Batch("s", "q", 1), 0, 0, frames_of(bodies("b")), seen=seen)
        not_found(str(caught.value), f"at {here} ")
        assert files_under(str(tmp_path)) == before
        here.unlink(missing_ok=True)


def test_a_task_goes_on_in_a_store_that_has_grown_and_expired_since(here: Path) -> None:
    store = StoreBuilder(here, log_file_size_bytes=4 << 10)
    store.send_many("T", 3)
    options = options_of(str(here))
    seen = check_place(options)
    assert seen is not None
    while len(store.log_files) < 4:
        store.send_many("T", 10)
    while len(store.log_files) > 2:
        store.delete_oldest_log_file()
    columns = InputColumns(("body",), kafka=False)
    staged = stage_rows(options, columns, Batch("s", "q", 0), 0, 0, frames_of(bodies("b")), seen=seen)
    assert staged.segments[0].rows == 1


@pytest.mark.parametrize("mode", ["writer", "streamWriter"])
def test_the_driver_tells_the_tasks_what_it_sees(here: Path, mode: str) -> None:
    source = SparkMqDataSource({"path": str(here), "topic": "T"})
    assert getattr(source, mode)(SCHEMA, False).sink.seen is None, "there is no store yet"
    options = options_of(str(here))
    commit(options, stage(options, bodies("a")))
    seen = getattr(source, mode)(SCHEMA, False).sink.seen
    assert seen.fingerprint.files[0].start == 0
    with open_store(here) as store:
        taken = store.fingerprint()
        assert taken is not None
        assert seen.fingerprint.files == taken.files


def test_relative_paths_are_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"path": "store", "topic": "T", "conf": "./b.conf", "onInvalidRow": "deadLetter", "deadLetterPath": "dead"}
    options = SinkOptions.parse(given, "batch")
    assert (options.root, options.conf) == (f"{tmp_path}/store", f"{tmp_path}/b.conf")
    assert options.dead_letter_path == f"{tmp_path}/dead"
    assert SinkOptions.parse({**given, "path": "file:///data/store"}, "batch").root == "/data/store"
