"""Paths that are no store's: the text names the place that was looked at, what is there, and the path to give instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import spark_mq
from spark_mq.conditions import OptionError, SparkMqError
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.place import check_place
from spark_mq.source.cluster import find_stores
from spark_mq.source.option_values import parse_path, parse_paths
from spark_mq.source.options import SourceOptions
from storage import open_store
from storage.errors import StoreNotFoundError, StoreRefusedError

NOT_EXPANDED = "~ is not expanded by Spark or Python, only by a shell; write the home directory out"


@pytest.mark.parametrize("path", ["~", "~/store", "~user/store", "file://~/store"])
def test_a_path_that_begins_with_a_tilde_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match=NOT_EXPANDED):
        parse_path(path, "path")
    with pytest.raises(OptionError, match=NOT_EXPANDED):
        parse_paths(f'["/a", "{path}"]', "paths")
    with pytest.raises(StoreRefusedError, match=NOT_EXPANDED):
        open_store(path, read_only=False, create=True)


@pytest.mark.parametrize("option", ["path", "conf", "deadLetterPath"])
def test_every_path_option_of_the_sink_is_asked_for_a_tilde(option: str) -> None:
    given = {"path": "/s", "onInvalidRow": "deadLetter", "deadLetterPath": "/d", "conf": "/c", option: "~/x"}
    with pytest.raises(OptionError, match=rf"option {option}: ~/x: {NOT_EXPANDED}"):
        SinkOptions.parse(given, "batch")


def test_a_tilde_further_on_is_a_character_like_others() -> None:
    assert parse_path("/a/~b", "path") == "/a/~b"
    assert parse_path("./~b", "path") == "./~b"


def test_a_relative_path_is_shown_from_the_root_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreNotFoundError, match=f"no RocketMQ store at {tmp_path}/some/store: "):
        find_stores("some/store")


def test_the_example_store_is_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert spark_mq.unpack_example_store("example") == f"{os.getcwd()}/example/store"


def _store(root: Path) -> Path:
    (root / "commitlog").mkdir(parents=True)
    (root / "consumequeue").mkdir()
    return root


def _refused_write(path: Path) -> str:
    with pytest.raises(SparkMqError, match="SPARK_MQ_STORE_NOT_FOUND") as caught:
        check_place(SinkOptions.parse({"path": str(path)}, "batch"))
    return str(caught.value)


def test_a_part_of_a_store_names_the_directory_that_holds_it(tmp_path: Path) -> None:
    store = _store(tmp_path / "store")
    with pytest.raises(StoreNotFoundError, match="commitlog: it is a part of a store") as caught:
        find_stores(f"{store}/commitlog")
    assert caught.value.hint == f"give the directory that holds it: {store}"


def test_a_file_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text("{}", "utf-8")
    with pytest.raises(StoreNotFoundError, match=r"topics\.json: it is a file"):
        find_stores(f"{tmp_path}/topics.json")
    assert "it is a file" in _refused_write(tmp_path / "topics.json")


def test_a_sinks_directory_of_other_things_is_not_empty_and_holds_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x", "utf-8")
    text = _refused_write(tmp_path)
    assert "the directory is not empty and holds no store" in text
    assert "give an empty or new directory, or the store itself" in text


def test_a_sinks_path_that_is_a_brokers_home_names_its_store(tmp_path: Path) -> None:
    _store(tmp_path / "store")
    assert f"no RocketMQ store at {tmp_path}: the store is {tmp_path}/store" in _refused_write(tmp_path)


def test_a_sinks_store_that_has_lost_its_log_is_not_called_a_directory_without_a_store(tmp_path: Path) -> None:
    for name in ("consumequeue", "config", "timerlog"):
        (tmp_path / name).mkdir()
    assert "commitlog/ is missing" in _refused_write(tmp_path)


def test_an_unknown_store_of_the_source_is_told_by_an_absolute_path_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SourceOptions.parse({"path": "s", "topic": "T"}).stores == ("s",), "checkpoints have it as it was written"
