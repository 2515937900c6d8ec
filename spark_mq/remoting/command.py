"""One request or answer, as a value; its header in both encodings; the signature of a request. Java: RemotingCommand."""

from __future__ import annotations

import base64
import hmac
import json
import re
import struct
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

from spark_mq.remoting.codes import LanguageCode, ProtocolVersion
from spark_mq.remoting.errors import FrameError, FrameIllegalError
from storage.errors import StateFileError
from storage.format.fastjson import parse_sent, quoted
from storage.format.typed_json import LikeNames

Body: TypeAlias = bytes | memoryview
"""A read-only view, or bytes. Both compare and have a length; a view lives on what was received."""

_VALUE_BYTES = 256
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
CREDENTIALS = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})
"""extFields by which access control goes."""


class HeaderEncoding(IntEnum):
    """The encoding of a frame's header. Java: SerializeType."""

    JSON = 0
    ROCKETMQ = 1


class RemotingCommand(NamedTuple):
    """A command as it stands in a frame. Codes are plain numbers, so unknown ones pass through.

    `opaque` is the sender's number of the request; an answer repeats it. `ext_fields` keep the order in which they are written and were
    read; in JSON, None (not there) and {} differ. In the ROCKETMQ encoding a value of no length stands for null: it is "" here,
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
        """Whether it is a request without an answer, even after an error."""
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def size_bytes(self) -> int:
        """Approximate memory, in bytes."""
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


# A frame's header as JSON: keys in alphabetical order, no blanks, extFields a flat object of strings.
#
#     {"code":0,"extFields":{…},"flag":1,"language":"JAVA","opaque":7,"remark":"…","serializeTypeCurrentRPC":"JSON","version":479}
#
# Java: RemotingSerializable, fastjson 1.2.83. As there, numbers and booleans among the extFields read as their text, nulls as absent,
# bytes that are no UTF-8 as U+FFFD, numbers in quotes or with a fraction of zeros as numbers, a language by its name or its number;
# what is not there is 0, as some serializers leave zeros out. Names may be spelt as `LikeNames` says, and the whole in the dialect
# of `storage/format/fastjson.py`. Departures: a request without opaque has the number 0, and its answer, too, where Java makes a new
# number; an answer without opaque is refused, because it matches no request; a header in the dialect has 64 KiB at most.


_LANGUAGE_NAMES = {code: code.name for code in LanguageCode}
_LANGUAGES = {code.name: code for code in LanguageCode}
_BY_NUMBER = {code.value: code for code in LanguageCode}
_QUOTED_NUMBER = re.compile(r"(-?[0-9]{1,10})(?:\.0+)?", re.ASCII)
_DIALECT_BYTES_MOST = 65_536
"""Of a header that is no plain JSON: what is read token by token takes its time, and all connections wait for it."""
_NAMES = LikeNames(("code", "extFields", "flag", "language", "opaque", "remark", "serializeTypeCurrentRPC", "version"))
_name = lru_cache(1_024)(quoted)


def encode_json_header(command: RemotingCommand) -> bytes:
    """The header without what stands before it."""
    code, opaque, flag, fields, _, remark, language, version, _ = command
    fields_text = remark_text = ""
    if fields is not None:
        parts = [
            f'{_name(name)}:"{value}"' if value.isalnum() and value.isascii() else f"{_name(name)}:{quoted(value)}"
            for name, value in fields.items()
        ]
        fields_text = '"extFields":{' + ",".join(parts) + "},"
    if remark is not None:
        remark_text = f'"remark":{quoted(remark)},'
    text = (
        f'{{"code":{code:d},{fields_text}"flag":{flag:d},"language":"{_LANGUAGE_NAMES[language]}","opaque":{opaque:d},'
        f'{remark_text}"serializeTypeCurrentRPC":"JSON","version":{version:d}}}'
    )
    return text.encode("utf-8", "replace")


def decode_json_header(header: bytes, body: Body, position: int) -> RemotingCommand:
    """The command of a header and a body; FrameError, with the frame's position, where it is none."""
    text = header.decode("utf-8", "replace")
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        if len(header) > _DIALECT_BYTES_MOST:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise FrameError(position, "header", header[:16], f"it is no JSON: {reason[:120]}") from None
        found = _of_dialect(text, header, position)
    if not isinstance(found, dict):
        raise FrameError(position, "header", header[:16], "it is no JSON object")
    found = _NAMES.spelt(found)
    remark = found.get("remark")
    if remark is not None and type(remark) is not str:
        remark = _text("remark", remark, position)
    code = _number(found, "code", position)
    opaque = _number(found, "opaque", position)
    flag = _number(found, "flag", position)
    if "opaque" not in found and (code == 0 or flag & RESPONSE_FLAG):
        raise FrameError(position, "opaque", None, "what is no request must have a number")
    version = _number(found, "version", position)
    fields = _fields(found.get("extFields"), position)
    language = _language(found.get("language", "JAVA"))
    return RemotingCommand(code, opaque, flag, fields, body, remark, language, version, HeaderEncoding.JSON)


