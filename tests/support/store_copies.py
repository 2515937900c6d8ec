"""A small store to copy, link and mount in all the ways that people do, and a look at what may be read and written then."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from storage import open_store
from storage.errors import ForeignLogError, StoreNotFoundError
from storage.settings.load import ConfigurationWarning, StoreConfig
from tests.support.places import PROJECT

_SETTINGS = (
    "brokerName=broker-copied\n"
    "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=400\nmaxHashSlotNum=10\nmaxIndexNum=20\n"
)
TOPIC = "T"


def make_store(root: Path, *, log: Path | str | None = None, prefix: str = "message", count: int = 30) -> Path:
    """A store that was closed cleanly, with a broker.conf of its own in `root.conf`, which names its log; returns that file's path.

    The bodies are `prefix`-0, `prefix`-1 …
    """
    conf = write_conf(root.with_name(f"{root.name}.conf"), log or root / "commitlog")
    with open_store(root, config=StoreConfig.tiny(), read_only=False, create=True) as store:
        for number in range(count):
            store.put(TOPIC, f"{prefix}-{number}".encode(), queue_id=0, keys=[f"key-{number}"])
    return conf


def write_conf(path: Path, log: Path | str | None) -> Path:
    """A broker.conf whose only path is the log's; None = without any."""
    path.write_text(_SETTINGS + ("" if log is None else f"storePathCommitLog={log}\n"), "utf-8")
    return path


def picture(*places: Path) -> dict[str, str]:
    """Every file and directory below, with a hash of its content. Links are not followed."""
    found = {}
    for place in places:
        for path in [place, *sorted(place.rglob("*"))]:
            if path.is_symlink():
                found[str(path)] = f"-> {path.readlink()}"
            elif path.is_file():
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
            elif path.exists():
                found[str(path)] = "directory"
    return found


class Verdict(NamedTuple):
    """What may be done with a store."""

    bodies: str
    """The prefix of the bodies that are read; "" = none are, "no store" = StoreNotFoundError."""
    told: bool
    """Whether reading says where the log lies."""
    refused: str | None
    """Why it is not written, None = it is."""


def look(root: Path | str, conf: Path | str | None, *, create: bool = False) -> Verdict:
    """Read a store, then put a message into it."""
    config = None if conf is None else str(conf)
    bodies = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with open_store(root, config=config) as store:
                messages = store.get(TOPIC, 0, 0, 1).messages
                bodies = messages[0].body.decode().partition("-")[0] if messages else ""
        except StoreNotFoundError:
            bodies = "no store"
    told = any(issubclass(warning.category, ConfigurationWarning) for warning in caught)
    refused = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigurationWarning)
        try:
            with open_store(root, config=config, read_only=False, create=create) as store:
                store.put(TOPIC, b"written-here", queue_id=0)
                assert store.get(TOPIC, 0, store.max_offset(TOPIC, 0) - 1).messages[0].body == b"written-here"
        except (ForeignLogError, StoreNotFoundError) as error:
            refused = str(error)
    return Verdict(bodies, told, refused)


def may_mount() -> bool:
    """Whether this user may make mounts in a mount namespace of its own."""
    command = ["unshare", "--mount", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except OSError:
        return False


def look_mounted(mounts: Sequence[tuple[Path, Path]], root: Path, conf: Path | None) -> Verdict:
    """`look` in a mount namespace in which each (directory, point) is bound; the points are made."""
    for _, point in mounts:
        point.mkdir(parents=True, exist_ok=True)
    binds = " && ".join(f'mount --bind "{directory}" "{point}"' for directory, point in mounts)
    command = [sys.executable, "-m", "tests.support.store_copies", str(root), str(conf or "")]
    shell = ["unshare", "--mount", "sh", "-c", f'{binds} && exec "$@"', "sh", *command]
    done = subprocess.run(shell, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return Verdict(*json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1], sys.argv[2] or None)))
