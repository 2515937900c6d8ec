"""Programs of other clients than ours and Java's newest: each does a round of all that an application does, and tells what it saw.

A program's lines, by `type`: `sent` (`how`, `name`, `bytes`; where the client tells it `status`, `tags`, `queueId`, `queueOffset`,
`msgId`), `got` (`by` which consumer, the place, `times` it was tried before), `asked` (a transaction was), `fact`, `failed`, and
`done` at the end. A message's `name` is its body up to a colon. Programs are built or fetched when they are first used, and kept
beside Apache's jars.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.java_broker import SCRIPT, JavaClient, Oracle, OracleError, RunningBroker
from tests.support.places import PROJECT

SOURCES = PROJECT / "tests" / "clients"
CPP_PACKAGE = "rocketmq-python-cvs==2.1.0.3"
"""A Python package that carries Apache's C++ client 2.1."""
OLD_CPP_PACKAGE = "rocketmq==0.4.4"
"""One that carries it as it was shortly before 2.0."""
_BUILD_SECONDS = 600
_RUST_BUILD_SECONDS = 1_800
_ROUND_SECONDS = 150


class NotHereError(Exception):
    """A program cannot be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class ClientProgram:
    """`command` makes the first words of a command line, or raises NotHereError."""

    name: str
    command: Callable[[Oracle], Sequence[str]]
    lacks: frozenset[str] = frozenset()
    """What the client has not: `oneway`, `batch` (the `how` of sends), `pull`, `topics` (it makes none, or not for transactions)."""
    has_transactions: bool = True
    has_batches: bool = True
    """Whether brokers take its batches for batches."""
    fails_alone: bool = True
    """Whether a message that is to come again leaves its neighbours alone."""
    tells_queues: bool = True
    """Whether its answer to a send says which queue it was."""

    def run(self, servers: Oracle, broker: RunningBroker, out: Path, topic: str, **more: str) -> JavaClient:
        """One round, to its end. Raises NotHereError, OracleError where it fails."""
        given = {"ns": broker.name_server, "broker": broker.address, "topic": topic, "group": f"g-{topic}", **more}
        words = [*self.command(servers), str(out), *(f"{name}={value}" for name, value in given.items())]
        home = out.parent / f"home-{out.stem}"
        home.mkdir()
        with (out.parent / f"{out.stem}.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                words, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
                env={**os.environ, "HOME": str(home), "TMPDIR": str(home), "ROCKETMQ_GO_LOG_LEVEL": "warn"},
            )  # fmt: skip
            try:
                process.wait(_ROUND_SECONDS)
            except subprocess.TimeoutExpired:
                raise OracleError(f"{self.name}: no end within {_ROUND_SECONDS} s") from None
            finally:
                process.kill()
                process.wait()
        client = JavaClient(out, process)
        if not client.lines("done"):
            said = Path(log.name).read_text("utf-8", "replace")[-4_000:]
            raise OracleError(f"{self.name} ended with {process.returncode}\n{client.lines('failed')}\n{said}")
        return client


def java(version: str) -> ClientProgram:
    """The Java client of a release."""

    def command(servers: Oracle) -> list[str]:
        client = Oracle(servers.directory, servers.home, version)
        try:
            client.build()
        except OracleError as error:
            raise NotHereError(str(error).strip().splitlines()[-1]) from None
        return ["env", f"RELEASE={version}", f"ORACLE_HOME={client.home}", str(SCRIPT), "java", "ClientRound"]

    return ClientProgram(f"java-{version}", command)


def _go(version: str | None = None) -> Callable[[Oracle], Sequence[str]]:
    """Of a release, or of the one that go.mod names."""

    def command(servers: Oracle) -> list[str]:
        if shutil.which("go") is None:
            raise NotHereError("go is not on the PATH")
        directory = servers.home / f"go-round-{version or 'of-go.mod'}"
        shutil.copytree(SOURCES / "go", directory, dirs_exist_ok=True)
        tags = ["-tags", "before212"] if version is not None and version < "v2.1.2" else []
        if version is not None:
            _make(["go", "get", f"github.com/apache/rocketmq-client-go/v2@{version}"], directory)
            _make(["go", "mod", "tidy"], directory)
        _make(["go", "build", *tags, "-o", "round", "."], directory)
        return [str(directory / "round")]

    return command


def _cpp(package: str) -> Callable[[Oracle], Sequence[str]]:
    def command(servers: Oracle) -> list[str]:
        library = servers.home / package / "rocketmq" / "librocketmq.so"
        if not library.exists():
            uv = Path(sys.executable).parent / "uv"
            _make([str(uv), "pip", "install", "--no-deps", "--target", str(servers.home / package), package], SOURCES)
        return [sys.executable, "-m", "tests.clients.cpp_round", str(library)]

    return command


def _node(servers: Oracle) -> list[str]:
    if shutil.which("npm") is None:
        raise NotHereError("npm is not on the PATH")
    built = servers.home / "node-round"
    sources = list((SOURCES / "node").iterdir())
    if not (built / "made").exists() or (built / "made").stat().st_mtime < max(
        file.stat().st_mtime for file in sources
    ):
        built.mkdir(parents=True, exist_ok=True)
        for file in sources:
            shutil.copy(file, built)
        _make(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], built)
        (built / "made").touch()
    return ["node", str(built / "round.js")]


def _ons(servers: Oracle) -> list[str]:
    directory = servers.home / "ons-round"
    shutil.copytree(SOURCES / "ons", directory, dirs_exist_ok=True)
    if not (directory / "lib").exists():
        _make(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={directory}/lib"], directory)
    _make(["javac", "-nowarn", "-cp", "lib/*", "-d", "classes", "OnsRound.java"], directory)
    return ["java", f"-Duser.home={servers.directory}", "-cp", f"{directory}/classes:{directory}/lib/*", "OnsRound"]


def _rust(servers: Oracle) -> list[str]:
    if shutil.which("cargo") is None:
        raise NotHereError("cargo is not on the PATH")
    built = servers.home / "rust-round"
    shutil.copytree(SOURCES / "rust", built, dirs_exist_ok=True)
    _make(["cargo", "build"], built, seconds=_RUST_BUILD_SECONDS)
    return [str(built / "target" / "debug" / "round")]


def _make(command: Sequence[str], directory: Path, *, seconds: float = _BUILD_SECONDS) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise NotHereError(f"{' '.join(command)}: {lines[-1] if lines else done.returncode}")


GO = ClientProgram("go", _go())
NEW_GO = ClientProgram("go-2.1.3-pre", _go("v2.1.3-0.20251226070945-2173d070fd1b"))
"""As it was in December 2025."""
OLD_GO = [
    ClientProgram(f"go-{version}", _go(f"v{version}"), lacks=frozenset(("pull", "topics")), fails_alone=False)
    for version in ("2.1.0", "2.1.1")
]
CPP = ClientProgram("cpp", _cpp(CPP_PACKAGE), has_batches=False, fails_alone=False, tells_queues=False)
OLD_CPP = ClientProgram(
    "cpp-2019",
    _cpp(OLD_CPP_PACKAGE),
    has_transactions=False,
    has_batches=False,
    fails_alone=False,
    tells_queues=False,
)
NODE = ClientProgram("node", _node, lacks=frozenset(("oneway", "batch", "pull", "topics")), has_transactions=False)
RUST = ClientProgram("rust", _rust, fails_alone=False)
"""On a busy machine its pool of blocking workers refuses a call of the listener, and the client sends that message back unseen."""
ONS = ClientProgram("ons", _ons, lacks=frozenset(("batch", "pull", "topics")))
"""Aliyun's client in Java."""
