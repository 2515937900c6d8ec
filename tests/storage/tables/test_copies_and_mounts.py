"""All ways in which people copy, restore, link and mount stores: what is read, written, refused. docs/copies.md has the same table."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import open_store
from storage.errors import ForeignLogError, StoreLockedError, StoreNotFoundError
from storage.files.local_file_system import LocalFileSystem
from storage.recovery.opening import bind_log
from storage.settings.load import load_config
from storage.tables.surroundings import binding_path
from tests.support.places import PROJECT
from tests.support.shares import one_in
from tests.support.store_copies import TOPIC, look, look_mounted, make_store, may_mount, picture, write_conf

FILES = LocalFileSystem()
PAGE = PROJECT / "docs" / "copies.md"

OWN, CONFIGURED, LINKED, NOTHING = "its own log", "the configured log", "what the link leads to", "nothing: no store"
WRITTEN, REFUSED, BIND = "yes", "refused", "after `bind-log`"


class Arranged(NamedTuple):
    """A store to look at."""

    root: Path
    conf: Path | None
    others: tuple[Path, ...] = ()
    """What must not change, whatever is done to the store."""
    mounts: tuple[tuple[Path, Path], ...] = ()
    create: bool = False


class Case(NamedTuple):
    what: str
    arrange: Callable[[Path], Arranged]
    read: str
    is_told: bool
    written: str


def bind(root: Path, conf: Path | None) -> tuple[str, ...] | None:
    config = load_config(str(root), None if conf is None else str(conf), read_bytes=FILES.read_file)
    return bind_log(str(root), config, FILES)


def copy(source: Path, target: Path, *options: str) -> Path:
    subprocess.run(["cp", "-a", *options, str(source), str(target)], check=True)
    return target


def with_log_elsewhere(place: Path, *, link: bool = False) -> tuple[Path, Path, Path]:
    """A store as brokers make it where storePathCommitLog names another disk: root, configuration, log."""
    root, log = place / "production", place / "disk" / "log"
    log.parent.mkdir()
    conf = make_store(root, log=None if link else log)
    shutil.move(root / "commitlog", log)
    if link:
        (root / "commitlog").symlink_to(log)
        conf = write_conf(conf, None)
    return root, conf, log


def an_untouched_store(place: Path) -> Arranged:
    return Arranged(place / "live", make_store(place / "live"))


def a_copy_beside_its_original(place: Path) -> Arranged:
    conf = make_store(place / "live")
    return Arranged(copy(place / "live", place / "copy"), conf, (place / "live",))


def a_snapshot(place: Path) -> Arranged:
    conf = make_store(place / "live")
    return Arranged(copy(place / "live", place / "snapshot", "--reflink=auto"), conf, (place / "live",))


def a_moved_store(place: Path) -> Arranged:
    conf = make_store(place / "live")
    (place / "live").rename(place / "moved")
    return Arranged(place / "moved", conf)


def a_copy_without_its_log(place: Path) -> Arranged:
    conf = make_store(place / "live")
    shutil.rmtree(copy(place / "live", place / "copy") / "commitlog")
    return Arranged(place / "copy", conf, (place / "live",))


def a_copy_with_an_empty_log(place: Path) -> Arranged:
    made = a_copy_without_its_log(place)
    (made.root / "commitlog").mkdir()
    return made


def a_hard_linked_copy(place: Path) -> Arranged:
    conf = make_store(place / "live")
    return Arranged(copy(place / "live", place / "linked", "--link"), conf, (place / "live",))


def a_new_store_with_anothers_configuration(place: Path) -> Arranged:
    return Arranged(place / "new", make_store(place / "live"), (place / "live",), create=True)


def a_new_store_with_a_log_that_nobody_has(place: Path) -> Arranged:
    return Arranged(place / "new", write_conf(place / "broker.conf", place / "disk"), (place / "disk",), create=True)


def a_log_on_another_disk(place: Path) -> Arranged:
    root, conf, log = with_log_elsewhere(place)
    return Arranged(root, conf, (log,))


def a_log_on_another_disk_that_is_bound(place: Path) -> Arranged:
    root, conf, _ = with_log_elsewhere(place)
    bind(root, conf)
    return Arranged(root, conf)


def a_copy_of_a_bound_store(place: Path) -> Arranged:
    root, conf, log = with_log_elsewhere(place)
    bind(root, conf)
    return Arranged(copy(root, place / "copy"), conf, (root, log))


def a_log_whose_disk_is_not_mounted(place: Path) -> Arranged:
    root, conf, log = with_log_elsewhere(place)
    bind(root, conf)
    log.rename(place / "unmounted")
    return Arranged(root, conf, (place / "unmounted", log.parent))


def an_empty_folder_whose_log_is_not_mounted(place: Path) -> Arranged:
    root, conf, log = with_log_elsewhere(place)
    log.rename(place / "unmounted")
    (root / "commitlog").mkdir()
    return Arranged(root, conf, (place / "unmounted",))


def a_linked_root(place: Path) -> Arranged:
    conf = make_store(place / "live")
    (place / "link").symlink_to(place / "live")
    return Arranged(place / "link", conf)


def a_linked_log(place: Path) -> Arranged:
    root, conf, log = with_log_elsewhere(place, link=True)
    return Arranged(root, conf, (log,))


def a_linked_log_that_is_bound(place: Path) -> Arranged:
    root, conf, _ = with_log_elsewhere(place, link=True)
    bind(root, conf)
    return Arranged(root, conf)


def a_copy_with_the_link(place: Path) -> Arranged:
    root, conf, log = with_log_elsewhere(place, link=True)
    bind(root, conf)
    return Arranged(copy(root, place / "copy"), conf, (root, log))


def a_link_into_another_store(place: Path) -> Arranged:
    make_store(place / "live")
    copied = copy(place / "live", place / "copy")
    shutil.rmtree(copied / "commitlog")
    (copied / "commitlog").symlink_to(place / "live" / "commitlog")
    return Arranged(copied, None, (place / "live",))


def linked_queues_of_another_store(place: Path) -> Arranged:
    make_store(place / "live")
    copied = copy(place / "live", place / "copy")
    shutil.rmtree(copied / "consumequeue")
    (copied / "consumequeue").symlink_to(place / "live" / "consumequeue")
    return Arranged(copied, None, (place / "live",))


def two_names_of_one_mount(place: Path) -> Arranged:
    conf = make_store(place / "live")
    return Arranged(place / "mnt", conf, mounts=((place / "live", place / "mnt"),))


def a_configuration_with_the_other_name(place: Path) -> Arranged:
    make_store(place / "live")
    conf = write_conf(place / "other.conf", place / "mnt" / "commitlog")
    return Arranged(place / "live", conf, mounts=((place / "live", place / "mnt"),))


def a_log_that_is_mounted_in_root(place: Path) -> Arranged:
    root, conf, log = with_log_elsewhere(place)
    return Arranged(root, write_conf(conf, None), mounts=((log, root / "commitlog"),))


def another_stores_log_mounted_in_root(place: Path) -> Arranged:
    made = a_copy_without_its_log(place)
    log = place / "live" / "commitlog"
    conf = write_conf(place / "plain.conf", None)
    return Arranged(made.root, conf, made.others, mounts=((log, made.root / "commitlog"),))


CASES = [
    Case("`storePathCommitLog` names the store's own `commitlog/`", an_untouched_store, OWN, False, WRITTEN),
    Case("a copy beside its original, with the original's broker.conf", a_copy_beside_its_original, OWN, True, WRITTEN),
    Case("a snapshot (LVM, ZFS, reflinks) with the original's broker.conf", a_snapshot, OWN, True, WRITTEN),
    Case("a store that was moved, or is seen at another path in a container", a_moved_store, OWN, True, WRITTEN),
    Case("a copy without `commitlog/`; broker.conf names the original's", a_copy_without_its_log, CONFIGURED, True, REFUSED),
    Case("the same with an empty `commitlog/`", a_copy_with_an_empty_log, CONFIGURED, True, REFUSED),
    Case("a copy of hard links (`cp -al`)", a_hard_linked_copy, OWN, True, REFUSED),
    Case("no store yet; broker.conf names another store's log", a_new_store_with_anothers_configuration, NOTHING, False, REFUSED),
    Case("no store yet; broker.conf names a place outside of it", a_new_store_with_a_log_that_nobody_has, NOTHING, False, REFUSED),
    Case("the log lies on another disk, as broker.conf says", a_log_on_another_disk, CONFIGURED, True, BIND),
    Case("the same, bound", a_log_on_another_disk_that_is_bound, CONFIGURED, False, WRITTEN),
    Case("a copy of a bound store, without the log", a_copy_of_a_bound_store, CONFIGURED, True, BIND),
    Case("the disk of the log is not mounted", a_log_whose_disk_is_not_mounted, NOTHING, False, REFUSED),
    Case("the same with an empty `commitlog/` in the store", an_empty_folder_whose_log_is_not_mounted, OWN, True, REFUSED),
    Case("the store's directory is a link", a_linked_root, OWN, False, WRITTEN),
    Case("`commitlog` is a link to another disk", a_linked_log, LINKED, False, BIND),
    Case("the same, bound", a_linked_log_that_is_bound, LINKED, False, WRITTEN),
    Case("a copy of such a store, with the link", a_copy_with_the_link, LINKED, False, BIND),
    Case("`commitlog` is a link into another store", a_link_into_another_store, LINKED, False, REFUSED),
    Case("another folder of the store is a link into another store", linked_queues_of_another_store, OWN, False, REFUSED),
    Case("two names of one mount; broker.conf names the one, PATH the other", two_names_of_one_mount, OWN, False, WRITTEN),
    Case("the same the other way round", a_configuration_with_the_other_name, OWN, False, WRITTEN),
    Case("a disk is mounted at the store's `commitlog/`", a_log_that_is_mounted_in_root, OWN, False, WRITTEN),
    Case("another store's log is mounted there", another_stores_log_mounted_in_root, LINKED, False, REFUSED),
]  # fmt: skip


@pytest.mark.parametrize("case", one_in(4, CASES), ids=lambda case: case.arrange.__name__)
def test_what_is_read_and_written(case: Case, tmp_path: Path) -> None:
    made = case.arrange(tmp_path)
    if made.mounts and not may_mount():
        pytest.skip("mounting needs a mount namespace")
    root_before, before = picture(made.root), picture(*made.others)
    verdict = (
        look_mounted(made.mounts, made.root, made.conf)
        if made.mounts
        else look(made.root, made.conf, create=made.create)
    )
    has_messages = case.read != NOTHING and case.arrange is not an_empty_folder_whose_log_is_not_mounted
    assert verdict.bodies == ("no store" if case.read == NOTHING else "message" if has_messages else "")
    assert verdict.told == case.is_told
    assert (verdict.refused is None) == (case.written == WRITTEN), verdict.refused
    assert picture(*made.others) == before, "another's files"
    if verdict.refused is not None:
        assert {path: content for path, content in picture(made.root).items() if made.mounts == ()} == (
            {} if made.mounts else root_before
        ), "nothing is left behind"
    if case.written == BIND and verdict.refused is not None:
        assert "bind-log" in verdict.refused


def test_the_page_has_this_table() -> None:
    told = {True: ", with a warning", False: ""}
    rows = [f"| {case.what} | {case.read}{told[case.is_told]} | {case.written} |" for case in CASES]
    assert re.findall(r"^\| .*$", PAGE.read_text("utf-8"), re.MULTILINE)[2 : 2 + len(rows)] == rows


# Binding


def test_a_bound_log_is_written_as_any_other_and_read_back(tmp_path: Path) -> None:
    root, conf, log = with_log_elsewhere(tmp_path)
    assert bind(root, conf) == (str(log),)
    size = len(list(log.iterdir()))
    with open_store(root, config=str(conf), read_only=False) as store:
        for number in range(40):
            store.put(TOPIC, f"later-{number}".encode(), queue_id=0)
    assert len(list(log.iterdir())) > size
    assert not (root / "commitlog").exists()
    with open_store(root, config=str(conf)) as store:
        assert store.max_offset(TOPIC, 0) == 70


def test_a_new_store_with_a_log_elsewhere_is_made_after_it_was_bound(tmp_path: Path) -> None:
    conf, log, root = write_conf(tmp_path / "broker.conf", tmp_path / "disk"), tmp_path / "disk", tmp_path / "new"
    with pytest.raises(StoreNotFoundError):
        bind(root, conf)
    log.mkdir()
    bind(root, conf)
    with open_store(root, config=str(conf), read_only=False, create=True) as store:
        store.put(TOPIC, b"first", queue_id=0)
    assert len(list(log.iterdir())) == 1
    assert not (root / "commitlog").exists()


def test_a_new_store_is_not_bound_to_a_log_that_has_messages(tmp_path: Path) -> None:
    _, conf, log = with_log_elsewhere(tmp_path)
    before = picture(log)
    with pytest.raises(ForeignLogError, match=r"holds messages, and .*/new has no queues that name them"):
        bind(tmp_path / "new", conf)
    assert picture(log) == before
    assert not (tmp_path / "new").exists()


def test_a_store_without_a_queue_is_not_bound_to_a_log_that_has_messages(tmp_path: Path) -> None:
    root, conf, log = with_log_elsewhere(tmp_path)
    before = picture(log)
    shutil.rmtree(root / "consumequeue")
    with pytest.raises(ForeignLogError, match="no queue has an entry for any of the log's records"):
        bind(root, conf)
    assert picture(log) == before
    assert not Path(binding_path(str(root))).exists()


def other_bodies(place: Path) -> tuple[Path, Path]:
    """Same sizes, other times, another number of queues."""
    make_store(place / "other", prefix="anothers", count=31)
    return place / "other", place / "other" / "commitlog"


def same_sizes(place: Path) -> tuple[Path, Path]:
    """Every record has the place and size of the store's own; the times differ."""
    make_store(place / "other", prefix="massage")
    return place / "other", place / "other" / "commitlog"


