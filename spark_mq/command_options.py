"""Options that commands and jobs share, each declared once; among them how a running cluster is reached.

No option takes a secret: other users of a machine see the command lines of its processes. A secret comes from a file or from the
environment.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from spark_mq.client.settings import MQ_CLIENT_API_TIMEOUT_MS, ClientSettings
from spark_mq.conditions import OptionError
from spark_mq.options import (
    ClusterOptions,
    parse_duration_ms,
    parse_name_servers,
    parse_namespace,
    parse_request_timeout,
)

SECRET_KEY = "SPARK_MQ_SECRET_KEY"
SECURITY_TOKEN = "SPARK_MQ_SECURITY_TOKEN"
TLS_KEY_PASSWORD = "SPARK_MQ_TLS_KEY_PASSWORD"
"""Variables of the environment that hold secrets."""

LOCK_TIMEOUT_MS = 10_000


def duration_ms(value: object) -> int:
    """A time of the command line, such as 30s, in ms. Raises BadParameter."""
    try:
        return parse_duration_ms(str(value), "TIME")
    except OptionError as error:
        raise typer.BadParameter(error.rule) from None


Conf = Annotated[
    str | None,
    typer.Option(
        "--conf", metavar="FILE", help="The broker's broker.conf; without it the one beside the store, if any."
    ),
]
LockTimeout = Annotated[
    int,
    typer.Option(
        "--lock-timeout",
        metavar="TIME",
        parser=duration_ms,
        show_default="10s",
        help="How long to wait while a sink or a job writes; a broker is not waited for.",
    ),
]

_PANEL = "A running cluster"
_TLS = ("tls_no_verify", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name")


def _of_cluster(*names: str, metavar: str | None = None, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=_PANEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The options of the command line for a running cluster. Without `name_server` the command works on stores."""

    name_server: Annotated[
        str | None, _of_cluster("--name-server", "-n", metavar="HOST:PORT[,…]", help="Its name servers.")
    ] = None
    namespace: Annotated[
        str | None,
        _of_cluster("--namespace", metavar="NAME", help="Stands before topics and groups there: NAME%topic."),
    ] = None
    access_key: Annotated[
        str | None,
        _of_cluster(
            "--access-key",
            metavar="USER",
            help=f"The user who signs requests (ACL). The secret is in --secret-key-file or in {SECRET_KEY}.",
        ),
    ] = None
    secret_key_file: Annotated[
        str | None, _of_cluster("--secret-key-file", metavar="FILE", help="Its only line is that user's secret.")
    ] = None
    tls: Annotated[bool, _of_cluster("--tls", help="Speak TLS.")] = False
    tls_no_verify: Annotated[bool, _of_cluster("--tls-no-verify", help="Accept any certificate.")] = False
    tls_ca_file: Annotated[
        str | None, _of_cluster("--tls-ca-file", metavar="PEM", help="The authorities to trust, not the system's.")
    ] = None
    tls_cert_file: Annotated[
        str | None, _of_cluster("--tls-cert-file", metavar="PEM", help="The client's certificate.")
    ] = None
    tls_key_file: Annotated[
        str | None,
        _of_cluster("--tls-key-file", metavar="PEM", help=f"Its key; a password in {TLS_KEY_PASSWORD}."),
    ] = None
    tls_server_name: Annotated[
        str | None, _of_cluster("--tls-server-name", metavar="NAME", help="The name in the servers' certificates.")
    ] = None
    request_timeout: Annotated[
        str, _of_cluster("--request-timeout", metavar="TIME", help="How long an answer may take.")
    ] = f"{MQ_CLIENT_API_TIMEOUT_MS // 1000}s"

    @property
    def is_given(self) -> bool:
        """Whether the command line names a running cluster."""
        return self.name_server is not None

    def is_chosen(self, path: str | None) -> bool:
        """Whether the command goes to the cluster, not to the stores at PATH. Raises OptionError unless exactly one is named."""
        if self.is_given == (path is not None):
            rule = "give PATH or --name-server, not both" if path else "give PATH, or the address of a name server"
            raise OptionError("--name-server", rule)
        if not self.is_given:
            for each in fields(self):
                if getattr(self, each.name) != each.default:
                    name = f"--{each.name.replace('_', '-')}"
                    raise OptionError(name, "belongs to --name-server, and a store is named")
        return self.is_given

    def cluster(self, environment: Mapping[str, str] | None = None) -> ClusterOptions:
        """The source's options, with secrets from a file or the environment. Raises OptionError, OSError."""
        if self.name_server is None:
            raise OptionError("--name-server", "give the address of a name server, host:port")
        if not self.tls and any(getattr(self, name) for name in _TLS):
            raise OptionError("--tls", "options that begin with --tls- need --tls")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise OptionError("--tls-cert-file", "give --tls-cert-file and --tls-key-file together")
        variables = os.environ if environment is None else environment
        timeout_ms = parse_request_timeout(self.request_timeout, "--request-timeout")
        secret = self._secret_key(variables)
        return ClusterOptions(
            name_server=parse_name_servers(self.name_server, "--name-server"),
            namespace=None if self.namespace is None else parse_namespace(self.namespace, "--namespace"),
            access_key=self.access_key,
            secret_key=secret,
            security_token=variables.get(SECURITY_TOKEN) or None if secret else None,
            tls=self.tls,
            tls_verify=not self.tls_no_verify,
            tls_ca_file=self.tls_ca_file,
            tls_cert_file=self.tls_cert_file,
            tls_key_file=self.tls_key_file,
            tls_key_password=variables.get(TLS_KEY_PASSWORD) or None if self.tls else None,
            tls_server_name=self.tls_server_name,
            request_timeout=timeout_ms,
        )

    def settings(self, environment: Mapping[str, str] | None = None) -> ClientSettings:
        """The client's settings. Raises OptionError, OSError, TlsError."""
        options = self.cluster(environment)
        return replace(options.client_settings(), connect_timeout_ms=options.request_timeout)

    def _secret_key(self, variables: Mapping[str, str]) -> str | None:
        """The user's secret; None without a user. Raises OptionError, OSError."""
        if self.access_key is None:
            if self.secret_key_file is not None:
                raise OptionError("--secret-key-file", "needs --access-key, the user whose secret it is")
            return None
        if self.secret_key_file is not None:
            secret = Path(self.secret_key_file).read_text("utf-8").strip()
            if not secret:
                raise OptionError("--secret-key-file", f"{self.secret_key_file} is empty")
            return secret
        if secret := variables.get(SECRET_KEY, ""):
            return secret
        rule = f"needs its secret: in --secret-key-file or in the variable {SECRET_KEY}; other users of this machine see command lines"
        raise OptionError("--access-key", rule)


NO_CLUSTER = Connection()
"""A command line that names no cluster."""


def with_options(function: Callable[..., Any], call: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The function as Typer takes it: a parameter whose type is a dataclass becomes an option for each of its fields.

    `call` is called in the function's place, with the function's own parameters.
    """
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    groups = {name: hints[name] for name in own if isinstance(hints[name], type) and is_dataclass(hints[name])}
    parameters = []
    for name, parameter in own.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        of_group = get_type_hints(groups[name], include_extras=True)
        for each in fields(groups[name]):
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            parameters.append(
                inspect.Parameter(
                    each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=of_group[each.name]
                )
            )

    @wraps(function)
    def called(**given: Any) -> Any:
        values = {
            name: group(**{each.name: given.pop(each.name) for each in fields(group)}) for name, group in groups.items()
        }
        return (call or function)(**given, **values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called
