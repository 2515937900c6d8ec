"""State files of a master taken over: what counts messages is stored behind the log that it counts, and never before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker_server import member_group, state_copies
from spark_mq.broker_server.masters import Master, MasterPlace
from spark_mq.broker_server.member_group import Group, Member
from spark_mq.broker_server.state_copies import StateCopies, copies_of
from spark_mq.client.errors import BrokerUnreachableError, ResponseError
from spark_mq.client.settings import ClientSettings
from storage import open_store
from storage.delay.schedule import save_level
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import SlaveHandshake
from storage.ha.follower import open_following, promote
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.tables.document import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE
from storage.tables.masters import (
    DELAYS_FILE,
    TIMER_CHECKPOINT_FILE,
    FollowedTimer,
    note_followed_master,
    read_followed_timer,
)
from storage.tables.topics import MAPPINGS_FILE, TopicQueueMappingTable, TopicTable
from storage.transaction.progress import TransactionProgress, save_progress
from tests.support.waiting import wait_until

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
        self.failures = 0
        """So many requests fail from now on."""

    def place(self) -> MasterPlace | None:
        return MasterPlace(self.address, "127.0.0.1:10912")

    def bounds(self) -> tuple[int, int] | None:
        self.asked.append("bounds")
        return 0, self.end

    def state(self, name: str) -> str | None:
        self.asked.append(name)
        if self.failures:
            self.failures -= 1
            raise BrokerUnreachableError(self.address, "refused")
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
        assert (stored(service, name), copies.knows_progress(name)) == (None, False)
        copies.copy()  # the later ones, which count more, take no turn from those that wait
        assert master.asked.count("bounds") == 1
        assert master.asked.index("bounds") > master.asked.index(name)
        append(service)
        copies.settle()
        assert (stored(service, name), copies.knows_progress(name)) == (SAID[name]["offsetTable"], True)
        if name == DELAYS_FILE:  # the other has no entry of half messages
            assert StateCopies(service, master).knows_progress(name), "also after a restart"


def test_what_one_file_says_tells_nothing_of_another(tmp_path: Path) -> None:
    with copying(tmp_path / "store") as (service, master, copies):
        files = DELAYS_FILE, OFFSETS_FILE, TIMER_CHECKPOINT_FILE
        master.has_timer = False
        copies.copy()
        assert [copies.knows_progress(name) for name in files] == [True, True, False]
        assert [StateCopies(service, master).knows_progress(name) for name in files] == [True, False, False]
        master.has_timer = True
        copies.copy()
        assert copies.knows_progress(TIMER_CHECKPOINT_FILE)
        assert StateCopies(service, master).knows_progress(TIMER_CHECKPOINT_FILE), "also after a restart"
        save_progress(service.store, TransactionProgress(1, 1), now_ms=1)
        assert StateCopies(service, master).knows_progress(OFFSETS_FILE)


def test_an_old_answer_does_not_put_back_what_a_slave_has_delivered_since(tmp_path: Path) -> None:
    with copying(tmp_path / "store") as (service, master, copies):
        append(service)
        master.end = service.log_end + 1
        copies.copy()  # its offset 5 is held until the log is there
        save_level(service.store, 1, 90, 1_000)
        append(service)
        copies.settle()
        assert stored(service, DELAYS_FILE) == {"1": 90}
        assert stored(service, OFFSETS_FILE) == SAID[OFFSETS_FILE]["offsetTable"]
        copies.copy()
        assert stored(service, DELAYS_FILE) == {"1": 5}, "a new answer counts"


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


# Topics whose messages came without their entries

TOPICS = {"dataVersion": {"counter": 1}, "topicConfigTable": {}}


def put(service: PutService, topic: str, queue_id: int) -> None:
    """As a master's bytes come: no entry is made."""
    with service.exclusive() as store:
        store.put_inner([InnerMessage(topic=topic, queue_id=queue_id, body=b"x", properties={})])
        store.writer.topic_entries.remove(topic)


def entries(service: PutService) -> dict[str, tuple[int, int, int]]:
    known = service.settings.topics.topics.values()
    return {
        each.topic: (each.read_queue_count, each.write_queue_count, each.perm) for each in known if each.topic.isupper()
    }


