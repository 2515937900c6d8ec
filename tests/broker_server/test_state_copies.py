"""State files of a master taken over: what counts messages is stored behind the log that it counts, and never before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.broker_server.state_copies import Master, MasterPlace, StateCopies, copies_of
from spark_mq.client.errors import ResponseError
from spark_mq.client.settings import ClientSettings
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import SlaveHandshake
from storage.ha.follower import open_following
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.tables.consumer_groups import OFFSETS_FILE
from storage.tables.delay_progress import TIMER_CHECKPOINT_FILE, FollowedTimer, read_followed_timer
from storage.tables.masters import DELAYS_FILE
from storage.tables.topics import TOPICS_FILE

SAID = {
    OFFSETS_FILE: {"offsetTable": {"T@G": {"0": 3}}, "dataVersion": {"counter": 1}},
    DELAYS_FILE: {"offsetTable": {"1": 5}, "dataVersion": {"counter": 1}},
    TIMER_CHECKPOINT_FILE: {"readTimeMs": 5_000, "queueOffset": 2},
}


class Told(Master):
    """A master whose answers are set."""

    def __init__(self) -> None:
        super().__init__(ClientSettings(("127.0.0.1:1",)))
        self.end = 0
        self.address = "127.0.0.1:10911"
        self.asked: list[str] = []
        self.has_timer = True

    def place(self) -> MasterPlace | None:
        return MasterPlace(self.address, "127.0.0.1:10912")

    def bounds(self) -> tuple[int, int] | None:
        self.asked.append("bounds")
        return 0, self.end

    def state(self, name: str) -> str | None:
        self.asked.append(name)
        if name == TIMER_CHECKPOINT_FILE and not self.has_timer:
            raise ResponseError(1, "The timer message store is null", self.address, "60")
        return json.dumps(SAID[name]) if name in SAID else None


@contextmanager
def copying(root: Path) -> Iterator[tuple[PutService, Told, StateCopies]]:
    store = open_store(root, config=StoreConfig.tiny(), read_only=False, create=True)
    with PutService(store) as service:
        master = Told()
        yield service, master, StateCopies(service, master)


def stored(service: PutService, name: str) -> object:
    path = Path(service.store.root) / "config" / name
    return json.loads(path.read_text("utf-8"))["offsetTable"] if path.exists() else None


def append(service: PutService) -> None:
    with service.exclusive() as store:
        store.put("T", b"x" * 100)


@pytest.mark.parametrize("name", [OFFSETS_FILE, DELAYS_FILE])
def test_offsets_wait_for_the_log_that_they_count(tmp_path: Path, name: str) -> None:
    with copying(tmp_path / "store") as (service, master, copies):
        append(service)
        master.end = service.log_end + 1
        copies.copy()
        assert stored(service, name) is None
        copies.copy()  # the later ones, which count more, take no turn from those that wait
        assert master.asked.count("bounds") == 1
        assert master.asked.index("bounds") > master.asked.index(name)
        append(service)
        copies.settle()
        assert stored(service, name) == SAID[name]["offsetTable"]


def test_offsets_of_another_master_are_dropped(tmp_path: Path) -> None:
    with copying(tmp_path / "store") as (service, master, copies):
        master.end = service.log_end + 1
        copies.copy()
        master.address = "127.0.0.1:20911"
        append(service)
        copies.settle()
        assert stored(service, DELAYS_FILE) is None


def test_a_log_that_is_there_needs_no_wait(tmp_path: Path) -> None:
    with copying(tmp_path / "store") as (service, master, copies):
        append(service)
        master.end = service.log_end
        copies.copy()
        assert stored(service, DELAYS_FILE) == {"1": 5}


def test_how_far_the_timer_is_waits_for_the_log_in_which_its_messages_are(tmp_path: Path) -> None:
    with copying(tmp_path / "store") as (service, master, copies):
        files, root = LocalFileSystem(), service.store.root
        append(service)
        master.end = service.log_end + 1
        copies.copy()
        assert read_followed_timer(files, root) is None
        append(service)
        copies.settle()
        assert read_followed_timer(files, root) == FollowedTimer(5_000, 2)


def test_a_master_without_a_timer_is_followed_in_all_else(tmp_path: Path) -> None:
    with copying(tmp_path / "store") as (service, master, copies):
        master.has_timer = False
        append(service)
        master.end = service.log_end
        copies.copy()
        assert stored(service, DELAYS_FILE) == {"1": 5}
        assert read_followed_timer(LocalFileSystem(), service.store.root) is None


def test_what_counts_messages_is_asked_for_when_the_logs_agree(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", config=StoreConfig.tiny(), read_only=False, create=True)
    with PutService(store) as service:
        master, follows = Told(), False
        copies = StateCopies(service, master, follows=lambda: follows)
        append(service)  # it may be one that the master does not have
        copies.copy()
        copies.settle()
        assert OFFSETS_FILE not in master.asked
        follows = True
        copies.settle()
        assert stored(service, OFFSETS_FILE) == SAID[OFFSETS_FILE]["offsetTable"]


@pytest.mark.parametrize("table", [{"x": 5}, {"1": {}}, {"1": "many"}])
def test_levels_that_are_none_are_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: dict[str, object]
) -> None:
    """With them the store would not be opened any more."""
    monkeypatch.setitem(SAID, DELAYS_FILE, {"offsetTable": table, "dataVersion": {"counter": 2}})
    with copying(tmp_path / "store") as (service, _, copies):
        copies.copy()
        assert stored(service, DELAYS_FILE) is None
        assert stored(service, OFFSETS_FILE) is not None, "what is right is taken over all the same"


def test_a_learner_whose_log_was_cut_goes_on_copying_into_the_store_as_it_is_open_then(tmp_path: Path) -> None:
    root = tmp_path / "store"
    identity = SlaveHandshake(9, is_learner=True)
    with open_following(str(root), lambda: None, config=StoreConfig.tiny(), identity=identity) as following:
        copies = copies_of(following, Told())
        copies.copy()
        following.follower.close()
        following.switching(identity).diverged(0, 0)
        with pytest.MonkeyPatch.context() as patched:
            topics = {"topicConfigTable": {"New": {"perm": 6, "topicName": "New"}}, "dataVersion": {"counter": 9}}
            patched.setitem(SAID, TOPICS_FILE, topics)
            copies.copy()
        assert "New" in following.service.settings.topics.topics


def test_a_topic_with_batch_queues_that_the_master_gets_ends_the_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_following(str(tmp_path / "store"), lambda: None, config=StoreConfig.tiny()) as following:
        copies = copies_of(following, Told())
        entry = {"perm": 6, "topicName": "Batches", "attributes": {"queue.type": "BatchCQ"}}
        topics = {"topicConfigTable": {"Batches": entry}, "dataVersion": {"counter": 9}}
        monkeypatch.setitem(SAID, TOPICS_FILE, topics)
        copies.copy()
        assert following.follower.wait(lambda status: status.is_hopeless, 30)
        assert "its master has topic Batches" in str(following.follower.failure)
        assert "Batches" not in following.service.settings.topics.topics
