"""One request or answer, as a value. Java: RemotingCommand."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from spark_mq.remoting.codes import LanguageCode, ProtocolVersion

Body: TypeAlias = bytes | memoryview
"""A read-only view, or bytes. Both compare and have a length; a view lives on what was received."""

_VALUE_BYTES = 256
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
CREDENTIALS = frozenset({"AccessKey", "Signature", "SecurityToken"})
"""extFields by which access control goes."""


class HeaderEncoding(IntEnum):
    """How a frame's header is written. Java: SerializeType."""

    JSON = 0
    ROCKETMQ = 1


class RemotingCommand(NamedTuple):
    """A command as it stands in a frame. Codes are plain numbers, so unknown ones pass through.

    `opaque` is the sender's number of the request; an answer repeats it. `ext_fields` keep the order in which they are written and were
    read; None (not there) and {} are told apart in JSON. In the ROCKETMQ encoding a value of no length stands for null: it is "" here,
    and typed headers read it as None.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    ext_fields: Mapping[str, str] | None = None
    body: Body = b""
    remark: str | None = None
    language: LanguageCode = LanguageCode.PYTHON
    version: int = ProtocolVersion.V5_3_3
    encoding: HeaderEncoding = HeaderEncoding.JSON

    def __repr__(self) -> str:
        """Without the body and without what access control goes by."""
        fields = self.ext_fields and {n: "…" if n in CREDENTIALS else text for n, text in self.ext_fields.items()}
        return (
            f"RemotingCommand(code={self.code}, opaque={self.opaque}, flag={self.flag}, ext_fields={fields}, remark={self.remark!r}, "
            f"language={self.language.name}, version={self.version}, encoding={self.encoding.name}, body of {len(self.body)} bytes)"
        )

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether it is a request that nobody answers, not even with an error."""
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def size_bytes(self) -> int:
        """What it holds in memory, about."""
        texts = [] if self.ext_fields is None else [*self.ext_fields, *self.ext_fields.values()]
        body = self.body
        kept = memoryview(body.obj).nbytes if isinstance(body, memoryview) else len(body)
        return _VALUE_BYTES + kept + len(self.remark or "") + sum(map(len, texts))


def make_request(
    code: int,
    ext_fields: Mapping[str, str] | None = None,
    body: Body = b"",
    *,
    is_oneway: bool = False,
    encoding: HeaderEncoding = HeaderEncoding.JSON,
) -> RemotingCommand:
    """A request of this package's language and version; the connection gives it its number."""
    return RemotingCommand(code, 0, ONEWAY_FLAG if is_oneway else 0, ext_fields, body, encoding=encoding)


def make_response(
    request: RemotingCommand,
    code: int,
    remark: str | None = None,
    ext_fields: Mapping[str, str] | None = None,
    body: Body = b"",
) -> RemotingCommand:
    """The answer to a request, in its encoding. Departure: a Java peer answers in the encoding that itself is set to."""
    return RemotingCommand(code, request.opaque, RESPONSE_FLAG, ext_fields, body, remark, encoding=request.encoding)
