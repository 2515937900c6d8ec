"""The root of the tree of errors, and how every error of this project tells what happened."""

from __future__ import annotations

from typing import ClassVar


class DescribedError(Exception):
    """An error that carries values, a text made of them, and advice.

    A subclass hands its values to `super().__init__` in the order of its own parameters (pickle builds a copy
    from them) and writes its text in `describe`.
    """

    retriable: ClassVar[bool] = False

    hint: str | None = None
    """What an operator can do about it; a class's advice, or an instance's own."""

    def describe(self) -> str:
        """What happened and where, in one sentence: the text's first line. The hint is the second."""
        return ": ".join(str(value) for value in self.args)

    def __str__(self) -> str:
        return f"{self.describe()}\n{self.hint}" if self.hint else self.describe()


class StorageError(DescribedError):
    """Base of all errors of this package."""


def cause_and_cure(cause: str, cure: str | None) -> str:
    """One line: what happened, and behind it what to do."""
    if not cure:
        return cause
    if cause.endswith("?"):
        return f"{cause} {cure}"
    return f"{cause}. {cure}" if cure[0].isupper() else f"{cause}; {cure}"


def place_text(file: str | None, position: int) -> str:
    """Where in a file something stands."""
    return f"at byte {position}" if file is None else f"in {file} at byte {position}"
