"""Options that name a cluster of running brokers and say how it is spoken to. Secrets are shown nowhere.

Java: ClientConfig, TlsSystemConfig, AclClientRPCHook's SessionCredentials.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from spark_mq.client.errors import ClientSettingError
from spark_mq.client.settings import MQ_CLIENT_API_TIMEOUT_MS, ClientSettings, Credentials, TlsSettings, parse_addresses
from spark_mq.conditions import OptionError
from spark_mq.option_table import Option
from spark_mq.source import option_values as values

_TLS_OPTIONS = ("tls_ca_file", "tls_cert_file", "tls_key_file", "tls_key_password", "tls_server_name")
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,255}")


def parse_name_servers(text: str, option: str) -> tuple[str, ...]:
    """`host:port`, several between `;` or `,`."""
    try:
        addresses = parse_addresses(option, text)
    except ClientSettingError as error:
        raise OptionError(option, f"{error.value}: {error.rule}") from None
    if not addresses:
        raise OptionError(option, "name at least one as host:port")
    return addresses


def parse_request_timeout(text: str, option: str) -> int:
    """How long an answer may take, in ms. Longer than 0."""
    timeout_ms = values.parse_duration_ms(text, option)
    if timeout_ms <= 0:
        raise OptionError(option, "must be longer than 0")
    return timeout_ms


def parse_secret(text: str, option: str) -> str:
    """Any text but an empty one; never repeated in an error."""
    if not text:
        raise OptionError(option, "is empty")
    return text


def parse_namespace(text: str, option: str) -> str:
    if not _NAMESPACE.fullmatch(text.strip()):
        raise OptionError(option, f"expected letters, digits, - and _, found {text!r}")
    return text.strip()


def parse_expression_type(text: str, option: str) -> Literal["TAG", "SQL92"]:
    match text.strip().upper():
        case "TAG":
            return "TAG"
        case "SQL92":
            return "SQL92"
    raise OptionError(option, f"expected TAG or SQL92, found {text!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How a running cluster is reached, by source and sink; `name_server` is empty where it is a store."""

    name_server: Annotated[
        tuple[str, ...],
        Option(parse_name_servers, "name servers of a running cluster, in place of path: `host:9876;host2:9876`"),
    ] = ()
    namespace: Annotated[
        str | None,
        Option(parse_namespace, "stands before the names of topics and of consumerGroup at the brokers: `ns%topic`"),
    ] = None
    access_key: Annotated[
        str | None, Option(values.parse_text, "the user who signs requests, where brokers check that (ACL)")
    ] = None
    secret_key: Annotated[str | None, Option(parse_secret, "the user's secret; shown nowhere")] = field(
        default=None, repr=False
    )
    security_token: Annotated[str | None, Option(parse_secret, "the token of a security service; shown nowhere")] = (
        field(default=None, repr=False)
    )
    tls: Annotated[bool, Option(values.parse_boolean, "speak TLS with name servers and brokers", shown="false")] = False
    tls_verify: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "compare certificate and host name; false takes any server for the right one, as Java's client does by default",
            shown="true",
        ),
    ] = True
    tls_ca_file: Annotated[
        str | None,
        Option(values.parse_path, "certificates (PEM) of the authorities to trust", shown="the system's"),
    ] = None
    tls_cert_file: Annotated[str | None, Option(values.parse_path, "the client's own certificate (PEM)")] = None
    tls_key_file: Annotated[str | None, Option(values.parse_path, "its key (PEM)")] = None
    tls_key_password: Annotated[str | None, Option(parse_secret, "the key's password; shown nowhere")] = field(
        default=None, repr=False
    )
    tls_server_name: Annotated[
        str | None,
        Option(values.parse_text, "the name that the servers' certificates have", shown="the address"),
    ] = None
    request_timeout: Annotated[
        int,
        Option(
            parse_request_timeout,
            "how long the answer to one request is waited for (Java: mqClientApiTimeout); questions about queues, topics and groups "
            "get twice as long. Raise it on a busy machine",
            shown=f"{MQ_CLIENT_API_TIMEOUT_MS // 1000}s",
        ),
    ] = MQ_CLIENT_API_TIMEOUT_MS

    @property
    def is_live(self) -> bool:
        """Whether it is a running cluster, and no store."""
        return bool(self.name_server)

    def check_access(self) -> None:
        """Raises OptionError for keys and options of TLS that do not belong together."""
        if (self.access_key is None) != (self.secret_key is None):
            raise OptionError("secretKey", "give accessKey and secretKey together")
        if self.security_token is not None and self.access_key is None:
            raise OptionError("securityToken", "needs accessKey and secretKey")
        if not self.tls and (not self.tls_verify or any(getattr(self, name) is not None for name in _TLS_OPTIONS)):
            raise OptionError("tls", "options that begin with tls need tls=true")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise OptionError("tlsKeyFile", "give tlsCertFile and tlsKeyFile together")

    def client_settings(self) -> ClientSettings:
        """What the client is told. Raises TlsError where a file of TLS cannot be read."""
        credentials = tls = None
        if self.access_key is not None and self.secret_key is not None:
            credentials = Credentials(self.access_key, self.secret_key, self.security_token)
        if self.tls:
            tls = TlsSettings(
                verify=self.tls_verify,
                check_hostname=self.tls_verify,
                ca_file=self.tls_ca_file,
                cert_file=self.tls_cert_file,
                key_file=self.tls_key_file,
                key_password=self.tls_key_password,
                server_hostname=self.tls_server_name,
            )
        return ClientSettings(
            self.name_server,
            namespace=self.namespace,
            credentials=credentials,
            tls=tls,
            request_timeout_ms=self.request_timeout,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions(ClusterOptions):
    """How messages of a running cluster are read."""

    sub_expression: Annotated[
        str | None,
        Option(values.parse_text, "what brokers filter by, in place of tags: `TagA || TagB`, or SQL92"),
    ] = None
    expression_type: Annotated[
        Literal["TAG", "SQL92"],
        Option(
            parse_expression_type,
            "the language of subExpression: TAG, or SQL92, which brokers must have switched on (enablePropertyFilter)",
            shown="TAG",
        ),
    ] = "TAG"
    pull_timeout: Annotated[
        int,
        Option(
            values.parse_duration_ms,
            "how long driver and tasks try to reach a broker before the query fails",
            shown="2m",
        ),
    ] = 120_000
    pull_from_slave: Annotated[
        bool,
        Option(values.parse_boolean, "go on at a slave where the master suggests that", shown="false"),
    ] = False

    @property
    def place_option(self) -> str:
        """The option that says where the data is, for texts."""
        return "nameServer" if self.is_live else "path"

    def check_cluster(self) -> None:
        """Raises OptionError for a combination that makes no sense."""
        if not self.is_live:
            for name in self._given_cluster_options():
                raise OptionError(name, "belongs to nameServer, and stores are read (path)")
        self.check_access()
        if self.expression_type != "TAG" and self.sub_expression is None:
            raise OptionError("expressionType", "needs subExpression")

    def _given_cluster_options(self) -> list[str]:
        defaults = PullOptions()
        fields = PullOptions.__dataclass_fields__
        given = [name for name in fields if getattr(self, name) != getattr(defaults, name)]
        return [first + "".join(map(str.capitalize, rest)) for first, *rest in (name.split("_") for name in given)]
