"""How headers and bodies are declared: frozen dataclasses whose fields know their names on the wire.

Names on the wire are the Python names in camelCase unless `wire` says otherwise. As fastjson, a reader takes a name for the one that
is spelt like it but for capitals, `_` and `-`, where that one is not there itself: `ClientId` and `client_id` for `clientID`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, field
from typing import Annotated, Any, dataclass_transform

Int = Annotated[int, 32]
"""A Java int."""
Long = Annotated[int, 64]
"""A Java long."""


def wire(
    name: str | None = None,
    *,
    short: str | None = None,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | Any = MISSING,
    is_secret: bool = False,
) -> Any:
    """A field of another name on the wire; `short` is the one in send requests of the V2 form. Without a default it is required.

    A secret one is left out where the value is shown.
    """
    metadata = {"wire": name, "short": short}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata, repr=not is_secret)
    return field(default=default, metadata=metadata, repr=not is_secret)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(wire, field))
class WireType(type):
    """Makes each class a frozen dataclass with keyword arguments."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        """The class as a dataclass."""
        made = super().__new__(cls, name, bases, namespace)
        return dataclass(frozen=True, kw_only=True)(made)


class LikeNames:
    """The names of an object's fields, for objects from clients that spell them in their own way.

    Java: JavaBeanDeserializer.smartMatch.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._by_letters = {_letters(name): name for name in self._names}

    def spelt(self, found: dict[str, Any]) -> dict[str, Any]:
        """The object with its fields under their names; the same one where nothing is spelt differently."""
        if found.keys() <= self._names:
            return found
        like = {self._by_letters.get(_letters(name), name): value for name, value in found.items()}
        return like | {name: value for name, value in found.items() if name in self._names}


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def wire_name(found: Field[Any]) -> str:
    """The name of a field on the wire."""
    first, *rest = found.name.split("_")
    return found.metadata.get("wire") or first + "".join(part.capitalize() for part in rest)


def is_required(found: Field[Any]) -> bool:
    """Whether a field has no default."""
    return found.default is MISSING and found.default_factory is MISSING


def fits(value: int, bits: int) -> bool:
    """Whether a signed number of that many bits holds the value."""
    return -(1 << bits - 1) <= value < 1 << bits - 1