def shorter(place: Path) -> tuple[Path, Path]:
    make_store(place / "other", count=3)
    return place / "other", place / "other" / "commitlog"


@pytest.mark.parametrize("make", [other_bodies, same_sizes, shorter])
@pytest.mark.parametrize("was_clean", [True, False])
def test_another_stores_log_is_not_bound_wherever_it_lies(
    make: Callable[[Path], tuple[Path, Path]], was_clean: bool, tmp_path: Path
) -> None:
    root, conf, log = with_log_elsewhere(tmp_path)
    _, other_log = make(tmp_path)
    shutil.rmtree(log)
    shutil.move(other_log, log)
    if not was_clean:
        (root / "abort").write_bytes(b"")
    with pytest.raises(ForeignLogError, match="is not its log: "):
        bind(root, conf)
    assert not Path(binding_path(str(root))).exists()


def test_a_log_that_lies_in_another_store_is_not_bound(tmp_path: Path) -> None:
    made = a_copy_without_its_log(tmp_path)
    before = picture(made.root, *made.others)
    with pytest.raises(ForeignLogError, match="belongs to another store"):
        bind(made.root, made.conf)
    assert picture(made.root, *made.others) == before


def test_a_store_after_a_crash_is_bound_though_its_last_entries_have_no_records(tmp_path: Path) -> None:
    """What a power loss leaves: entries were on the disk, their records were not."""
    root, conf, log = with_log_elsewhere(tmp_path)
    (root / "abort").write_bytes(b"")
    last = sorted(log.iterdir())[-1]
    size = last.stat().st_size
    os.truncate(last, 0)
    os.truncate(last, size)
    with pytest.raises(ForeignLogError, match="the checkpoint names"):
        bind(root, conf)  # the checkpoint vouches for them: no crash has done that
    (root / "checkpoint").unlink()
    bind(root, conf)
    with open_store(root, config=str(conf), read_only=False) as store:
        assert store.recovery is not None
        assert store.recovery.cut_entries > 0
        assert 0 < store.max_offset(TOPIC, 0) < 30