def _of_dialect(text: str, header: bytes, position: int) -> object:
    try:
        return parse_sent(text)
    except StateFileError as error:
        raise FrameError(position, "header", header[:16], f"it is no JSON: {error.rule[:120]}") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=_refuse)


def _number(header: dict[str, Any], name: str, position: int) -> int:
    value = header.get(name, 0)
    if type(value) is not int:
        value = _as_number(value)
    if value is None or not -0x8000_0000 <= value <= 0x7FFF_FFFF:
        raise FrameError(position, name, header[name], "it must be a number of 32 bits")
    return value


def _as_number(value: object) -> int | None:
    if value is None:
        return 0
    number = _QUOTED_NUMBER.fullmatch(str(value)) if isinstance(value, str | float) else None
    return int(number.group(1)) if number else None


def _language(name: object) -> LanguageCode:
    if isinstance(name, str):
        return _LANGUAGES.get(name, LanguageCode.OTHER)
    return _BY_NUMBER.get(name, LanguageCode.OTHER) if type(name) is int else LanguageCode.OTHER


def _fields(fields: object, position: int) -> dict[str, str] | None:
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise FrameError(position, "extFields", fields, "it must be an object")
    for value in fields.values():
        if type(value) is not str:
            return {
                name: _text(f"extFields.{name}", value, position) for name, value in fields.items() if value is not None
            }
    return fields


