"""The options that name a running cluster, and say how it is reached. No secret stands on a command line.

A secret key comes from a file or from the environment; other users of a machine see the command lines of its processes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from spark_mq.cli.app import UsageError
from spark_mq.client.settings import MQ_CLIENT_API_TIMEOUT_MS, ClientSettings
from spark_mq.cluster_arguments import SECRET_KEY, TLS_KEY_PASSWORD, cluster_options
from spark_mq.options import (
    parse_request_timeout,
)

_PANEL = "A running cluster"
_TLS = ("tls_no_verify", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What a command line says of a running cluster. Without `name_server` none is meant."""

    name_server: Annotated[
        str | None,
        typer.Option("--name-server", "-n", metavar="HOST:PORT[,…]", help="Its name servers.", rich_help_panel=_PANEL),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="Stands before topics and groups there: NAME%topic.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    access_key: Annotated[
        str | None,
        typer.Option(
            "--access-key",
            metavar="USER",
            help=f"The user who signs requests (ACL). The secret is in --secret-key-file or in {SECRET_KEY}.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    secret_key_file: Annotated[
        str | None,
        typer.Option(
            "--secret-key-file", metavar="FILE", help="Its only line is that user's secret.", rich_help_panel=_PANEL
        ),
    ] = None
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS.", rich_help_panel=_PANEL)] = False
    tls_no_verify: Annotated[
        bool,
        typer.Option("--tls-no-verify", help="Take any server for the right one.", rich_help_panel=_PANEL),
    ] = False
    tls_ca_file: Annotated[
        str | None,
        typer.Option(
            "--tls-ca-file", metavar="PEM", help="The authorities to trust, not the system's.", rich_help_panel=_PANEL
        ),
    ] = None
    tls_cert_file: Annotated[
        str | None,
        typer.Option("--tls-cert-file", metavar="PEM", help="The client's certificate.", rich_help_panel=_PANEL),
    ] = None
    tls_key_file: Annotated[
        str | None,
        typer.Option(
            "--tls-key-file", metavar="PEM", help=f"Its key; a password in {TLS_KEY_PASSWORD}.", rich_help_panel=_PANEL
        ),
    ] = None
    tls_server_name: Annotated[
        str | None,
        typer.Option(
            "--tls-server-name", metavar="NAME", help="The name in the servers' certificates.", rich_help_panel=_PANEL
        ),
    ] = None
    request_timeout: Annotated[
        str,
        typer.Option("--request-timeout", metavar="TIME", help="How long an answer may take.", rich_help_panel=_PANEL),
    ] = f"{MQ_CLIENT_API_TIMEOUT_MS // 1000}s"

    @property
    def is_given(self) -> bool:
        """Whether a running cluster is meant."""
        return self.name_server is not None

    def is_chosen(self, path: str | None) -> bool:
        """Whether a command goes to the cluster, not to the stores at PATH. Raises BadParameter unless exactly one is named."""
        if self.is_given == (path is not None):
            told = "give one, not both" if self.is_given else "give one of them"
            raise typer.BadParameter(f"{told}: stores, or a running cluster", param_hint="PATH / --name-server")
        if not self.is_given:
            self._refuse_without_name_server()
        return self.is_given

    def check_given(self) -> None:
        """For commands that only a running cluster has. Raises BadParameter."""
        if not self.is_given:
            raise typer.BadParameter("give the address of a name server, host:port", param_hint="--name-server")

    def settings(self, environment: Mapping[str, str] | None = None) -> ClientSettings:
        """What the client is told. Raises OptionError, UsageError, TlsError."""
        self.check_given()
        if not self.tls and any(getattr(self, name) for name in _TLS):
            raise UsageError("options that begin with --tls- need --tls")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise UsageError("give --tls-cert-file and --tls-key-file together")
        timeout_ms = parse_request_timeout(self.request_timeout, "--request-timeout")
        options = cluster_options(self, timeout_ms, environment)
        return replace(options.client_settings(), connect_timeout_ms=timeout_ms)

    def _refuse_without_name_server(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) != each.default:
                raise UsageError(f"--{each.name.replace('_', '-')} belongs to --name-server, and stores are named")


NO_CLUSTER = Connection()
"""What a command line says that names no cluster."""


def takes_connection(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `Connection` in place of its parameter `connection`."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "connection"
    ]
    option_hints = get_type_hints(Connection, include_extras=True)
    options = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=option_hints[each.name]
        )
        for each in fields(Connection)
    ]

    @wraps(command)
    def called(**given: Any) -> None:
        connection = Connection(**{each.name: given.pop(each.name) for each in options})
        command(connection=connection, **given)

    parameters = [*own, *options]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called