def test_a_bound_log_that_was_replaced_is_refused_at_the_next_opening(tmp_path: Path) -> None:
    root, conf, log = with_log_elsewhere(tmp_path)
    bind(root, conf)
    _, other_log = other_bodies(tmp_path)
    for path in log.iterdir():
        path.unlink()
    for path in other_log.iterdir():
        shutil.copy(path, log)
    before = picture(root, log)
    with pytest.raises(ForeignLogError, match="is not its log any more"):
        open_store(root, config=str(conf), read_only=False)
    after = picture(root, log)
    assert {path for path in after if after[path] != before.get(path)} <= {f"{root}/lock"}
    assert after[str(log)] == "directory"


def test_a_bound_log_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    root, conf, log = with_log_elsewhere(tmp_path)
    bind(root, conf)
    with sorted(log.iterdir())[-1].open("r+b"), pytest.raises(ForeignLogError, match="open for writing"):
        open_store(root, config=str(conf), read_only=False)
    open_store(root, config=str(conf), read_only=False).close()


def test_a_torn_binding_is_none(tmp_path: Path) -> None:
    root, conf, _ = with_log_elsewhere(tmp_path)
    bind(root, conf)
    path = Path(binding_path(str(root)))
    for content in (b"", path.read_bytes()[:-4], b"[]", b'{"root": 1}', b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(ForeignLogError, match="nothing says that it is this store's"):
            open_store(root, config=str(conf), read_only=False)


def test_a_configured_place_that_cannot_be_looked_at_does_not_keep_a_copy_from_being_used(tmp_path: Path) -> None:
    conf = make_store(tmp_path / "live", log=tmp_path / "circle" / "log")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    verdict = look(tmp_path / "live", conf)
    assert verdict == ("message", True, None)
    shutil.rmtree(tmp_path / "live" / "commitlog")
    with pytest.raises(ForeignLogError, match="nothing says that it is this store's"):
        open_store(tmp_path / "live", config=str(conf), read_only=False)
    with pytest.raises(OSError, match="symbolic links"):
        open_store(tmp_path / "live", config=str(conf))


def test_the_lock_holds_whatever_name_the_store_is_opened_by(tmp_path: Path) -> None:
    made = a_linked_root(tmp_path)
    with (
        open_store(made.root, config=str(made.conf), read_only=False),
        pytest.raises(StoreLockedError),
    ):
        open_store(tmp_path / "live", config=str(made.conf), read_only=False)
