"""Our servers: in a thread of the test's process, or as processes in the place of Apache's.

With SPARK_MQ_TEST_SERVERS=own the tests of clients meet ours:

    SPARK_MQ_TEST_SERVERS=own python -m pytest tests/interop/test_producer.py …

A directory has what one of Apache's would have: pid, out.log with `boot success`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_mq.controller.server import RunningController
from spark_mq.controller.settings import Configuration as ControllerSettings
from spark_mq.controller.state import Group
from spark_mq.namesrv.server import RunningNameServer
from spark_mq.namesrv.settings import Configuration as NameServerSettings
from spark_mq.testing.servers import on_own_loop
from tests.support.places import COMMAND, PROJECT

VARIABLE = "SPARK_MQ_TEST_SERVERS"
_BOOT_SECONDS = 60
_started: list[subprocess.Popen[bytes]] = []
"""Kept, because the code that ends them knows their process ids alone."""


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
            [*through, *COMMAND, *words], cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
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


# In a thread of the test's process, on a free port of loopback


@dataclass(frozen=True)
class OurNameServer:
    """`address` is host:port. What is called on `running` is called on its loop."""

    address: str
    running: RunningNameServer
    loop: asyncio.AbstractEventLoop

    @property
    def connection_count(self) -> int:
        """How many are connected."""
        return self.running.connection_count


@contextmanager
def our_name_server(home: Path, **settings: str) -> Iterator[OurNameServer]:
    """`settings` by Java's names; a dot in a name is written as two underscores. It is closed with the context."""
    texts = {name.replace("__", "."): text for name, text in settings.items()}
    configuration = NameServerSettings.of(
        {
            "listenPort": "0",
            "kvConfigPath": str(home / "kvConfig.json"),
            "configStorePath": str(home / "namesrv.properties"),
            **texts,
        }
    )
    with on_own_loop(lambda: RunningNameServer.start(configuration), "our-name-server") as (running, loop):
        host, port = running.address
        yield OurNameServer(f"{host}:{port}", running, loop)


@dataclass(frozen=True)
class OurController:
    """`address` is host:port. What is called on `running` is called on its loop."""

    address: str
    running: RunningController
    loop: asyncio.AbstractEventLoop

    def group(self, name: str) -> Group | None:
        """What is known of the brokers of a name: a value that does not change."""
        return self.running.controller.state.groups.get(name)


@contextmanager
def our_controller(home: Path, **settings: str) -> Iterator[OurController]:
    """`settings` by Java's names. It is closed with the context, and may be started again on the same `home`."""
    configuration = ControllerSettings.of(
        {
            "listenPort": "0",
            "controllerStorePath": str(home / "controller"),
            "configStorePath": str(home / "controller.properties"),
            **settings,
        }
    )
    with on_own_loop(lambda: RunningController.start(configuration), "our-controller") as (running, loop):
        host, port = running.address
        yield OurController(f"{host}:{port}", running, loop)