def _text(name: str, value: object, position: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise FrameError(position, name, value, "it must be a string")


# A frame's header in the ROCKETMQ encoding.
#
#     | code:2 | language:1 | version:2 | opaque:4 | flag:4 | remark size:4 | remark | fields size:4 | (size:2 name size:4 value)* |
#
# Strings are UTF-8; one of no length stands for null. Java: RocketMQSerializable. A code of more than 16 bits is refused (departure:
# Java cuts it, so that the peer sees another request), and so are sizes that do not fit the header, and bytes behind the fields.


_HEAD = struct.Struct(">hBhiii")
_SIZE = struct.Struct(">i")
_NAME_SIZE = struct.Struct(">h")
_NAME_BYTES_MOST = 0x7FFF


def encode_binary_header(command: RemotingCommand) -> bytes:
    """The header without what stands before it; FrameIllegalError where a number does not fit its place."""
    code, opaque, flag, fields, _, remark, language, version, _ = command
    pieces: list[bytes] = []
    for name, value in fields.items() if fields else ():
        name_bytes = name.encode("utf-8", "replace")
        value_bytes = value.encode("utf-8", "replace")
        if len(name_bytes) > _NAME_BYTES_MOST:
            raise FrameIllegalError(code, "size of a field's name", len(name_bytes), "a name has at most 32,767 bytes")
        pieces += (
            _NAME_SIZE.pack(len(name_bytes)),
            name_bytes,
            _SIZE.pack(len(value_bytes)),
            value_bytes,
        )
    content = b"".join(pieces)
    remark_bytes = remark.encode("utf-8", "replace") if remark else b""
    try:
        head = _HEAD.pack(code, language, version, opaque, flag, len(remark_bytes))
    except struct.error:
        numbers = f"code {code}, version {version}, opaque {opaque}, flag {flag}"
        rule = "in the ROCKETMQ encoding code and version have 16 bits, opaque and flag 32; use JSON"
        raise FrameIllegalError(code, "a number", numbers, rule) from None
    return b"".join((head, remark_bytes, _SIZE.pack(len(content)), content))


def decode_binary_header(header: bytes, body: Body, position: int) -> RemotingCommand:
    """The command of a header and a body; FrameError, with the frame's position, where it is none."""
    try:
        code, language, version, opaque, flag, remark_size = _HEAD.unpack_from(header)
        fields_at = _end(header, _HEAD.size, remark_size, "remark size", position)
        (fields_size,) = _SIZE.unpack_from(header, fields_at)
    except struct.error:
        raise FrameError(position, "header size", len(header), "the header ends before its fields") from None
    start = fields_at + _SIZE.size
    if _end(header, start, fields_size, "size of the fields", position) != len(header):
        raise FrameError(
            position, "size of the fields", fields_size, f"the header has {len(header) - start} bytes for it"
        )
    remark = header[_HEAD.size : fields_at].decode("utf-8", "replace") if remark_size else None
    fields = _decode_fields(header, start, position) if fields_size else None
    language = _BY_NUMBER.get(language, LanguageCode.OTHER)
    return RemotingCommand(code, opaque, flag, fields, body, remark, language, version, HeaderEncoding.ROCKETMQ)


def _end(header: bytes, start: int, size: int, field: str, position: int) -> int:
    """Where something of that size ends, which must be within the header."""
    if not 0 <= size <= len(header) - start:
        raise FrameError(position, field, size, f"the header has {len(header) - start} bytes for it")
    return start + size


def _decode_fields(header: bytes, start: int, position: int) -> dict[str, str]:
    fields = {}
    try:
        while start < len(header):
            (size,) = _NAME_SIZE.unpack_from(header, start)
            name_end = _end(header, start + 2, size, "size of a field's name", position)
            (value_size,) = _SIZE.unpack_from(header, name_end)
            end = _end(header, name_end + 4, value_size, "size of a field's value", position)
            name = header[start + 2 : name_end].decode("utf-8", "replace")
            fields[name] = header[name_end + 4 : end].decode("utf-8", "replace")
            start = end
    except struct.error:
        raise FrameError(position, "fields", header[start : start + 16], "they end within a field") from None
    return fields


# The signature of a request proves that its sender knows a secret: clients make it, servers compare it.
#
# HMAC-SHA1 over the values of all extFields but the signature, in the order of their names, then the body, as base64.
# Java: AclUtils, AclSigner (ACL 1.0 and 2.0).


UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Says that the key of a query is a unique one; Java: MixAll.UNIQUE_MSG_QUERY_FLAG."""


def signature(fields: Mapping[str, str], body: Body, secret_key: str) -> str:
    """That of these fields and this body."""
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode("utf-8", "replace")
    digest = hmac.digest(secret_key.encode("utf-8", "replace"), content + body if body else content, "sha1")
    return base64.b64encode(digest).decode("ascii")


def request_signature(command: RemotingCommand, secret_key: str) -> str:
    """That of a request, which has everything in its fields but the signature.

    Servers of 4.9 leave `_UNIQUE_KEY_QUERY` out of what is signed, later ones only for such a request.
    """
    fields = command.ext_fields or {}
    if command.version <= ProtocolVersion.V4_9_3:
        fields = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    return signature(fields, command.body, secret_key)


def is_signed_by(command: RemotingCommand, secret_key: str) -> bool:
    """Whether the request has the signature that the secret makes; how long it takes says nothing of it.

    Departure: in the ROCKETMQ encoding a field without a value counts as "", which is what clients sign. Java signs "null".
    """
    given = (command.ext_fields or {}).get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(request_signature(command, secret_key).encode(), given)
