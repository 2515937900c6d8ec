"""What a remote file system may leave out: it reads as the local one, or it is refused; never as an empty store."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_mq.cli.message_lines import dump_queue
from spark_mq.source.cluster import Cluster
from storage import open_store
from storage.errors import FileSystemUnavailableError, StoreNotFoundError
from storage.files.remote import RemoteFileSystem
from tests.support.store_builder import StoreBuilder
from tests.support.web_store import WebFlaws, web_store

needs_a_web_client = pytest.mark.skipif(find_spec("aiohttp") is None, reason="aiohttp comes with the extra s3")
GROUP_TOPIC = "%RETRY%abc"  # `%ab` means another character in the path of a URL


class Lacking(MemoryFileSystem):  # type: ignore[misc]
    """A file system in memory that leaves out what `lacks` says."""

    protocol = "lacking"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    lacks = ""
    kept: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("lacking://", "memory://"))
        return stripped

    def ls(self, path: str, detail: bool = True) -> list[Any]:  # takes no further arguments, as fsspec's of SFTP
        path = self._strip_protocol(path)
        if self.lacks == "new listings" and path in self.kept:
            return self.kept[path]
        found = [dict(entry) for entry in super().ls(path, detail=True)]
        for entry in found:
            if self.lacks == "sizes" or self.lacks == "any size":
                entry["size"] = None
            elif self.lacks == "size fields":
                del entry["size"]
            elif self.lacks == "kinds":
                entry["type"] = "link"
                entry["size"] = 9
            elif self.lacks == "kind fields":
                del entry["type"]
            elif self.lacks == "plain names" and entry["type"] == "directory":
                entry["name"] += "/"
            elif self.lacks == "files at info":
                entry["size"] = None
        if self.lacks == "plain names":
            found += [{"name": f"{path}/", "size": 0, "type": "directory"}, *found]
        if self.lacks == "files at info":
            found.append({"name": f"{path}/99999999999999999999", "size": None, "type": "file"})
        self.kept[path] = found
        return found

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if self.lacks == "new listings":
            for entry in self.kept.get(self._parent(path), ()):
                if entry["name"] == path:
                    return entry
        if self.lacks == "a server" and "/commitlog/" in path:
            raise FileNotFoundError(path) from TimeoutError("no answer")
        found: dict[str, Any] = super().info(path, **options)
        return {**found, "size": None} if self.lacks == "any size" else found

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        if self.lacks == "ranges":
            start = end = None
        content: bytes = super().cat_file(path, start=start, end=end, **options)
        return content[:-1] if self.lacks == "last bytes" else content

    def invalidate_cache(self, path: str | None = None) -> None:
        self.kept.clear()


@pytest.fixture
def lacking() -> Iterator[type[Lacking]]:
    fsspec.register_implementation("lacking", Lacking, clobber=True)
    yield Lacking
    Lacking.lacks = ""
    for kept in (Lacking.store, Lacking.kept):
        kept.clear()
    Lacking.pseudo_dirs[:] = [""]


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    made = StoreBuilder(tmp_path / "stores" / "broker-a", log_file_size_bytes=4 << 10)
    for topic in ("Topic", GROUP_TOPIC):
        made.send_many(topic, 60)
    assert len(made.log_files) > 2
    return made


def lines(url: str) -> list[dict[str, Any]]:
    with open_store(url) as opened:
        return [
            line
            for topic in opened.topics()
            for queue_id in opened.queue_ids(topic)
            for line in dump_queue(opened, topic, queue_id)
        ]


def uploaded(store: StoreBuilder) -> str:
    Lacking().put(str(store.root) + "/", "/stores/broker-a/", recursive=True)
    return "lacking://stores/broker-a"


@pytest.mark.parametrize(
    "lacks",
    ["", "sizes", "size fields", "kinds", "kind fields", "plain names", "new listings", "files at info"],
)
def test_what_a_listing_leaves_out_is_requested(lacks: str, lacking: type[Lacking], store: StoreBuilder) -> None:
    url = uploaded(store)
    lacking.lacks = lacks
    assert lines(url) == lines(str(store.root))
    store.send_many("Topic", 60)  # in new files
    uploaded(store)
    assert lines(url) == lines(str(store.root)), "a listing that was kept is not looked at"


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ("any size", "nothing there tells how large the file is"),
        ("ranges", "bytes came where bytes"),
        ("last bytes", "only"),
        ("a server", "no answer"),
    ],
)
def test_what_cannot_be_known_is_refused(lacks: str, reason: str, lacking: type[Lacking], store: StoreBuilder) -> None:
    url = uploaded(store)
    lacking.lacks = lacks
    with pytest.raises(FileSystemUnavailableError, match=reason):
        lines(url)


@pytest.mark.parametrize("lacks", ["any size", "last bytes", "a server"])
def test_a_table_that_cannot_be_read_is_not_taken_for_none(lacks: str, lacking: type[Lacking]) -> None:
    lacking().pipe_file("/stores/commitlog/config.json", b"{}")
    lacking.lacks = lacks
    files = RemoteFileSystem("lacking://stores")
    with pytest.raises(FileSystemUnavailableError):
        files.read_file("lacking://stores/commitlog/config.json")
    if lacks != "a server":
        assert files.read_file("lacking://stores/commitlog/none.json") is None


def test_a_file_that_is_shorter_than_it_was_is_refused(lacking: type[Lacking]) -> None:
    lacking().pipe_file("/file", b"x" * 1_000)
    file = RemoteFileSystem("lacking://file").open_file("lacking://file")
    lacking().pipe_file("/file", b"x" * 900)
    assert file.view(0, 0).tobytes() == b""
    with pytest.raises(FileSystemUnavailableError, match="only 900 bytes"):
        file.view(0, 1_000)


@needs_a_web_client
def test_a_store_on_the_web_reads_as_the_local_one(store: StoreBuilder) -> None:
    links = '<a href="?C=N;O=D">Name</a><a href="../">up</a><a href="/">top</a><a href="#top">#</a>'
    flaws = WebFlaws(adds_links=links)
    with web_store(store.root.parent, flaws) as url:
        assert [queue.topic for queue in Cluster.open([url]).queues()] == [GROUP_TOPIC, "Topic"]
        assert lines(f"{url}/broker-a") == lines(f"{url}/broker-a/") == lines(str(store.root))


@needs_a_web_client
@pytest.mark.parametrize(
    ("flaws", "reason"),
    [
        (WebFlaws(ignores_ranges=True), "answers byte ranges"),
        (WebFlaws(hides_sizes=True), "nothing there tells how large"),
        (WebFlaws(cuts=True), "only"),
        (WebFlaws(fails="commitlog"), "503"),
        (WebFlaws(fails="/0{20}$"), "503"),
        (WebFlaws(fails="consumequeue/$"), "503"),
    ],
    ids=["no ranges", "no sizes", "short answers", "no log", "no files", "no queues"],
)
def test_a_web_server_that_lacks_something_is_no_empty_store(flaws: WebFlaws, reason: str, store: StoreBuilder) -> None:
    with web_store(store.root.parent, flaws) as url, pytest.raises(FileSystemUnavailableError) as raised:
        lines(f"{url}/broker-a")
    assert reason in str(raised.value)


@pytest.mark.parametrize("url", ["zip://store::file:///a.zip", "simplecache::s3://bucket/store", "http://h/store?a=b"])
def test_a_url_below_which_nothing_can_be_named_is_refused(url: str) -> None:
    with pytest.raises(FileSystemUnavailableError, match=r"only plain URLs|query"):
        open_store(url)


def test_a_zipped_store_is_read(store: StoreBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "stores.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in store.root.rglob("*"):
            archive.write(path, path.relative_to(store.root.parent))
    monkeypatch.setitem(fsspec.config.conf, "zip", {"fo": str(tmp_path / "stores.zip"), "skip_instance_cache": True})
    assert lines("zip://broker-a") == lines(str(store.root))


def test_a_log_without_files_is_lost_and_not_empty(store: StoreBuilder) -> None:
    for file in store.log_files:
        file.unlink()
    with pytest.raises(StoreNotFoundError, match="the log has no file, though its queues have some"):
        Cluster.open([str(store.root)])
