"""Which requests access control asks, and who is a user from the first start on. Java: AuthConfig."""

from __future__ import annotations

import json
from dataclasses import dataclass

from spark_mq.access.users import User


@dataclass(frozen=True, slots=True)
class AccessRules:
    """By default it asks nobody anything."""

    authenticates: bool = False
    """Requests must be signed by a user."""
    authorizes: bool = False
    """He must be allowed what he asks for."""
    unsigned_codes: frozenset[int] = frozenset()
    """Requests that need no signature; without one nobody has asked them."""
    free_codes: frozenset[int] = frozenset()
    """Requests that need no permission."""
    first_users: tuple[User, ...] = ()
    """Made at the start where there is none of their name."""


def name_and_secret(text: str | None, name_key: str, secret_key: str) -> tuple[str, str] | None:
    """What a setting such as `{"username":"…","password":"…"}` says, None where it is not set; ValueError with the rule for another."""
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
