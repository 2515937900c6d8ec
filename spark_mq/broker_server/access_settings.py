"""What a broker.conf says of access control. Java: AuthConfig.

Providers and strategies are classes in Java (`authenticationMetadataProvider`, …): users and rights are always kept under the store's
`config`, and no decision is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from spark_mq.access.rules import AccessRules, codes_of, name_and_secret
from spark_mq.access.users import User, UserType
from spark_mq.client.settings import Credentials
from spark_mq.remoting_server.settings import require, setting
from storage.errors import ConfigurationError

_T = TypeVar("_T")
FIRST_USER, INNER_CLIENT = "initAuthenticationUser", "innerClientAuthenticationCredentials"


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Whether requests must be signed and allowed, and which need not."""

    authentication_enabled: bool = setting("authenticationEnabled", False, "boolean")
    authentication_whitelist: str = setting("authenticationWhitelist", "", "String")
    authorization_enabled: bool = setting("authorizationEnabled", False, "boolean")
    authorization_whitelist: str = setting("authorizationWhitelist", "", "String")
    init_authentication_user: str | None = setting(FIRST_USER, None, "String", is_secret=True)
    inner_client_credentials: str | None = setting(INNER_CLIENT, None, "String", is_secret=True)
    acl_enable: bool = setting("aclEnable", False, "boolean")
    """ACL 1.0, which 5.3.3 does not know any more."""

    def __post_init__(self) -> None:
        rule = "access control 1.0 is not there: use authenticationEnabled and authorizationEnabled"
        require(self, "acl_enable", rule, is_kept=not self.acl_enable)
        rule = "it needs authenticationEnabled: a name without a proof says nothing"
        require(
            self, "authorization_enabled", rule, is_kept=self.authentication_enabled or not self.authorization_enabled
        )
        _ = self.rules, self.credentials

    @property
    def rules(self) -> AccessRules:
        """What the broker goes by. Raises ConfigurationError."""
        first = _read(FIRST_USER, lambda: name_and_secret(self.init_authentication_user, "username", "password"))
        users = (first, self._inner_client)
        return AccessRules(
            self.authentication_enabled,
            self.authorization_enabled,
            _read("authenticationWhitelist", lambda: codes_of(self.authentication_whitelist)),
            _read("authorizationWhitelist", lambda: codes_of(self.authorization_whitelist)),
            tuple(User(*user, UserType.SUPER) for user in users if user is not None),
        )

    @property
    def credentials(self) -> Credentials | None:
        """What the broker signs its own requests with. Raises ConfigurationError."""
        inner = self._inner_client
        return None if inner is None else Credentials(*inner)

    @property
    def _inner_client(self) -> tuple[str, str] | None:
        return _read(INNER_CLIENT, lambda: name_and_secret(self.inner_client_credentials, "accessKey", "secretKey"))


def _read(name: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except ValueError as rule:
        raise ConfigurationError(None, None, name, str(rule)) from None
