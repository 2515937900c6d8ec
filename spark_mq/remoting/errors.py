"""What can be wrong between two peers, as one tree.

    RemotingError
      FrameError(position, field, found, rule)    bytes that are no frame; the connection is of no use any more
      FrameIllegalError(field, found, rule)       a command that no frame can carry
      ConnectionClosedError(reason)               nothing can be sent any more
      HeaderError(header, field, found, rule)     extFields that are not those of a request or an answer
      BodyError(body, place, found, rule)         a body that is not what its command says

Each carries its values, says where and by which rule, and survives pickling. Java logs such things and closes the channel.
"""

from __future__ import annotations


class RemotingError(Exception):
    """Base of all errors of the protocol. A subclass hands its values to `super().__init__` in the order of its own parameters."""

    hint: str | None = None
    """What can be done about it."""

    def describe(self) -> str:
        """What happened and where, in one sentence: the text's first line. The hint is the second."""
        return ": ".join(str(value) for value in self.args)

    def __str__(self) -> str:
        return f"{self.describe()}\n{self.hint}" if self.hint else self.describe()


class FrameError(RemotingError):
    """Bytes that are no frame. `position` is where the frame begins in what the peer has sent since it connected."""

    def __init__(self, position: int, field: str, found: object, rule: str, hint: str | None = None) -> None:
        super().__init__(position, field, found, rule, hint)
        self.position = position
        self.field = field
        self.found = found
        self.rule = rule
        self.hint = hint

    def describe(self) -> str:
        return f"bad frame at byte {self.position} of the connection: {self.field} is {shown(self.found)}: {self.rule}"


class FrameIllegalError(RemotingError):
    """A command that is not sent, because no peer could read its frame."""

    def __init__(self, code: int, field: str, found: object, rule: str) -> None:
        super().__init__(code, field, found, rule)
        self.code = code
        self.field = field
        self.found = found
        self.rule = rule

    def describe(self) -> str:
        return f"the command of code {self.code} cannot be sent: {self.field} is {shown(self.found)}: {self.rule}"


class ConnectionClosedError(RemotingError):
    """The connection was closed on this side, or the peer has closed it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def describe(self) -> str:
        return f"the connection is closed: {self.reason}"


class HeaderError(RemotingError):
    """`field` is the name on the wire; `found` is None where it is missing."""

    def __init__(self, header: str, field: str, found: str | None, rule: str) -> None:
        super().__init__(header, field, found, rule)
        self.header = header
        self.field = field
        self.found = found
        self.rule = rule

    def describe(self) -> str:
        return f"bad header {self.header}: field {self.field} is {shown(self.found)}: {self.rule}"


class BodyError(RemotingError):
    """`place` is the way to the value within the body, as `brokerDatas[0].brokerAddrs`; empty for the whole."""

    def __init__(self, body: str, place: str, found: object, rule: str) -> None:
        super().__init__(body, place, found, rule)
        self.body = body
        self.place = place
        self.found = found
        self.rule = rule

    def describe(self) -> str:
        place = f" at {self.place}" if self.place else ""
        return f"bad body {self.body}{place}: found {shown(self.found)}: {self.rule}"


def shown(value: object) -> str:
    """A value as an error shows it: not longer than a line."""
    if value is None:
        return "missing"
    text = repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
