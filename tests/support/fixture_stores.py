"""Stores that the Apache broker wrote (tests/vectors/stores), unpacked for a test.

An unpacked fixture is a directory that holds `store/` (the broker's root directory), `broker.conf` (in the
root's parent, where it is looked for), `golden.jsonl` (what Apache's own store classes say of it), and, where
the fixture has them, `sent.jsonl` (what the producer was answered), `served.jsonl` (what the broker's own
client was served) and `damage.json` (bytes changed on purpose).

This module is a pytest plugin: the fixtures `pristine_store` and `fixture_store` come with it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import VECTORS

STORES = VECTORS / "stores"
KINDS = VECTORS / "kinds"
"""Stores of kinds that are read and not written: batch queues, tiered storage, compacted topics."""
FIXTURE_NAMES = tuple(sorted(path.name[len("store-") : -len(".tgz")] for path in STORES.glob("store-*.tgz")))


@dataclass(frozen=True, slots=True)
class Fixture:
    """One unpacked store and what is known of it."""

    name: str
    root: Path  # the directory that holds commitlog/
    conf: Path  # broker.conf, in the root's parent
    golden: Path  # golden.jsonl
    sent: Path | None  # sent.jsonl, where a producer's answers were kept
    served: Path | None  # served.jsonl, where the broker's own client has listed what it serves
    damage: dict[str, Any] | None  # damage.json, where bytes were changed on purpose


def unpack_fixture(name: str, directory: Path) -> Fixture:
    """Unpack store-NAME.tgz into `directory`, which is created when missing; modification times are kept."""
    archive = next((place for of in (STORES, KINDS) if (place := of / f"store-{name}.tgz").exists()), STORES / name)
    if not archive.exists():
        raise FileNotFoundError(f"no fixture {name!r} in {STORES}; there are {', '.join(FIXTURE_NAMES)}")
    directory.mkdir(parents=True, exist_ok=True)
    _extract(archive, directory)
    inner = directory / "store.tgz"
    _extract(inner, directory)
    inner.unlink()
    return _fixture_in(name, directory)


def unpack_left(folder: str, name: str, directory: Path) -> Path:
    """ROOT of a store that an earlier version of this package has left in the middle of something (tests/vectors/FOLDER/NAME.tgz).

    It is unpacked below `directory` with its broker.conf.
    """
    place = directory / f"{folder}-{name}"
    _extract(VECTORS / folder / f"{name}.tgz", place)
    return place / "store"


def unpack_group(name: str, directory: Path) -> dict[str, Fixture]:
    """Unpack store-NAME.tar.xz, two stores of one DLedger group: its `leader`'s and a `follower`'s, with what both had to serve."""
    directory.mkdir(parents=True, exist_ok=True)
    _extract(STORES / f"store-{name}.tar.xz", directory)
    for peer in ("leader", "follower"):
        for known in ("sent.jsonl", "served.jsonl"):
            shutil.copy(directory / known, directory / peer)
    return {peer: _fixture_in(f"{name}-{peer}", directory / peer) for peer in ("leader", "follower")}


def copy_fixture(fixture: Fixture, directory: Path) -> Fixture:
    """A copy in `directory` that a test may change: sparse, with the modification times that expiry reads."""
    copy_store(fixture.conf.parent, directory)
    return _fixture_in(fixture.name, directory)


def copy_store(source: Path, directory: Path) -> None:
    """Copy the content of `source` into `directory`: holes stay holes, modification times stay."""
    directory.mkdir(parents=True, exist_ok=True)
    if shutil.which("cp") is None:
        raise FileNotFoundError("copying a store needs GNU cp (coreutils)")
    command = ["cp", "-a", "--sparse=always", "--reflink=auto", f"{source}/.", str(directory)]
    subprocess.run(command, check=True, timeout=300)


def golden_lines(golden: Path, type_: str | None = None) -> Iterator[dict[str, Any]]:
    """The lines of a golden.jsonl in order: all, or those of one type (`message`, `queue`, `pull`, …)."""
    with golden.open(encoding="utf-8") as lines:
        for text in lines:
            line: dict[str, Any] = json.loads(text)
            if type_ is None or line["type"] == type_:
                yield line


@pytest.fixture(scope="session")
def pristine_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Fixture]:
    """`pristine_store(name)`: the fixture unpacked once a session. Shared: a test must not change it."""
    unpacked: dict[str, Fixture] = {}

    def unpack_once(name: str) -> Fixture:
        if name not in unpacked:
            unpacked[name] = unpack_fixture(name, tmp_path_factory.mktemp(f"store-{name}-"))
        return unpacked[name]

    return unpack_once


@pytest.fixture
def fixture_store(
    pristine_store: Callable[[str], Fixture], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Fixture]:
    """`fixture_store(name)`: a copy of the fixture of the test's own, to be changed at will."""

    def fresh_copy(name: str) -> Fixture:
        return copy_fixture(pristine_store(name), tmp_path_factory.mktemp(f"copy-{name}-"))

    return fresh_copy


def _extract(archive: Path, directory: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
        tar.extractall(directory)


def _fixture_in(name: str, directory: Path) -> Fixture:
    sent, served, damage = directory / "sent.jsonl", directory / "served.jsonl", directory / "damage.json"
    return Fixture(
        name=name,
        root=directory / "store",
        conf=directory / "broker.conf",
        golden=directory / "golden.jsonl",
        sent=sent if sent.exists() else None,
        served=served if served.exists() else None,
        damage=json.loads(damage.read_text("utf-8")) if damage.exists() else None,
    )
