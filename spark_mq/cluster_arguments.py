"""What the command line of a job says of a running cluster, as options of the source. No secret stands on a command line.

Other users of a machine see the command lines of its processes, so a secret comes from a file or from the environment. The command
`spark-mq` has the same options, and takes its secrets here too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from spark_mq.client.settings import MQ_CLIENT_API_TIMEOUT_MS
from spark_mq.conditions import OptionError
from spark_mq.options import (
    ClusterOptions,
    parse_name_servers,
    parse_namespace,
    parse_request_timeout,
)

SECRET_KEY = "SPARK_MQ_SECRET_KEY"
SECURITY_TOKEN = "SPARK_MQ_SECURITY_TOKEN"
TLS_KEY_PASSWORD = "SPARK_MQ_TLS_KEY_PASSWORD"
"""Variables of the environment that hold secrets."""

_TEXTS = {
    "--namespace": ("NAME", "stands before topics and groups there"),
    "--access-key": ("USER", f"the user who signs requests; the secret is in --secret-key-file or in {SECRET_KEY}"),
    "--secret-key-file": ("FILE", "its only line is that user's secret"),
    "--tls-ca-file": ("PEM", "the authorities to trust, not the system's"),
    "--tls-cert-file": ("PEM", "the client's certificate"),
    "--tls-key-file": ("PEM", f"its key; a password in {TLS_KEY_PASSWORD}"),
    "--tls-server-name": ("NAME", "the name in the servers' certificates"),
}
_OF_CLUSTERS = ("namespace", "access_key", "secret_key_file", "tls_ca_file", "tls_cert_file", "tls_key_file",
                "tls_server_name", "tls", "tls_no_verify", "request_timeout")  # fmt: skip


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a cluster in place of PATH; `cluster_of` reads them."""
    group = parser.add_argument_group("a running cluster, in place of PATH")
    group.add_argument("-n", "--name-server", metavar="HOST:PORT[,…]", help="its name servers")
    for name, (metavar, text) in _TEXTS.items():
        group.add_argument(name, metavar=metavar, help=text)
    group.add_argument("--tls", action="store_true", help="speak TLS")
    group.add_argument("--tls-no-verify", action="store_true", help="take any server for the right one")
    timeout = f"how long an answer may take, {MQ_CLIENT_API_TIMEOUT_MS // 1000}s"
    group.add_argument("--request-timeout", metavar="TIME", help=timeout)


class ClusterArguments(Protocol):
    """What a command line says of a cluster: the options of `add_cluster_arguments`, by their names."""

    @property
    def name_server(self) -> str | None: ...
    @property
    def namespace(self) -> str | None: ...
    @property
    def access_key(self) -> str | None: ...
    @property
    def secret_key_file(self) -> str | None: ...
    @property
    def tls(self) -> bool: ...
    @property
    def tls_no_verify(self) -> bool: ...
    @property
    def tls_ca_file(self) -> str | None: ...
    @property
    def tls_cert_file(self) -> str | None: ...
    @property
    def tls_key_file(self) -> str | None: ...
    @property
    def tls_server_name(self) -> str | None: ...


def cluster_options(
    given: ClusterArguments, timeout_ms: int, environment: Mapping[str, str] | None = None
) -> ClusterOptions:
    """The source's options of a cluster, with secrets from a file or the environment. Raises OptionError."""
    variables = os.environ if environment is None else environment
    secret = secret_key(given.access_key, given.secret_key_file, variables)
    return ClusterOptions(
        name_server=parse_name_servers(given.name_server or "", "--name-server"),
        namespace=None if given.namespace is None else parse_namespace(given.namespace, "--namespace"),
        access_key=given.access_key,
        secret_key=secret,
        security_token=variables.get(SECURITY_TOKEN) or None if secret else None,
        tls=given.tls,
        tls_verify=not given.tls_no_verify,
        tls_ca_file=given.tls_ca_file,
        tls_cert_file=given.tls_cert_file,
        tls_key_file=given.tls_key_file,
        tls_key_password=variables.get(TLS_KEY_PASSWORD) or None if given.tls else None,
        tls_server_name=given.tls_server_name,
        request_timeout=timeout_ms,
    )


def cluster_of(given: argparse.Namespace, environment: Mapping[str, str] | None = None) -> ClusterOptions | None:
    """How the cluster is reached; None where a store is named. Raises OptionError."""
    if (given.name_server is None) == (given.path is None):
        rule = "give PATH or --name-server, not both" if given.path else "give PATH, or the address of a name server"
        raise OptionError("--name-server", rule)
    if given.name_server is None:
        for name in _OF_CLUSTERS:
            if getattr(given, name):
                raise OptionError(f"--{name.replace('_', '-')}", "belongs to --name-server, and a store is named")
        return None
    timeout = given.request_timeout
    timeout_ms = MQ_CLIENT_API_TIMEOUT_MS if timeout is None else parse_request_timeout(timeout, "--request-timeout")
    options = cluster_options(given, timeout_ms, environment)
    try:
        options.check_access()
    except OptionError as error:
        raise OptionError("--tls", error.rule) from None
    return options


def secret_key(access_key: str | None, file: str | None, variables: Mapping[str, str]) -> str | None:
    """The user's secret, of the file or of the environment; None without a user. Raises OptionError, OSError."""
    if access_key is None:
        if file is not None:
            raise OptionError("--secret-key-file", "needs --access-key, the user whose secret it is")
        return None
    if file is not None:
        secret = Path(file).read_text("utf-8").strip()
        if not secret:
            raise OptionError("--secret-key-file", f"{file} is empty")
        return secret
    if secret := variables.get(SECRET_KEY, ""):
        return secret
    rule = f"needs its secret: in --secret-key-file or in the variable {SECRET_KEY}; other users of this machine see command lines"
    raise OptionError("--access-key", rule)
