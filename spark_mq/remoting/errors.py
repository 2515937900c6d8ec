"""Errors between two peers, as one tree.

    RemotingError
      FrameError               bytes that are no frame; the connection cannot be used any more
      FrameIllegalError        a command that no frame can carry
      ConnectionClosedError    nothing can be sent any more
      HeaderError              extFields that are not those of a request or an answer
      BodyError                a body that is not what its command says

Each carries its values, and names the place and the rule. Java logs such errors and closes the channel.
"""

from __future__ import annotations

from storage.errors import ErrorWithValues


class RemotingError(ErrorWithValues):
    """Base of all errors of the protocol."""

    @property
    def shown(self) -> str:
        """The value `found`, not longer than a line."""
        found = vars(self).get("found")
        if found is None:
            return "missing"
        text = repr(found) if isinstance(found, str | bytes) else str(found)
        return text if len(text) <= 80 else f"{text[:80]}…"


class FrameError(RemotingError):
    """Bytes that are no frame. `position` is where the frame begins in what the peer has sent since it connected."""

    template = "bad frame at byte {position} of the connection: {field} is {shown}: {rule}"
    position: int
    field: str
    found: object
    rule: str
    hint: str | None = None


class FrameIllegalError(RemotingError):
    """A command that is not sent, because no peer could read its frame."""

    template = "the command of code {code} cannot be sent: {field} is {shown}: {rule}"
    code: int
    field: str
    found: object
    rule: str


class ConnectionClosedError(RemotingError):
    """The connection was closed on this side, or the peer has closed it."""

    template = "the connection is closed: {reason}"
    reason: str


class HeaderError(RemotingError):
    """`field` is the name on the wire; `found` is None where it is missing."""

    template = "bad header {header}: field {field} is {shown}: {rule}"
    header: str
    field: str
    found: str | None
    rule: str


class BodyError(RemotingError):
    """`place` is the way to the value within the body, as `brokerDatas[0].brokerAddrs`; empty for the whole."""

    template = "bad body {body}[ at {place}]: found {shown}: {rule}"
    body: str
    place: str
    found: object
    rule: str
