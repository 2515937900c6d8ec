"""What the texts of a message may hold: tags, keys, properties and their names. Each rule once, for one text and for columns of them.

    text_fault, property_fault       one text, as a producer checks it
    UNWANTED, NOT_UTF8, …            the same rules' words, for `storage/rows/`, which looks at columns

Java checks names only (Message.putUserProperty); what else stands here would reach no reader as it was meant.
"""

from __future__ import annotations

import re
from functools import lru_cache

from storage.format.property_encoding import is_reserved_name
from storage.format.texts import CONTROL_CHARACTERS, SEPARATORS

WORD_SEPARATORS = CONTROL_CHARACTERS + b" "
UNWANTED = {
    SEPARATORS: "it holds 0x01 or 0x02, which separate properties",
    CONTROL_CHARACTERS: "it holds a control character",
    WORD_SEPARATORS: "it holds a control character or a blank",
}
"""By the ASCII characters that a text must not hold: what is told of one that does."""
NOT_UTF8 = "it is not UTF-8"
BLANK_IN_KEY = "a key of the list holds a blank: a reader would take it for two keys"
EMPTY = "it is empty: no reader would see it"

_PATTERNS = {unwanted: re.compile(f"[{re.escape(unwanted.decode())}]") for unwanted in UNWANTED}


@lru_cache(4_096)
def text_fault(text: str, unwanted: bytes) -> str | None:
    """Why a text may not become the value of a property; None where it may."""
    if _PATTERNS[unwanted].search(text):
        return UNWANTED[unwanted]
    return None if _is_utf8(text) else NOT_UTF8


def property_fault(name: object, value: object, *, allowed: str = "") -> str | None:
    """Why a program may not give its message that property; None where it may. `allowed` is a reserved name that it may use here."""
    for what, text in (("name", name), ("value", value)):
        if not isinstance(text, str):
            return f"property {name!r}: its {what} is {type(text).__name__}, not text"
        if not text:
            return of_property(str(name), what, EMPTY)
        fault = text_fault(text, SEPARATORS)
        if fault is not None:
            return of_property(str(name), what, fault)
    return reserved(str(name)) if is_reserved_name(str(name)) and name != allowed else None


def of_property(name: str, what: str, rule: str) -> str:
    """The words of a rule that the name or the value of a property breaks."""
    return f"property {name!r}: {rule.replace('it ', f'its {what} ', 1)}"


def reserved(name: str) -> str:
    """What is told of a name that brokers and clients act on."""
    return f"{name} is reserved for brokers and clients; take another name"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
