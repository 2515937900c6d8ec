"""Where else a directory is seen, read from /proc/self/mountinfo's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.tables.surroundings import MOUNTS, Mount, other_names, parse_mounts

TEXT = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 254:16 / /data rw,relatime - xfs /dev/vdb rw
32 22 254:16 /store /srv/store rw,relatime - xfs /dev/vdb rw
33 22 254:0 /var/log\040old /mnt/with\040space rw - ext4 /dev/vda rw
34 22 0:21 / /proc rw - proc proc rw
broken line
"""


def test_a_mount_says_which_part_of_which_file_system_it_shows_where() -> None:
    assert parse_mounts(TEXT) == [
        Mount("254:0", "/", ""),
        Mount("254:16", "/", "/data"),
        Mount("254:16", "/store", "/srv/store"),
        Mount("254:0", "/var/log old", "/mnt/with space"),
        Mount("0:21", "/", "/proc"),
    ]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/data/store/commitlog", ["/srv/store/commitlog"]),
        ("/srv/store/commitlog", ["/data/store/commitlog"]),
        ("/srv/store", ["/data/store"]),
        ("/data/storehouse", []),
        ("/data", []),
        ("/var/log old/x", ["/mnt/with space/x"]),
        ("/mnt/with space", ["/var/log old"]),
        ("/home/x", []),
    ],
)
def test_a_directory_has_a_name_for_each_mount_that_shows_it(path: str, names: list[str]) -> None:
    assert other_names(path, parse_mounts(TEXT)) == names


def test_where_nothing_is_known_of_mounts_there_are_no_other_names() -> None:
    assert other_names("/x", []) == []


def test_this_machines_own_mounts_can_be_read() -> None:
    assert any(mount.point == "" for mount in parse_mounts(Path(MOUNTS).read_text("utf-8")))