def silenced(master: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str | None:
        raise BrokerUnreachableError(master.address, "it is gone")

    monkeypatch.setattr(master, "state", refuse)


def test_a_topic_whose_messages_came_without_its_entry_is_served_once_the_master_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SlaveSynchronize copies topics.json once a minute, and PullMessageProcessor answers TOPIC_NOT_EXIST until then."""
    monkeypatch.setitem(SAID, TOPICS_FILE, TOPICS)
    with copying(tmp_path / "store") as (service, master, copies):
        put(service, "DELETED", 5)
        copies.copy()
        assert entries(service) == {}, "the master has said which topics it has"
        put(service, "FRESH", 2)
        put(service, "FRESH", 0)
        put(service, "%RETRY%G", 0)
        copies.copy()
        assert entries(service) == {}, "a master that answers knows best"
        put(service, "FRESHER", 3)
        put(service, "WIDER", 11)
        put(service, "RMQ_SYS_TRANS_HALF_TOPIC", 0)
        silenced(master, monkeypatch)
        copies.copy()
        assert entries(service) == {"FRESHER": (8, 8, 6), "WIDER": (12, 12, 6)}, (
            "as the first row of each would make it, or wider"
        )


def test_an_entry_with_fewer_queues_than_have_messages_gets_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"T": {"topicName": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 4, "order": True}}
    monkeypatch.setitem(SAID, TOPICS_FILE, {**TOPICS, "topicConfigTable": table})
    with copying(tmp_path / "store") as (service, master, copies):
        copies.copy()
        silenced(master, monkeypatch)
        with service.exclusive() as store:
            store.put_inner([InnerMessage(topic="T", queue_id=7, body=b"x", properties={})])
        copies.copy()
        assert entries(service) == {"T": (8, 8, 4)}
        assert service.settings.topics.topics["T"].order


def test_what_the_master_says_takes_the_place_of_what_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with copying(tmp_path / "store") as (service, master, copies):
        put(service, "FRESH", 0)
        with monkeypatch.context() as gone:
            silenced(master, gone)
            copies.copy()
        assert entries(service) == {"FRESH": (8, 8, 6)}
        table = {"FRESH": {"topicName": "FRESH", "readQueueNums": 16, "writeQueueNums": 8, "perm": 4}}
        monkeypatch.setitem(SAID, TOPICS_FILE, {**TOPICS, "topicConfigTable": table})
        copies.copy()
        assert entries(service) == {"FRESH": (16, 8, 4)}


def test_messages_of_an_unknown_topic_have_its_entry_copied_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SAID, TOPICS_FILE, TOPICS)
    with copying(tmp_path / "store") as (service, master, copies):
        copies.start()
        try:
            wait_until(lambda: master.asked.count(TOPICS_FILE) == 1, "the first copy", 5)
            put(service, "FRESH", 0)
            wait_until(lambda: master.asked.count(TOPICS_FILE) == 2, "the next one, long before its time", 5)
        finally:
            copies.close(copies=False)


def test_a_topic_that_comes_while_the_master_is_asked_is_copied_soon_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SAID, TOPICS_FILE, TOPICS)
    with copying(tmp_path / "store") as (service, master, copies):
        put(service, "DELETED", 0)
        state = master.state

        def state_and_put(name: str) -> str | None:
            if name == GROUPS_FILE and "FRESH" not in {topic for topic, _ in service.store.unserved_queues()}:
                put(service, "FRESH", 1)
            return state(name)

        monkeypatch.setattr(master, "state", state_and_put)
        copies.start()
        try:
            wait_until(lambda: master.asked.count(TOPICS_FILE) == 2, "the next copy, long before its time", 5)
        finally:
            copies.close(copies=False)


@pytest.mark.parametrize("ends_by", ["opening as a master", "promote"])
def test_a_slave_that_becomes_a_master_serves_all_topics_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    monkeypatch.setitem(SAID, TOPICS_FILE, TOPICS)
    root = tmp_path / "store"
    with copying(root) as (service, _, copies):
        put(service, "DELETED", 0)
        copies.copy()
        put(service, "FRESH", 1)
    if ends_by == "promote":
        note_followed_master(LocalFileSystem(), str(root), "127.0.0.1:10912")
        assert promote(str(root), config=StoreConfig.tiny())
    with open_store(root, config=StoreConfig.tiny(), read_only=False) as store:
        topics = store.settings.topics.topics
        assert ("FRESH" in topics, "DELETED" in topics) == (True, False)
        assert topics["FRESH"].read_queue_count == 8
        store.writer.topic_entries.remove("FRESH")
    with open_store(root, config=StoreConfig.tiny(), read_only=False) as store:
        assert "FRESH" not in store.settings.topics.topics, "an own topic that is deleted stays so"


def test_a_replica_of_the_log_alone_serves_all_topics_when_it_is_promoted(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with copying(root) as (service, _, _copies):
        put(service, "FRESH", 1)
    note_followed_master(LocalFileSystem(), str(root), "127.0.0.1:10912")
    assert promote(str(root), config=StoreConfig.tiny())
    with open_store(root) as store:
        table = store.state(TOPICS_FILE, TopicTable.load)
        assert table is not None
        assert table.topics["FRESH"].read_queue_count == 8


def test_static_topics_come_with_the_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SlaveSynchronize.syncTopicConfig takes the version of the mappings, and none of them."""
    link = {"bname": "b", "queueId": 1, "gen": 0, "logicOffset": 0, "startOffset": 0, "endOffset": -1}
    mapping = {
        "topic": "S",
        "bname": "b",
        "totalQueues": 1,
        "epoch": 7,
        "scope": "__global__",
        "hostedQueues": {"0": [link]},
    }
    said = {**TOPICS, "mappingDataVersion": {"counter": 3}, "topicQueueMappingDetailMap": {"S": mapping}}
    monkeypatch.setitem(SAID, TOPICS_FILE, said)
    written: list[str] = []
    monkeypatch.setattr(state_copies, "note_copied_topics", lambda *given: written.append("note"))
    with copying(tmp_path / "store") as (service, _, copies):
        monkeypatch.setattr(copies, "_copied", written.append)
        copies.copy()
        assert written[:3] == [MAPPINGS_FILE, TOPICS_FILE, "note"]
        table = service.state(MAPPINGS_FILE, TopicQueueMappingTable.load)
        assert table is not None
        assert table.version.counter == 3
        assert table.mappings["S"].hosted_queues[0][0].queue_id == 1


class Slaves:
    """A group as name servers tell it, of one slave."""

    own = Member("c", "b", 0, "h:1")

    def __init__(self, *found: Group | None) -> None:
        self.found = list(found)

    def ask(self) -> Group | None:
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]


