"""A configuration that names another store's log: whichever way in is taken, that log is not written, and nothing is left behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from jobs import JOBS
from spark_mq.cli import app
from spark_mq.cli.app import COMMANDS
from storage.files.local_file_system import LocalFileSystem
from tests.support.shares import one_in
from tests.support.store_copies import make_store, picture, write_conf
from tests.support.ways_in import GROUP, READING, WRITING

READ_ONLY_COMMANDS = {"demo", "doctor", "job", "quarantine"}
REPLICA_COMMANDS = {"console", "convert", "promote", "replicate"}
"""One opens what has followed a master alone, one makes a new store; the others read until they are stopped."""
CLUSTER_COMMANDS = {"broker", "brokers", "consume", "controller", "groups", "namesrv", "reset-offset"}
"""They take no path."""
"""They open no store that a configuration is given for; `demo` makes one of its own."""
SPARK_JOBS = {"archive", "restore"}
"""They read and write by the source and the sink of Spark, which the tables have."""


class Places(NamedTuple):
    """A store that somebody else runs, and a place whose configuration names that store's log."""

    live: Path
    root: Path
    conf: Path


def nothing(place: Path) -> Places:
    make_store(place / "live")
    conf = write_conf(place / "other.conf", place / "live" / "commitlog")
    return Places(place / "live", place / "new", conf)


def an_empty_directory(place: Path) -> Places:
    places = nothing(place)
    places.root.mkdir()
    return places


def queues_without_a_log(place: Path) -> Places:
    places = nothing(place)
    shutil.copytree(places.live, places.root)
    shutil.rmtree(places.root / "commitlog")
    (places.root / "consumequeue" / f"%DLQ%{GROUP}" / "0").mkdir(parents=True)
    return places


def two_directories(place: Path) -> Places:
    places = queues_without_a_log(place)
    (places.root / "commitlog").mkdir()
    write_conf(places.conf, f"{places.root}/commitlog,{places.live}/commitlog")
    return places


def nothing_and_a_log_on_another_disk(place: Path) -> Places:
    places = nothing(place)
    (place / "disk").mkdir()
    shutil.move(places.live / "commitlog", place / "disk" / "log")
    write_conf(places.conf, place / "disk" / "log")
    return places._replace(live=place / "disk")


@pytest.mark.filterwarnings("ignore::storage.settings.load.ConfigurationWarning")
@pytest.mark.parametrize(
    "arrange",
    one_in(3, [nothing, an_empty_directory, queues_without_a_log, two_directories, nothing_and_a_log_on_another_disk]),
)
def test_every_way_to_write_is_refused_and_changes_nothing(arrange: object, tmp_path: Path) -> None:
    assert callable(arrange)
    places: Places = arrange(tmp_path)
    before, is_store = picture(places.live, places.root), (places.root / "consumequeue").exists()
    for name, way in WRITING.items():
        refusal = way(str(places.root), str(places.conf))
        assert refusal is not None, name
        assert picture(places.live, places.root) == before, name
        if is_store:
            said = " ".join(refusal.split())
            assert "is not written: " in said, f"{name}: {refusal}"
            assert str(places.live) in said, f"{name}: {refusal}"


@pytest.mark.filterwarnings("ignore::storage.settings.load.ConfigurationWarning")
def test_every_way_to_read_goes_on_and_changes_nothing(tmp_path: Path) -> None:
    places = queues_without_a_log(tmp_path)
    before = picture(places.live, places.root)
    for name, way in READING.items():
        way(str(places.root), str(places.conf))
        assert picture(places.live, places.root) == before, name
    assert READING["open_store"](str(places.root), str(places.conf)) is None
    assert READING["command dump"](str(places.root), str(places.conf)) is None


def test_the_refusal_says_in_one_line_what_is_wrong_where_and_what_to_do(tmp_path: Path) -> None:
    places = nothing(tmp_path)
    done = CliRunner().invoke(
        app, ["produce", str(places.root), "--topic", "t", "--conf", str(places.conf)], input="y\n"
    )
    assert done.exit_code == 1
    error, hint = done.stderr.splitlines()
    log = places.live / "commitlog"
    assert error == (
        f"error: store {places.root} is not written: storePathCommitLog in {places.conf} names {log}, "
        f"which belongs to another store, {places.live}"
    )
    assert hint.startswith("hint: take the path away from the configuration")
    assert not places.root.exists()


def test_a_staged_file_of_the_store_is_not_removed_either(tmp_path: Path) -> None:
    places = queues_without_a_log(tmp_path)
    staged = places.root / "spark_mq" / "staged" / "0" / "0-0-0.segment"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"rows")
    assert WRITING["command sink-status --remove-orphans"](str(places.root), str(places.conf)) is not None
    assert staged.exists()


def test_the_table_names_every_command_and_every_job() -> None:
    commands = {name.split()[1] for name in (*WRITING, *READING) if name.startswith("command ")}
    assert commands | READ_ONLY_COMMANDS | REPLICA_COMMANDS | CLUSTER_COMMANDS == set(COMMANDS)
    jobs = {name.split()[1] for name in (*WRITING, *READING) if name.startswith("job ")}
    assert jobs | SPARK_JOBS == set(JOBS)


def test_bind_log_says_what_it_did_and_where_nothing_is_to_be_bound(tmp_path: Path) -> None:
    conf = make_store(tmp_path / "store")
    done = CliRunner().invoke(app, ["bind-log", str(tmp_path / "store"), "--conf", str(conf)])
    assert done.exit_code == 1
    assert "the log of" in done.stderr
    assert "lies in its own directory\nhint: such a store needs no binding" in done.stderr
    shutil.move(tmp_path / "store" / "commitlog", tmp_path / "log")
    write_conf(conf, tmp_path / "log")
    done = CliRunner().invoke(app, ["bind-log", str(tmp_path / "store"), "--conf", str(conf)])
    assert done.exit_code == 0, done.output
    assert LocalFileSystem().exists(f"{tmp_path}/store/spark_mq/log_binding.json")
    done = CliRunner().invoke(
        app, ["produce", str(tmp_path / "store"), "--topic", "t", "--conf", str(conf)], input="y\n"
    )
    assert done.exit_code == 0, done.output
