"""What warmMapedFileEnable saves: locked memory, and how long the first puts into new log files take.

    python -m bench.warm_files [--seconds 20] [--directory /data]      alone on the machine, with a high `ulimit -l`

Two stores in turn, without and with the setting, at one rate of puts. Files of 16 MiB, so that the log rolls often. A row each: VmLck
at its most, files, then p50, p99 and the most ms of the first 50 puts of each file, and of the others. For Apache's broker, send at
the same rate with `bench/broker.py` and the setting in its broker.conf; VmLck is in /proc/PID/status.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from storage import open_store
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.settings.nouns import CommitLogConfig, FlushConfig

_FILE_BYTES = 16 << 20
_BODY_BYTES = 65_536
_FIRST = 50
_REST_S = 0.000_2


def _locked_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return int(next(line for line in lines if line.startswith("VmLck:")).split()[1]) << 10


def run(root: Path, seconds: float, *, is_warm: bool) -> str:
    """The row of one store."""
    config = StoreConfig(
        commit_log=CommitLogConfig(mapped_file_size_commit_log=_FILE_BYTES),
        flush=FlushConfig(warm_maped_file_enable=is_warm),
        settings={"mappedFileSizeCommitLog": str(_FILE_BYTES)},
    )
    config = replace(config, identity=replace(config.identity, broker_name="b", broker_ip1="127.0.0.1"))
    message = InnerMessage(topic="T", queue_id=0, body=b"x" * _BODY_BYTES, properties={})
    firsts: list[float] = []
    others: list[float] = []
    most_locked = 0
    with PutService(open_store(root, config=config, read_only=False, create=True)) as service:
        until, file, in_file = time.monotonic() + seconds, 0, 0
        while (began := time.monotonic()) < until:
            service.put_inner([message])
            took_ms = (time.monotonic() - began) * 1_000
            if service.log_end // _FILE_BYTES != file:
                file, in_file = service.log_end // _FILE_BYTES, 0
                most_locked = max(most_locked, _locked_bytes())
            in_file += 1
            if file:
                (firsts if in_file <= _FIRST else others).append(took_ms)
            time.sleep(_REST_S)
        most_locked = max(most_locked, _locked_bytes())
    shown = [f"{np.percentile(each, share):.3f}" for each in (firsts, others) if each for share in (50, 99, 100)]
    return f"| {'on' if is_warm else 'off'} | {most_locked >> 20} MiB | {file} | {' | '.join(shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--directory", default=None)
    given = parser.parse_args()
    print("| warmMapedFileEnable | VmLck | files | first p50 | p99 | most ms | others p50 | p99 | most ms |")
    for is_warm in (False, True, False, True):
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            print(run(Path(directory) / "store", given.seconds, is_warm=is_warm))


if __name__ == "__main__":
    main()