def taken_back(
    service: PutService, monkeypatch: pytest.MonkeyPatch, slave: Told, *found: Group | None, patience_s: float = 600.0
) -> None:
    monkeypatch.setattr(member_group, "_TAKE_BACK_PAUSE_S", 0)
    monkeypatch.setattr(member_group, "_StandIn", lambda client, address: slave)
    group: Any = Slaves(*found)
    settings = ClientSettings(("127.0.0.1:1",))
    member_group.take_back(service, settings, group, takes_timer=True, patience_s=patience_s)


GROUP = Group({0: "h:1", 1: "h:2"})


def test_a_returned_master_asks_a_slave_again_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copying(tmp_path / "store") as (service, slave, _):
        append(service)
        slave.end, slave.failures = service.log_end, 2
        taken_back(service, monkeypatch, slave, None, GROUP)
        assert (stored(service, DELAYS_FILE), slave.failures) == ({"1": 5}, 0)
        assert read_followed_timer(LocalFileSystem(), service.store.root) == FollowedTimer(5_000, 2)


@pytest.mark.parametrize(
    ("failures", "ahead", "found", "said"),
    [
        (99, 0, GROUP, "what slave h:2 has delivered or noted meanwhile is not taken over"),
        (0, 1, GROUP, "its log ends at"),
        (0, 0, None, "no name server names the slaves"),
    ],
)
def test_a_returned_master_names_what_it_has_not_taken_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failures: int,
    ahead: int,
    found: Group | None,
    said: str,
) -> None:
    with copying(tmp_path / "store") as (service, slave, _):
        append(service)
        slave.end, slave.failures = service.log_end + ahead, failures
        taken_back(service, monkeypatch, slave, found, patience_s=600.0 if ahead else 0.0)
        assert stored(service, DELAYS_FILE) is None
        assert said in caplog.text


def test_a_slave_that_went_away_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with copying(tmp_path / "store") as (service, slave, _):
        slave.failures = 99
        taken_back(service, monkeypatch, slave, GROUP, Group({0: "h:1"}))
        assert slave.failures == 98
