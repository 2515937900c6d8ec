"""Our name server and broker as processes, in the place of Apache's: with SPARK_MQ_TEST_SERVERS=own the tests of clients meet ours.

    SPARK_MQ_TEST_SERVERS=own python -m pytest tests/interop/test_producer.py …

A directory has what one of Apache's would have: pid, out.log with `boot success`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.places import PROJECT

VARIABLE = "SPARK_MQ_TEST_SERVERS"
_COMMAND = (sys.executable, "-c", "from spark_mq.cli import main; main()")
_BOOT_SECONDS = 60
_started: list[subprocess.Popen[bytes]] = []
"""Kept, as whoever ends them knows their process ids alone."""


def are_ours() -> bool:
    """Whether the tests are to meet our servers."""
    return os.environ.get(VARIABLE) == "own"


def start_name_server(directory: Path, port: int, java_properties: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Listens when this returns. `java_properties` are those of a Java process, of which TLS takes some."""
    lines = f"listenPort={port}\nkvConfigPath={directory}/kv.json\nconfigStorePath={directory}/namesrv.properties\n"
    (directory / "namesrv.conf").write_text(lines + _tls(java_properties), "utf-8")
    return _start(directory, ("namesrv", "-c", str(directory / "namesrv.conf"), "--verbose"))


def start_broker(
    directory: Path, conf: Path, java_properties: Sequence[str] = (), *, through: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Listens, and is registered, when this returns. `through` are the words of a command that runs it, such as a tracer's."""
    own = directory / "own.conf"
    own.write_text(conf.read_text("utf-8") + "\n" + _tls(java_properties), "utf-8")
    return _start(directory, ("broker", "-c", str(own), "--verbose"), through)


def _tls(java_properties: Sequence[str]) -> str:
    """The lines for our configuration files of what is a system property in Java."""
    given = dict(text.removeprefix("-D").split("=", 1) for text in java_properties)
    lines = [f"{name}={value}" for name, value in given.items() if name.startswith("tls.server.")]
    if file := given.get("tls.config.file"):
        lines += Path(file).read_text("ascii").splitlines()
    return "".join(f"{line}\n" for line in lines)


def _start(directory: Path, words: Sequence[str], through: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    output = directory / "out.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*through, *_COMMAND, *words], cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    _started.append(process)
    (directory / "pid").write_text(str(process.pid), "ascii")
    deadline = time.monotonic() + _BOOT_SECONDS
    while b"boot success" not in output.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"{' '.join(words)} did not start:\n{output.read_text('utf-8')}")
        time.sleep(0.05)
    return process
