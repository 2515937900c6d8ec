"""A broker whose disk fails for a while: sends are refused meanwhile, nothing acknowledged is lost, and it goes on by itself."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from storage import open_store
from tests.broker_server.test_killed_masters import Sending
from tests.support.controlled_brokers import TOPIC
from tests.support.java_broker import free_ports, wait_until
from tests.support.name_server import our_name_server
from tests.support.own_servers import start_broker
from tests.support.preloaded_disk import PreloadedDisk

SYNC = "flushDiskType=SYNC_FLUSH\n"


@contextmanager
def broker_process(home: Path, name_server: str, settings: str = "", name: str = "store") -> Iterator[str]:
    """Its address; killed at the end."""
    port = free_ports()
    directory = home / f"of-{name}"
    directory.mkdir()
    conf = directory / "broker.conf"
    conf.write_text(
        f"brokerName=b\nlistenPort={port}\nstorePathRootDir={home / name}\nnamesrvAddr={name_server}\n"
        f"brokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\n{settings}",
        "utf-8",
    )
    process = start_broker(directory, conf)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def log_of(home: Path, name: str = "store") -> str:
    return (home / f"of-{name}" / "out.log").read_text("utf-8")


def lost(root: Path, acknowledged: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """What no consumer finds of what was acknowledged."""
    missing = []
    with open_store(root) as store:
        for queue_id, offset, body in acknowledged:
            found = store.get(TOPIC, queue_id, offset, 1).messages
            if [each.body for each in found] != [body]:
                missing.append((queue_id, offset, body))
    return missing


@pytest.mark.slow
@pytest.mark.parametrize("how", ["write", "sync", "full"])
def test_a_broker_goes_on_by_itself(tmp_path: Path, how: str) -> None:
    disk = PreloadedDisk.built(tmp_path, tmp_path / "store")
    with our_name_server(tmp_path) as names, disk.loaded(), broker_process(tmp_path, names.address, SYNC) as address:
        with Sending(names.address) as sending, Admin(ClientSettings((names.address,))) as admin:
            sending.await_more(50)
            disk.fails(how)
            t=time.monotonic()
            time.sleep(8)
            known = len(sending.acknowledged)
            print("while failing", known)
            disk.is_well()
            t = time.monotonic()
            try:
                sending.await_more(50)
            finally:
                print(how, "seconds until sends are taken", time.monotonic() - t)
                print(log_of(tmp_path)[-6000:])
        assert lost(tmp_path / "store", sending.acknowledged) == []
