"""What others must have first is in the log, and nobody reads it: by queue, by key, beside the writer, after a restart or a crash."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.dispatch.writer import EVERYTHING, Confirmed
from storage.files.local_file_system import LocalFileSystem
from storage.ha.follower import FollowedLog
from storage.ha.sessions import Received
from storage.log.commit_log import read_checkpoint
from storage.pending import PutStatus
from storage.recovery.verify import verify
from storage.rules.inner_messages import InnerMessage
from storage.service import put_service
from storage.service.put_service import PutService
from storage.tables.topics import MappingItem, TopicConfig, TopicQueueMapping

TINY = StoreConfig.tiny()


def config(role: str = "SYNC_MASTER", *, all_ack: bool = True) -> StoreConfig:
    mode = replace(TINY.mode, broker_role=role, enable_controller_mode=True)
    return replace(TINY, mode=mode, replication=replace(TINY.replication, all_ack_in_sync_state_set=all_ack))


@contextmanager
def served(root: Path, conf: StoreConfig, *, starts_duties: bool = False) -> Iterator[PutService]:
    store = open_store(
        root, config=conf, read_only=False, create=True, writes_as="controlled", holder="broker", holds_back=True
    )
    with PutService(store, starts_duties=starts_duties) as service:
        yield service


def put(service: PutService, *names: str, queue_id: int = 0) -> None:
    for name in names:
        message = InnerMessage(topic="T", queue_id=queue_id, body=name.encode(), properties={"KEYS": name})
        assert service.put_inner([message], waits=False).status is PutStatus.PUT_OK


def read(root: Path) -> list[str]:
    """What somebody is served who opens the store now."""
    with open_store(root, config=TINY) as store:
        names = [
            each.body.decode()
            for queue_id in range(2)
            for offset in range(store.max_offset("T", queue_id))
            for each in store.get("T", queue_id, offset, 1).messages
        ]
        assert [name for name in names if not store.query("T", name)] == []
        return names


def test_the_place_never_goes_back_and_stays_where_it_is_while_somebody_is_gone() -> None:
    confirmed = Confirmed(100)
    assert confirmed.move(500) == 100
    confirmed.reached = 300
    assert [confirmed.within(500), confirmed.within(200), confirmed.end] == [300, 200, 100]
    assert confirmed.move(500) == 300
    confirmed.reached = -1
    assert confirmed.move(600) == 300
    confirmed.reached = EVERYTHING
    assert confirmed.move(600) == 600
    confirmed.reached = 400
    assert confirmed.move(900) == 600


def test_a_master_shows_what_all_in_sync_have(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with served(root, config()) as service:
        service.acks.set_members([])
        put(service, "alone")
        assert read(root) == ["alone"]
        service.acks.set_members(["id:2", "id:3"])
        put(service, "a")
        middle = service.log_end
        put(service, "b", "c")
        for acks in {"id:2": service.log_end}, {"id:2": service.log_end, "id:3": 0}, {"id:9": service.log_end}:
            service.acks.see(acks)
            service.confirm_turn()
            assert read(root) == ["alone"]
            assert not service.messages_by_key("T", "a")
        service.acks.see({"id:2": service.log_end, "id:3": middle})
        service.confirm_turn()
        assert (read(root), service.confirm_offset, service.dispatched_end) == (["alone", "a"], middle, middle)
        assert service.messages_by_key("T", "a")
        service.acks.set_members(["id:2"])
        service.confirm_turn()
        assert read(root) == ["alone", "a", "b", "c"]


def test_it_is_read_without_being_asked_for_as_soon_as_it_is_confirmed(tmp_path: Path) -> None:
    with served(tmp_path / "store", config(), starts_duties=True) as service:
        service.acks.set_members(["id:2"])
        put(service, "a")
        assert not service.readable_within(service.log_end, 0.02)
        service.acks.see({"id:2": service.log_end})
        assert service.readable_within(service.log_end, 20)


def test_a_queue_does_not_move_away_from_what_is_not_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is confirmed later lies behind the end of the link that was told, and nobody reads it."""
    monkeypatch.setattr(put_service, "_MOVED_SECONDS", 0.02)
    mapping = TopicQueueMapping("T", "b", 1, 1, hosted_queues={0: (MappingItem("b"),)})
    with served(tmp_path / "store", config()) as service:
        service.acks.set_members(["id:2"])
        put(service, "a")
        with pytest.raises(TimeoutError, match=r"'T' is saved, and in .* send the request again"):
            service.save_static_topic(TopicConfig("T", 1, 1), lambda before: mapping)
        service.acks.see({"id:2": service.log_end})
        service.confirm_turn()
        service.save_static_topic(TopicConfig("T", 1, 1), lambda before: mapping)


def test_without_all_ack_nothing_waits(tmp_path: Path) -> None:
    with served(tmp_path / "store", config(all_ack=False)) as service:
        service.acks.set_members(["id:2"])
        put(service, "a")
        assert read(tmp_path / "store") == ["a"]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("count", [1, 60])
