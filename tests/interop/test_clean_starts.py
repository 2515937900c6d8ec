"""What a clean start of Apache's 5.3.3 compares: bodies from the log file on in which the queues end, and none before it. So do we."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import open_store
from tests.support.java_broker import Oracle
from tests.support.spoilt_logs import flip_body_in_file

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize(("file", "is_cut"), [(1, False), (2, False), (3, True)])
def test_a_wrong_body_ends_the_log_in_the_last_file_alone(
    file: int, is_cut: bool, oracle: Oracle, tmp_path: Path
) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(oracle.broker_conf(store, "127.0.0.1:1", 10_911, commitlog_file_size_bytes=65_536), "utf-8")
    with open_store(store, config=str(conf), read_only=False, create=True) as ours:
        while len(ours.log.files) < 4:
            ours.put("T", bytes(5_000), queue_id=0)
        ours.put("T", bytes(5_000), queue_id=0)
        log_end = ours.log_end
    flip_body_in_file(store, file)
    lines = oracle.dump(store, conf, strict=False)
    (summary,) = (line for line in lines if line["type"] == "summary")
    assert (summary["afterLoadMaxPhy"] < log_end) == is_cut
