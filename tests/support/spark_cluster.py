"""A standalone Spark cluster on loopback: a master, and two workers that Spark takes for two hosts.

Spark's local-cluster has both workers on one host, and where one attempt of a task runs Spark begins no speculative one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_mq.testing.ports import free_ports

TWO_HOSTS = "two hosts"
"""As a query's master: this cluster, with a core on each host."""

TWO_EXECUTORS = "local-cluster[2,1,512]"
"""Two executors of a core each, which are JVMs of their own."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
}
"""Spark runs a task a second time soon."""

_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_SCALA = {"SPARK_SCALA_VERSION": "2.13"}  # what Spark's scripts would set; without it workers start no executor
_HOSTS = ("127.0.0.2", "127.0.0.3")


@contextmanager
def two_hosts(directory: Path, jvm_options: str) -> Iterator[str]:
    """The cluster's URL; all its processes are children of this one, and inherit its environment. Java is on JAVA_HOME."""
    with ExitStack() as processes:
        url = f"127.0.0.1:{free_ports()}"
        host, port = url.split(":")
        processes.enter_context(_started(directory, jvm_options, host, _MASTER, "--port", port))
        for host in _HOSTS:
            work = ("--cores", "1", "--memory", "600m", "--work-dir", str(directory / host))
            processes.enter_context(_started(directory, jvm_options, host, _WORKER, *work, f"spark://{url}"))
        yield f"spark://{url}"


@contextmanager
def _started(directory: Path, jvm_options: str, host: str, main: str, *arguments: str) -> Iterator[None]:
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    jars = Path(os.environ["SPARK_HOME"]) / "jars" / "*"
    options = [
        "-Xmx256m",
        *jvm_options.split(),
        "-cp",
        str(jars),
        main,
        "--host",
        host,
        "--webui-port",
        "0",
        *arguments,
    ]
    process = subprocess.Popen(
        [str(java), *options], cwd=directory, env={**os.environ, "SPARK_LOCAL_IP": host, **_SCALA}
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


SHORT_LIFE = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Without the second compiler, threads that collect, and the verification of classes: a third of the time less."""
