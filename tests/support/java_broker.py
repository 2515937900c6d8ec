"""The real Apache RocketMQ as a judge, run by tests/oracle/oracle.sh: server, client, store classes.

The environment's RELEASE chooses the release, else it is 5.3.3.

Everything listens on 127.0.0.1, on ports that are free when asked for, so that runs side by side do not meet.
What is started is ended by its own process id when its context ends, also when the test fails in between.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.put_plan import CURRENT_VERSION
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings, Credentials
from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.testing.ports import free_ports as free_ports
from storage.errors import StateFileError
from storage.names import address_text, same_address
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from tests.support import own_servers
from tests.support.places import PROJECT
from tests.support.waiting import await_route
from tests.support.waiting import wait_until as wait_until

from .fixture_stores import golden_lines

_DEFAULT_RELEASE = "5.3.3"
RELEASE = os.environ.get("RELEASE") or _DEFAULT_RELEASE
"""The release that tests run beside, unless they name another one."""
SCRIPT = PROJECT / "tests" / "oracle" / "oracle.sh"

DUMP_VERDICTS = {
    3: "load or recovery failed",
    4: "start failed",
    5: "a queue entry points at nothing readable",
    6: "dispatch did not catch up",
    7: "the queues hold fewer messages than the log holds valid records",
}


class OracleError(Exception):
    """The Apache classes did not do what they were asked to; the text says what they wrote."""


class DumpRefusedError(OracleError):
    """Apache's store classes do not accept a store: its `exit_code`, the `lines` until then."""

    def __init__(self, store: Path, exit_code: int, lines: list[dict[str, Any]], output: str) -> None:
        verdict = DUMP_VERDICTS.get(exit_code, "failed")
        super().__init__(f"dump of {store}: {verdict} (exit code {exit_code})\n{output}")
        self.exit_code = exit_code
        self.lines = lines


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker process; `directory` holds its pid, its configuration, its output and its log (rmq.log)."""

    directory: Path
    store: Path
    conf: Path
    address: str
    name_server: str
    pid: int

    def consumer_offset(self, topic: str, group: str, queue_id: int = 0) -> int | None:
        """How far a group is, as far as the broker has written that down; None also while it does."""
        path = self.store / "config" / OFFSETS_FILE
        try:
            table = ConsumerOffsets.load(path.read_text("utf-8"))
        except (FileNotFoundError, StateFileError):  # it is overwritten in place
            return None
        return table.get(topic, group, queue_id)

    def make_topic(self, topic: str, queues: int = 1, *, credentials: Credentials | None = None) -> None:
        """A topic of so many queues, which has a route when this returns."""
        with Admin(ClientSettings((self.name_server,), credentials=credentials)) as admin:
            admin.create_topic(NewTopic(topic, queues, queues), address=self.address)
            await_route(admin, topic, queues)

    def kill(self) -> None:
        """End it as a crash does (SIGKILL): the abort file stays, nothing is flushed."""
        _end(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class JavaClient:
    """A client program that runs beside the test and writes a line to `out` for each thing that happens to it."""

    out: Path
    process: subprocess.Popen[str]

    def lines(self, type_: str | None = None) -> list[dict[str, Any]]:
        """What it has written so far, all or of one `type`."""
        text = self.out.read_text("utf-8") if self.out.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [line for line in map(json.loads, whole) if type_ is None or line["type"] == type_]

    def until(
        self, met: Callable[[list[dict[str, Any]]], bool], type_: str | None = None, timeout_seconds: float = 60
    ) -> list[dict[str, Any]]:
        """Wait until its lines (of one type) are as asked, and return them. Raises OracleError if that does not happen."""
        deadline = time.monotonic() + timeout_seconds
        while not met(lines := self.lines(type_)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                state = "ended" if self.process.poll() is not None else f"had {timeout_seconds:.0f} s"
                raise OracleError(f"{self.process.args}: {state}, and wrote only {lines}")
            time.sleep(0.1)
        return lines


_UNHURRIED = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
"""A busy machine is no failure."""


class Oracle:
    """oracle.sh as Python calls; `directory` takes what the processes leave behind (logs, settings).

    `java_properties` are given to every process, each as `-Dname=value`. With `is_ours` name server and broker are this package's,
    and the clients Apache's still.
    """

    def __init__(
        self,
        directory: Path,
        home: Path | None = None,
        version: str = RELEASE,
        java_properties: Sequence[str] = (),
        *,
        is_ours: bool | None = None,
    ) -> None:
        self.is_ours = own_servers.are_ours() if is_ours is None else is_ours
        self.directory = directory
        self.version = version
        self.java_properties = tuple(java_properties)
        default = os.environ.get("ORACLE_HOME") or Path.home() / ".cache" / "rocketmq-oracle"
        self.home = home if home is not None else Path(default)

    @property
    def release_home(self) -> Path:
        """Where the release's jars and settings of its log lie."""
        return (
            self.home if self.version == _DEFAULT_RELEASE else self.home.with_name(f"{self.home.name}-{self.version}")
        )

    @property
    def version_name(self) -> str:
        """The release as its broker tells it, `V5_3_3`; of ours, the release whose words it speaks."""
        return ProtocolVersion(CURRENT_VERSION).name if self.is_ours else f"V{self.version.replace('.', '_')}"

    @staticmethod
    def available() -> str | None:
        """None when the oracle can run here, else the reason why not, for `pytest.skip`."""
        needed = {"java": "a Java runtime", "javac": "a JDK", "mvn": "Maven", "cp": "GNU cp"}
        for program, what in needed.items():
            if shutil.which(program) is None:
                return f"the Apache oracle needs {what} ({program} is not on the PATH)"
        oracle = Oracle(Path(tempfile.gettempdir()))
        if (oracle.release_home / "built").exists():
            return None
        try:
            oracle.build()
        except OracleError as error:
            return f"the Apache jars could not be had from Maven: {str(error).strip().splitlines()[-1]}"
        return None

    def release(self, version: str) -> Oracle:
        """Another release; of those before 5.3 broker and client only, with name server and `dump` of 5.3.3. Raises OracleError."""
        other = Oracle(self.directory, self.home, version)
        other.build()
        return other

    def build(self) -> None:
        """Fetch the jars and compile tests/oracle/src, unless done before; takes minutes at first."""
        self._run("build", timeout_seconds=900)

    def dump(self, store: Path, conf: Path, *, strict: bool = True, **settings: str | int) -> list[dict[str, Any]]:
        """What Apache's DefaultMessageStore says of a copy of `store`, as the lines of a golden.jsonl.

        The copy is recovered as a starting broker would; `store` itself is not touched. `settings` are Java
        names of MessageStoreConfig that override those of `conf`. With `strict`, a store whose queues lose
        messages is refused. Raises DumpRefusedError.
        """
        workspace = Path(tempfile.mkdtemp(prefix="dump-", dir=self._made(self.directory)))
        listing = workspace / "golden.jsonl"
        command = [
            "dump",
            str(store),
            str(listing),
            f"conf={conf}",
            f"strict={int(strict)}",
            *_pairs(settings),
        ]
        try:
            done = self._start(*command, workspace=workspace, timeout_seconds=300)
            lines = list(golden_lines(listing)) if listing.exists() else []
            if done.returncode != 0:
                raise DumpRefusedError(store, done.returncode, lines, done.stdout + done.stderr)
            return lines
        finally:
            shutil.rmtree(workspace)

    def java(self, class_name: str, *arguments: str | int | Path, timeout_seconds: float = 300) -> str:
        """Run a class of tests/oracle/src or of Apache's jars to its end; returns its output.

        Raises OracleError.
        """
        return self._run("java", class_name, *map(str, arguments), timeout_seconds=timeout_seconds)

    def java_said(self, class_name: str, *arguments: str | int | Path) -> str:
        """The same, however it ends: output and errors."""
        texts = map(str, arguments)
        done = self._start("java", class_name, *texts, workspace=self._made(self.directory), timeout_seconds=300)
        return done.stdout + done.stderr

    @contextmanager
    def java_running(self, class_name: str, *arguments: str | int | Path) -> Iterator[subprocess.Popen[str]]:
        """The same beside the test: a process that is ended, if it still runs, with the context."""
        output = self._made(self.directory) / f"{class_name}-{time.monotonic_ns()}.log"
        self.build()
        with output.open("w", encoding="utf-8") as log:
            command = [str(SCRIPT), "java", class_name, *map(str, arguments)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                env=self._environment(self.directory),
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait(timeout=60)

    @contextmanager
    def client(self, class_name: str, out: Path, broker: RunningBroker, **options: str | int) -> Iterator[JavaClient]:
        """TransactionSide or FailingConsumer beside the test, with `options` as they describe; killed with the context."""
        ends = {"ns": broker.name_server, "broker": broker.address}
        with self.java_running(class_name, out, *_pairs({**ends, **options})) as process:
            yield JavaClient(out, process)

    def produce(self, out: Path, broker: RunningBroker, *, seed: int = 1, **options: str | int) -> list[dict[str, Any]]:
        """All kinds of messages by the Java client (transactions, delays, retries, …); about a minute.

        `options` as in Produce.java (`normal`, `roll`, `wait`, …). Returns what was sent and answered, as
        written to `out`.
        """
        ends = {"ns": broker.name_server, "broker": broker.address}
        takes_long_groups = self.version < "5.4"  # a later client takes no group of 150 characters, and would not end
        self.java("Produce", seed, out, *_pairs({**ends, "long": int(takes_long_groups), **options}))
        return [json.loads(line) for line in out.read_text("utf-8").splitlines()]

    def send(self, out: Path, broker: RunningBroker, topic: str, **options: str | int) -> list[dict[str, Any]]:
        """Plain messages to one topic. `options` as in Send.java (`queues`, `count`, `maxBody`, …)."""
        self.java("Send", out, *_pairs({**send_arguments(broker, topic), **options}))
        return [json.loads(line) for line in out.read_text("utf-8").splitlines()]

    def consume_all(
        self, out: Path, broker: RunningBroker, topics: Sequence[str], **options: str | int
    ) -> list[dict[str, Any]]:
        """What a broker serves of these topics to a pulling consumer and to mqadmin's queries; lines as in ConsumeAll.java."""
        ends = {"ns": broker.name_server, "broker": broker.address}
        self.java("ConsumeAll", out, *_pairs({**ends, "topics": ",".join(topics), **options}))
        return [json.loads(line) for line in out.read_text("utf-8").splitlines()]

    @contextmanager
    def namesrv(self) -> Iterator[str]:
        """A name server; yields its address."""
        directory = Path(tempfile.mkdtemp(prefix="namesrv-", dir=self._made(self.directory)))
        port = free_ports()
        try:
            if self.is_ours:
                own_servers.start_name_server(directory, port, self.java_properties)
            else:
                self._run("namesrv", str(directory), timeout_seconds=240, variables={"NAMESRV_PORT": str(port)})
            yield f"127.0.0.1:{port}"
        finally:
            _end_what_runs_in(directory, signal.SIGKILL)  # it keeps nothing that a clean stop would save

    def broker_conf(
        self,
        store: Path,
        name_server: str,
        port: int,
        *,
        commitlog_file_size_bytes: int = 1 << 20,
        consume_queue_file_size_bytes: int = 20_000,
        **settings: str | int,
    ) -> str:
        """The text of a broker.conf. `settings` are further lines, and win over oracle.sh's. A put waits for a busy machine."""
        lines = _pairs({"listenPort": port, "namesrvAddr": name_server, **_UNHURRIED, **settings})
        sizes = str(commitlog_file_size_bytes), str(consume_queue_file_size_bytes)
        return self._run("conf", str(store), *sizes, *lines, timeout_seconds=60)

    @contextmanager
    def broker(
        self,
        store: Path,
        name_server: str,
        *,
        port: int | None = None,
        commitlog_file_size_bytes: int = 1 << 20,
        consume_queue_file_size_bytes: int = 20_000,
        **settings: str | int,
    ) -> Iterator[RunningBroker]:
        """A broker on `store`, which it recovers if it exists; a clean stop at the end unless killed.

        It listens on `port` (of `free_ports`), else on a free one; the rest as of `broker_conf`.
        """
        directory = Path(tempfile.mkdtemp(prefix="broker-", dir=self._made(self.directory)))
        port = port or free_ports()
        conf = directory / "broker.conf"
        text = self.broker_conf(
            store,
            name_server,
            port,
            commitlog_file_size_bytes=commitlog_file_size_bytes,
            consume_queue_file_size_bytes=consume_queue_file_size_bytes,
            **settings,
        )
        conf.write_text(text, "utf-8")
        try:
            if self.is_ours:
                own_servers.start_broker(directory, conf, self.java_properties)
            else:
                self._run("broker", str(directory), str(conf), timeout_seconds=240)
            pid = int((directory / "pid").read_text("ascii"))
            address = address_text(str(settings.get("brokerIP1", "127.0.0.1")), port)
            _await_registered(address, name_server)
            yield RunningBroker(directory, store, conf, address, name_server, pid)
        finally:
            _end_what_runs_in(directory)

    def _run(self, *arguments: str, timeout_seconds: float, variables: Mapping[str, str] | None = None) -> str:
        done = self._start(
            *arguments,
            workspace=self._made(self.directory),
            timeout_seconds=timeout_seconds,
            variables=variables,
        )
        if done.returncode != 0:
            raise OracleError(
                f"oracle.sh {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def _start(
        self,
        *arguments: str,
        workspace: Path,
        timeout_seconds: float,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [str(SCRIPT), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_seconds,
                env={**self._environment(workspace), **(variables or {})},
            )
        except subprocess.TimeoutExpired as expired:
            raise OracleError(f"oracle.sh {' '.join(arguments)}: no end within {timeout_seconds:.0f} s") from expired

    def _environment(self, workspace: Path) -> dict[str, str]:
        """Java's temporary files and logs go into `workspace`, so that nothing is left elsewhere.

        Processes that live for seconds are not worth the second compiler: without it they take half the time.
        """
        return {
            **os.environ,
            "ORACLE_HOME": str(self.home),
            "RELEASE": self.version,
            "TMPDIR": str(workspace),
            "JDK_JAVA_OPTIONS": " ".join(
                (f"-Djava.io.tmpdir={workspace}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *self.java_properties)
            ),
        }

    @staticmethod
    def _made(directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        return directory


def needed_oracle(directory: Path) -> Oracle:
    """Apache's own classes as judge; a test is skipped, with the reason, where they cannot run."""
    if (reason := Oracle.available()) is not None:
        pytest.skip(reason)
    return Oracle(directory)


def _await_registered(address: str, name_server: str) -> None:
    """A broker may say that it has started before a busy name server has taken it. Who cannot be asked is not waited for."""
    with suppress(ClientError), Admin(ClientSettings((name_server.split(";")[0],))) as admin:
        for _ in range(300):
            if any(
                same_address(address, found)
                for each in admin.cluster_info().broker_address_table.values()
                for found in each.broker_addresses.values()
            ):
                return
            time.sleep(0.1)


def send_arguments(broker: RunningBroker, topic: str) -> dict[str, str]:
    """Send.java's settings that say where to and what for; for `java_running("Send", out, *…)`."""
    return {"ns": broker.name_server, "broker": broker.address, "topic": topic}


def _pairs(settings: Mapping[str, str | int]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def _end_what_runs_in(directory: Path, first_signal: signal.Signals = signal.SIGTERM) -> None:
    pid_file = directory / "pid"
    if pid_file.exists():
        pid = int(pid_file.read_text("ascii"))
        if not _end(pid, first_signal):
            _end(pid, signal.SIGKILL)


def _end(pid: int, with_signal: signal.Signals, timeout_seconds: float = 60) -> bool:
    """Signal one process and wait for its end; True when it is gone."""
    deadline = time.monotonic() + timeout_seconds
    try:
        os.kill(pid, with_signal)
        while time.monotonic() < deadline:
            if _is_zombie(pid):
                return True
            os.kill(pid, 0)
            time.sleep(0.1)
    except ProcessLookupError:
        return True
    return False


def _is_zombie(pid: int) -> bool:
    """An ended process whose parent has not asked for it yet: the orphan of a shell under a lazy init.

    Its first thread is one while others still end, and have its files open.
    """
    status, threads = Path(f"/proc/{pid}/stat"), Path(f"/proc/{pid}/task")
    with suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text("utf-8").rpartition(")")[2].split()[0] == "Z" and len(list(threads.iterdir())) <= 1
    return False
