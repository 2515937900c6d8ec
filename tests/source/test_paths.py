"""Paths that are no store's: the text names the place that was looked at, what is there, and the path to give instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import spark_mq
from spark_mq.conditions import OptionError, SparkMqError
from spark_mq.options import parse_path
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.place import check_place
from spark_mq.source.cluster import find_stores
from spark_mq.source.options import SourceOptions, parse_paths
from storage import open_store
from storage.errors import ForeignLogError, StoreNotFoundError, StoreNotWritableError, StoreRefusedError
from storage.files.file_system import DirectoryEntry
from storage.files.local_file_system import LocalFileSystem

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


@pytest.mark.parametrize("path", ["~/store", "file://~/store"])
def test_a_command_is_told_of_a_tilde_once_and_in_the_same_words(path: str) -> None:
    with pytest.raises(StoreRefusedError) as caught:
        find_stores(path)
    assert caught.value.describe() == f"store {path.removeprefix('file://')} is refused: {NOT_EXPANDED}"
    assert str(caught.value).count("~/store") == 1


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


@pytest.mark.parametrize("part", ["commitlog/0", "config/topics.json", "spark_mq/staged/x", "consumequeue/T"])
def test_whatever_lies_in_a_store_names_that_store(tmp_path: Path, part: str) -> None:
    inside = _store(tmp_path / "a" / "store") / part
    inside.parent.mkdir(parents=True, exist_ok=True)
    if part.endswith("T"):
        inside.mkdir()
    else:
        inside.write_text("x", "utf-8")
    for look in (find_stores, open_store):
        with pytest.raises(StoreNotFoundError) as caught:
            look(str(inside))
        assert caught.value.hint == f"give the directory that holds it: {tmp_path}/a/store"


def test_no_store_is_made_in_another_and_the_text_speaks_of_no_mount(tmp_path: Path) -> None:
    store = _store(tmp_path / "store")
    with pytest.raises(ForeignLogError) as caught:
        open_store(store / "new", read_only=False, create=True)
    assert (
        caught.value.describe() == f"store {store}/new is not written: {store}/new would lie in another store, {store}"
    )
    assert caught.value.hint == f"give {store}, or a directory outside of it"


def test_a_directory_that_nobody_may_list_above_a_path_is_passed_over(tmp_path: Path) -> None:
    class Closed(LocalFileSystem):
        def list_directory(self, path: str) -> list[DirectoryEntry]:
            if path == str(tmp_path):
                raise PermissionError(13, "Permission denied", path)
            return super().list_directory(path)

    with pytest.raises(StoreNotFoundError, match="commitlog/") as caught:
        find_stores(f"{tmp_path}/a/b", Closed())
    assert "holds it" not in str(caught.value)


@pytest.mark.parametrize("servers", ["localhost:9876", "192.168.0.1:9876;192.168.0.2:9876"])
def test_the_address_of_a_name_server_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: str) -> None:
    monkeypatch.chdir(tmp_path)
    rule = "a path names a store's directory, and this looks like a name server; a running cluster is read with the option "
    rule += "nameServer, by spark-mq with --name-server"
    for given in ({"path": servers, "topic": "T"}, {"paths": f'["/a", "{servers}"]', "topic": "T"}):
        with pytest.raises(OptionError, match=f"{servers}: {rule}; .* ./{servers}"):
            SourceOptions.parse(given)
    with pytest.raises(OptionError, match=rule):
        SinkOptions.parse({"path": servers}, "batch")
    for look in (find_stores, open_store):
        with pytest.raises(StoreNotFoundError, match=rule):
            look(servers)
    with pytest.raises(StoreNotFoundError, match=rule):
        open_store(servers, read_only=False, create=True)
    assert not list(tmp_path.iterdir())
    assert SourceOptions.parse({"path": f"./{servers}", "topic": "T"}).path == f"./{servers}"
    (tmp_path / servers / "commitlog").mkdir(parents=True)
    assert find_stores(servers) == [servers], "a store of that name is one"


def test_opening_a_new_path_for_writing_says_how_a_store_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError) as caught:
        open_store(tmp_path / "new", read_only=False)
    assert "create=True" in str(caught.value)
    for call in ({"read_only": True}, {"read_only": False, "create": True}):
        (tmp_path / "notes.txt").write_text("x", "utf-8")
        with pytest.raises(StoreNotFoundError) as caught:
            open_store(tmp_path, **call)
        assert "create=True" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/store", "hdfs://name:8020/store", "foo://x"])
def test_what_is_no_local_path_is_not_written_before_anybody_asks_it(url: str) -> None:
    rule = f"only a local or mounted directory is written; {url.partition(':')[0]}:// is for reading"
    with pytest.raises(StoreNotWritableError) as caught:
        open_store(url, read_only=False, create=True)
    assert caught.value.describe() == f"store {url} cannot be written: {rule}"
    with pytest.raises(OptionError, match=f"option path: {url}: {rule}"):
        SinkOptions.parse({"path": url}, "batch")


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