def test_what_was_not_confirmed_is_not_after_a_start_and_what_is_put_then_comes_behind_it(
    tmp_path: Path, is_killed: bool, count: int
) -> None:
    root = tmp_path / "store"
    names = [f"held-{number}" for number in range(count)]  # 60: over the ends of files
    with served(tmp_path / "life", config()) as service:
        service.acks.set_members([])
        put(service, "seen")
        confirmed = service.log_end
        service.acks.set_members(["id:2"])
        put(service, *names)
        service.queue_turn()
        if is_killed:
            shutil.copytree(tmp_path / "life", root)
    if not is_killed:
        shutil.copytree(tmp_path / "life", root)
        assert read_checkpoint(LocalFileSystem(), str(root)).confirm_phy_offset == confirmed
    with served(root, config()) as service:
        service.acks.set_members(["id:2"])
        put(service, "new", queue_id=1)
        put(service, "after")
        service.confirm_turn()
        assert read(root) == ["seen"]
        assert service.confirm_offset == service.dispatched_end == confirmed
        service.acks.see({"id:2": service.log_end})
        service.confirm_turn()
        assert read(root) == ["seen", *names, "after", "new"]
    with open_store(root, config=TINY) as store:
        assert [store.max_offset("T", queue_id) for queue_id in range(2)] == [count + 2, 1]
        marks = read_checkpoint(LocalFileSystem(), store.root)
        report = verify(store.log, store.queues, store.index, marks, store.plan, delays_ms=(1_000,))
    assert report.findings == ()


def test_who_is_alone_after_a_start_shows_it_all(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with served(root, config()) as service:
        service.acks.set_members(["id:2"])
        put(service, "a", "b")
    assert read(root) == []
    with served(root, config()) as service:
        service.acks.set_members([])
        service.confirm_turn()
        put(service, "c")
    assert read(root) == ["a", "b", "c"]


def test_a_store_that_no_controller_rules_any_more_shows_it_all(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with served(root, config()) as service:
        service.acks.set_members(["id:2"])
        put(service, "a", "b")
    with open_store(root, config=TINY, read_only=False):
        pass
    assert read(root) == ["a", "b"]


def test_a_slave_shows_what_its_master_calls_confirmed_as_far_as_it_has_it(tmp_path: Path) -> None:
    places = [0]
    with served(tmp_path / "master", config()) as master:
        for name in ("a", "b", "c", "d"):
            put(master, name)
            places.append(master.log_end)
        log = bytes(master.store.log.bytes_at(0, master.log_end))
    root = tmp_path / "slave"
    with served(root, config("SLAVE")) as service:
        followed = FollowedLog(service)

        def receive(start: int, end: int, confirmed: int) -> list[str]:
            followed.take(Received(places[start], log[places[start] : places[end]], None))
            followed.settle(confirmed)
            service.confirm_turn()
            return read(root)

        assert receive(0, 1, 0) == []
        assert receive(1, 2, places[1]) == ["a"]
        assert receive(2, 3, places[4]) == ["a", "b", "c"]
        assert receive(3, 4, places[3]) == ["a", "b", "c"]
    assert read(root) == ["a", "b", "c"]
    with served(root, config("SLAVE")) as service:
        service.confirm_turn()
        assert read(root) == ["a", "b", "c"]
        service.on_confirmed(places[4])
        service.confirm_turn()
        assert read(root) == ["a", "b", "c", "d"]


def test_the_store_itself_reads_what_an_opening_held_back_as_soon_as_it_is_confirmed(tmp_path: Path) -> None:
    with served(tmp_path / "store", config()) as service:
        service.acks.set_members(["id:2"])
        put(service, "a", "b")
    with served(tmp_path / "store", config()) as service:
        assert service.store.max_offset("T", 0) == 0
        service.on_confirmed(EVERYTHING)
        service.confirm_turn()
        with service.exclusive() as store:
            assert store.max_offset("T", 0) == 2


def test_a_topic_is_deleted_while_messages_of_it_wait_to_be_confirmed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with served(root, config()) as service:
        service.acks.set_members([])
        put(service, "a", "b")
        service.acks.set_members(["id:2"])
        put(service, "c", "d")
        service.delete_topic("T")
        put(service, "e")
        service.acks.see({"id:2": service.log_end})
        service.confirm_turn()
        assert service.failure is None
        assert read(root) == ["e"]
        put(service, "f")
        service.acks.see({"id:2": service.log_end})
        service.confirm_turn()
        assert read(root) == ["e", "f"]


def test_a_topic_is_deleted_while_messages_that_an_opening_held_back_wait(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with served(root, config()) as service:
        service.acks.set_members(["id:2"])
        put(service, "a", "b")
    with served(root, config()) as service:
        service.acks.set_members(["id:2"])
        service.delete_topic("T")
        put(service, "c")
        service.acks.see({"id:2": service.log_end})
        service.confirm_turn()
        assert read(root) == ["c"]
