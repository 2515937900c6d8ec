"""What warmMapedFileEnable saves: locked memory, and how long the first puts into new log files take.

    python -m bench.warm_files [--seconds 20] [--directory /data] [--brokers]      alone on the machine, with a high `ulimit -l`

Two stores in turn, without and with the setting, at one rate of puts; with `--brokers` Apache's broker and ours instead, each with and
without, and one client that sends to it. Small files (`--file-mib`), so that the log rolls often;
256 messages a file. A row each: VmLck at its most, files, then p50,
p99 and the most ms of the first 50 puts of each file, and of the others.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.broker import our_broker
from bench.rocketmq_broker import UNHURRIED, running_broker
from spark_mq.client import Message, Producer
from storage import open_store
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.settings.nouns import CommitLogConfig, FlushConfig

_ORACLE = Path(__file__).resolve().parent.parent / "tests" / "oracle" / "oracle.sh"
_TOPIC = "bench_warm"
_MESSAGES_A_FILE = 256
_FIRST = 50
_REST_S = 0.000_2


def _locked_bytes(process: int | str = "self") -> int:
    with open(f"/proc/{process}/status", encoding="ascii") as lines:
        return int(next(line for line in lines if line.startswith("VmLck:")).split()[1]) << 10


def run(root: Path, seconds: float, file_bytes: int, *, is_warm: bool) -> str:
    """The row of one store of this process."""
    config = StoreConfig(
        commit_log=CommitLogConfig(mapped_file_size_commit_log=file_bytes),
        flush=FlushConfig(warm_maped_file_enable=is_warm),
        settings={"mappedFileSizeCommitLog": str(file_bytes)},
    )
    config = replace(config, identity=replace(config.identity, broker_name="b", broker_ip1="127.0.0.1"))
    message = InnerMessage(topic="T", queue_id=0, body=os.urandom(file_bytes // _MESSAGES_A_FILE), properties={})
    with PutService(open_store(root, config=config, read_only=False, create=True)) as service:

        def put() -> int:
            service.put_inner([message])
            return service.log_end

        return _row(f"this process | {_shown(is_warm)}", put, seconds, file_bytes, _locked_bytes)


def run_at_broker(kind: str, home: Path, seconds: float, file_bytes: int, *, is_warm: bool) -> str:
    """The row of one broker, Apache's or ours."""
    home.mkdir(parents=True)
    settings = (f"mappedFileSizeCommitLog={file_bytes}", f"warmMapedFileEnable={str(is_warm).lower()}", *UNHURRIED)
    start = running_broker if kind == "Apache's" else our_broker
    with start(_ORACLE, home, home / "store", *settings) as broker:
        broker.make_topics([_TOPIC], 1)
        with Producer(broker.settings, "bench_warm", topics=[_TOPIC]) as producer:
            message = Message(_TOPIC, os.urandom(file_bytes // _MESSAGES_A_FILE))

            def put() -> int:
                return int(producer.send(message).offset_message_id[-16:], 16)

            return _row(f"{kind} | {_shown(is_warm)}", put, seconds, file_bytes, lambda: _locked_bytes(broker.pid))


def _shown(is_warm: bool) -> str:
    return "on" if is_warm else "off"


def _row(labels: str, put: Callable[[], int], seconds: float, file_bytes: int, locked_bytes: Callable[[], int]) -> str:
    """`put` returns a place in the log at or behind its message."""
    firsts: list[float] = []
    others: list[float] = []
    most_locked = 0
    until, file, in_file = time.monotonic() + seconds, 0, 0
    while (began := time.monotonic()) < until:
        place = put()
        took_ms = (time.monotonic() - began) * 1_000
        if place // file_bytes != file:
            file, in_file = place // file_bytes, 0
            most_locked = max(most_locked, locked_bytes())
        in_file += 1
        if file:
            (firsts if in_file <= _FIRST else others).append(took_ms)
        time.sleep(_REST_S)
    most_locked = max(most_locked, locked_bytes())
    shown = [f"{np.percentile(each, share):.3f}" for each in (firsts, others) if each for share in (50, 99, 100)]
    return f"| {labels} | {most_locked >> 20} MiB | {file} | {' | '.join(shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--file-mib", type=int, default=16)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--brokers", action="store_true", help="Apache's broker and ours, not a store of this process")
    given = parser.parse_args()
    print(
        "| puts into | warmMapedFileEnable | VmLck | files | first p50 | p99 | most ms | others p50 | p99 | most ms |"
    )
    print("| --- " * 10 + "|")
    for is_warm in (False, True, False, True):
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            if not given.brokers:
                print(run(Path(directory) / "store", given.seconds, given.file_mib << 20, is_warm=is_warm), flush=True)
                continue
            for kind in ("Apache's", "ours"):
                print(
                    run_at_broker(
                        kind, Path(directory) / kind[:4], given.seconds, given.file_mib << 20, is_warm=is_warm
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
