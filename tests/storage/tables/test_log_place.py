"""Where a store's log lies and whether it may be written, decided over values."""

from __future__ import annotations

from typing import Any

import pytest

from storage.tables.log_place import Binding, LogDirectory, Surroundings, decide

ROOT = ("/lab/store", 7)
OWN = LogDirectory("/lab/store/commitlog", "/lab/store/commitlog", (1, 8), has_files=True)
EMPTY = OWN._replace(has_files=False)
ABSENT = EMPTY._replace(number=None, is_there=False)
DISK = LogDirectory("/disk/log", "/disk/log", (1, 9), has_files=True, is_inside=False)
ARCHIVE = LogDirectory("/archive/log", "/archive/log", (2, 5), has_files=True, is_inside=False)
LIVE = LogDirectory("/live/commitlog", "/live/commitlog", (1, 30), has_files=True, is_inside=False, owner="/live")
GONE = LogDirectory("/gone/log", "/gone/log", None, is_there=False, is_inside=False)
RENAMED = LogDirectory("/lab/store/log", "/lab/store/log", (1, 12), has_files=True)
BOUND = Binding(ROOT, (("/disk/log", 9),))


def seen(own: LogDirectory, *configured: LogDirectory, **more: Any) -> Surroundings:
    return Surroundings("/lab/store", ROOT, own, configured, "storePathCommitLog=… in broker.conf", **more)


