"""Users, and their file `config/users.json`. Java: User, LocalAuthenticationMetadataProvider (which keeps them in RocksDB).

    {"users":[{"username":"ann","password":"…","userType":"Normal","userStatus":"enable"}]}

The password is the key that signs requests, so the file holds it in plain text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from spark_mq.remoting import BodyError, RemotingCommand, WireBody, read_body, write_body
from spark_mq.remoting.administration import UserInfo
from spark_mq.remoting.command import ACCESS_KEY, is_signed_by
from storage.errors import StateFileError
from storage.rules.response_codes import RequestRefusedError, ResponseCode

_E = TypeVar("_E", bound=Enum)
FILE_NAME = "users.json"
_SUBJECT = "User:"
_SHOWN = 255
"""So much of a name is repeated in a remark."""


def by_name(kind: type[_E], name: str | None) -> _E | None:
    """The member whose value is the name, in any case; None if there is none. Java: getByName."""
    wanted = (name or "").lower()
    return next((member for member in kind if member.value.lower() == wanted), None)


class UserType(Enum):
    """Whether a user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    """Whether he is let in."""

    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    """A user's name and key, for signatures. `repr` does not show the password."""

    name: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        """Whether he may do everything."""
        return self.type is UserType.SUPER

    @property
    def subject(self) -> str:
        """As ACLs name him."""
        return subject_of(self.name)


def subject_of(name: str) -> str:
    """The subject of a user of that name."""
    return _SUBJECT + name


def user_name(subject: str | None) -> str | None:
    """The user's name in a subject; None if it names no user. Java: Subject.of."""
    kind, _, name = (subject or "").partition(":")
    return name if name and f"{kind}:".lower() == _SUBJECT.lower() else None


class _UserList(WireBody):
    users: tuple[UserInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class UserTable:
    """All users by name. Every change gives a new table."""

    users: Mapping[str, User] = field(default_factory=dict, hash=False)

    @classmethod
    def load(cls, text: str, file: str | None = None) -> UserTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none."""
        raw = text.encode()
        try:
            infos = read_body(_UserList, raw, limit_bytes=len(raw)).users
        except BodyError as error:
            raise StateFileError(file, 0, 0, str(error)) from None
        users = {}
        for info in infos:
            kind, status = by_name(UserType, info.user_type), by_name(UserStatus, info.user_status)
            if not info.username or not info.password or kind is None or status is None:
                raise StateFileError(
                    file, 0, 0, f"user {info.username!r}: its password, userType or userStatus is none"
                )
            users[info.username] = User(info.username, info.password, kind, status)
        return cls(users)

    def to_text(self) -> str:
        """The text for the file."""
        infos = (user_info(user, password=user.password) for user in self.users.values())
        return write_body(_UserList(users=tuple(infos))).decode()

    def with_user(self, user: User) -> UserTable:
        """The table with that user, new or in place of the one of his name."""
        return UserTable(dict(sorted({**self.users, user.name: user}.items())))

    def without_user(self, name: str) -> UserTable:
        """The table without him; itself if he is not there."""
        if name not in self.users:
            return self
        return UserTable({known: user for known, user in self.users.items() if known != name})


def user_info(user: User, *, password: str | None = None) -> UserInfo:
    """The user as requests and the file have him."""
    return UserInfo(username=user.name, password=password, user_type=user.type.value, user_status=user.status.value)


def refused(remark: str) -> RequestRefusedError:
    """A refusal by access control: code 16. Java: AuthenticationException, AuthorizationException."""
    return RequestRefusedError(ResponseCode.NO_PERMISSION, remark)


def authenticate(users: UserTable, command: RemotingCommand) -> User:
    """The enabled user who has signed a request. Raises RequestRefusedError with Java's remark where there is none.

    Java: DefaultAuthenticationContextBuilder, DefaultAuthenticationHandler.
    """
    name = (command.ext_fields or {}).get(ACCESS_KEY)
    if not name:
        raise refused("username cannot be null.")
    user = users.users.get(name)
    if user is None:
        raise refused(f"User:{name[:_SHOWN]} is not found.")
    if user.status is UserStatus.DISABLE:
        raise refused(f"User:{name[:_SHOWN]} is disabled.")
    if not is_signed_by(command, user.password):
        raise refused("check signature failed.")
    return user


# Which requests access control asks, and who is a user from the first start on. Java: AuthConfig.


@dataclass(frozen=True, slots=True)
class AccessRules:
    """By default no request needs a signature."""

    authenticates: bool = False
    """Requests must be signed by a user."""
    authorizes: bool = False
    """He must be allowed what he asks for."""
    unsigned_codes: frozenset[int] = frozenset()
    """Requests that need no signature; an unsigned one has no user."""
    free_codes: frozenset[int] = frozenset()
    """Requests that need no permission."""
    first_users: tuple[User, ...] = ()
    """Made at the start where there is none of their name."""
    plain_home: str | None = None
    """Whose files have the accounts of ACL 1.0; None = it is off."""


def name_and_secret(text: str | None, name_key: str, secret_key: str) -> tuple[str, str] | None:
    """The user in a setting such as `{"username":"…","password":"…"}`; None if unset; ValueError with the rule for another text."""
    if not text:
        return None
    try:
        found = json.loads(text)
        name, secret = found[name_key], found[secret_key]
    except (ValueError, KeyError, TypeError):
        name = secret = None
    if not isinstance(name, str) or not isinstance(secret, str) or not name or not secret:
        raise ValueError(f'it must be {{"{name_key}":"…","{secret_key}":"…"}}')
    return name, secret


def codes_of(text: str) -> frozenset[int]:
    """Request codes between commas; ValueError with the rule for another text."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ValueError("it must be request codes between commas")
    return frozenset(map(int, words))
