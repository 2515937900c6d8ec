"""A writer dies with the log's next file made ahead: Apache's own classes recover the store, and so does ours after them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage import open_store
from tests.storage.service.test_next_file import CONF, DIES, SIZE, TINY, log_files
from tests.support.java_broker import Oracle
from tests.support.places import PROJECT

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_apache_recovers_a_store_whose_last_log_file_is_empty(oracle: Oracle, tmp_path: Path) -> None:
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(CONF)
    died = subprocess.run([sys.executable, "-c", DIES, str(root)], cwd=PROJECT, check=False)
    assert died.returncode == -signal.SIGKILL
    assert [size for _, size in log_files(root)] == [SIZE, SIZE]
    lines = oracle.dump(root, conf)
    messages = [line for line in lines if line["type"] == "message"]
    assert [(line["topic"], line["queueOffset"]) for line in messages] == [("T", 0)]
    with open_store(root, config=TINY, read_only=False) as store:
        assert store.max_offset("T", 0) == 1