@pytest.mark.parametrize(
    ("surroundings", "directories", "is_told", "refused"),
    [
        # ROOT/commitlog has files: it is the log
        (seen(OWN), ["/lab/store/commitlog"], False, None),
        (seen(OWN, OWN), ["/lab/store/commitlog"], False, None),
        (seen(OWN, OWN._replace(path="/mnt/commitlog", real_path="/mnt/commitlog")), [OWN.path], False, None),
        (seen(OWN, GONE), ["/lab/store/commitlog"], True, None),
        (seen(OWN, DISK), ["/lab/store/commitlog"], True, None),
        (seen(OWN, LIVE), ["/lab/store/commitlog"], True, None),
        (seen(OWN, DISK, ARCHIVE), ["/lab/store/commitlog"], True, None),
        # … unless the configuration names another folder of ROOT's own, which has files
        (seen(OWN, RENAMED), ["/lab/store/log"], False, None),
        (seen(OWN, RENAMED._replace(has_files=False)), ["/lab/store/commitlog"], True, None),
        (seen(ABSENT, RENAMED._replace(has_files=False)), ["/lab/store/log"], False, None),
        # ROOT has no log of its own
        (seen(ABSENT, DISK), ["/disk/log"], True, "nothing says that it is this store's"),
        (seen(ABSENT, DISK, ARCHIVE), ["/disk/log", "/archive/log"], True, "/disk/log and /archive/log"),
        (seen(ABSENT, LIVE), ["/live/commitlog"], True, "belongs to another store, /live"),
        (seen(ABSENT, DISK, LIVE), ["/disk/log", "/live/commitlog"], True, "belongs to another store, /live"),
        (seen(ABSENT, GONE), ["/gone/log"], True, "nothing says that it is this store's"),
        (seen(ABSENT, DISK, is_store=False), ["/disk/log"], True, "a store that is made keeps its log in"),
        (seen(ABSENT, GONE, is_store=False), ["/gone/log"], True, "a store that is made keeps its log in"),
        # an empty folder, or one where no disk is mounted
        (seen(EMPTY, DISK), ["/lab/store/commitlog"], True, None),
        (seen(EMPTY, DISK, has_history=True), ["/disk/log"], True, "nothing says that it is this store's"),
        (seen(EMPTY, LIVE, has_history=True), ["/live/commitlog"], True, "belongs to another store, /live"),
        (seen(EMPTY, GONE, has_history=True), ["/lab/store/commitlog"], True, "holds no log"),
        (seen(EMPTY, GONE), ["/lab/store/commitlog"], True, None),
        (seen(EMPTY, has_history=True), ["/lab/store/commitlog"], False, None),
        # several directories, ROOT's own among them
        (seen(OWN, OWN, DISK), ["/lab/store/commitlog", "/disk/log"], True, "nothing says that it is this store's"),
        (seen(OWN, OWN, DISK, binding=BOUND), ["/lab/store/commitlog", "/disk/log"], False, None),
        (seen(OWN, OWN, LIVE, binding=BOUND), [OWN.path, LIVE.path], True, "belongs to another store, /live"),
        (seen(OWN, OWN, RENAMED), ["/lab/store/commitlog", "/lab/store/log"], False, None),
        # bound
        (seen(ABSENT, DISK, binding=BOUND), ["/disk/log"], False, None),
        (seen(ABSENT, DISK, binding=BOUND, is_store=False), ["/disk/log"], False, None),
        (seen(ABSENT, DISK._replace(number=None, is_there=False), binding=BOUND), ["/disk/log"], False, None),
        (
            seen(ABSENT, DISK._replace(number=(1, 99)), binding=BOUND),
            ["/disk/log"],
            True,
            "another directory stands at",
        ),
        (seen(ABSENT, ARCHIVE, binding=BOUND), ["/archive/log"], True, "its binding is to /disk/log"),
        (seen(ABSENT, DISK._replace(owner="/disk"), binding=BOUND), ["/disk/log"], False, "another store, /disk"),
        (seen(ABSENT, DISK, binding=BOUND._replace(root=("/lab/store", 70))), ["/disk/log"], True, "this is a copy"),
        (seen(ABSENT, DISK, binding=BOUND._replace(root=("/old/store", 7))), ["/disk/log"], True, "at /old/store"),
        # ROOT/commitlog is a link
        (seen(OWN._replace(is_inside=False, real_path="/disk/log")), [OWN.path], False, "is a link to /disk/log"),
        (
            seen(OWN._replace(is_inside=False, real_path="/disk/log", number=(1, 9)), binding=BOUND),
            [OWN.path],
            False,
            None,
        ),
        (seen(LIVE._replace(path=OWN.path)), [OWN.path], False, "of another store, /live"),
        (seen(OWN._replace(owner="/live")), [OWN.path], False, "shows a directory of another store, /live"),
        # other parts of ROOT
        (seen(OWN, strays=(("consumequeue", "/live"),)), [OWN.path], False, "/lab/store/consumequeue is a link into"),
        (seen(OWN._replace(linked_file="/lab/store/commitlog/0")), [OWN.path], False, "has a second name"),
    ],
)
def test_where_the_log_lies(
    surroundings: Surroundings, directories: list[str], is_told: bool, refused: str | None
) -> None:
    place = decide(surroundings)
    assert list(place.directories) == directories
    assert (place.note is not None) == is_told, place.note
    if refused is None:
        assert place.refusal is None
    else:
        assert place.refusal is not None
        assert refused in place.refusal.reason


@pytest.mark.parametrize("configured", [DISK, LIVE, GONE])
@pytest.mark.parametrize("is_store", [True, False])
def test_a_refusal_names_both_places_and_the_cure(configured: LogDirectory, is_store: bool) -> None:
    refusal = decide(seen(ABSENT, configured, is_store=is_store)).refusal
    assert refusal is not None
    assert refusal.log == configured.path
    said = f"{refusal.reason} {refusal.hint}"
    assert configured.path in said
    assert "/lab/store" in said
    assert "broker.conf" in said
    assert any(cure in refusal.hint for cure in ("bind-log /lab/store", "take the path away"))


def test_what_is_ignored_is_named_with_what_is_read_instead() -> None:
    note = decide(seen(OWN, DISK)).note
    assert note is not None
    assert "/lab/store/commitlog" in note
    assert "/disk/log, which storePathCommitLog=… in broker.conf names, is ignored" in note
