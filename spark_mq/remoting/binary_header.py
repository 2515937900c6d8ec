"""A frame's header in the ROCKETMQ encoding.

    | code:2 | language:1 | version:2 | opaque:4 | flag:4 | remark size:4 | remark | fields size:4 | (size:2 name size:4 value)* |

Strings are UTF-8; one of no length stands for null. Java: RocketMQSerializable. A code of more than 16 bits is refused (departure: Java
cuts it, so that the peer sees another request), and so are sizes that do not fit the header, and bytes behind the fields.
"""

from __future__ import annotations

import struct

from spark_mq.remoting.codes import LanguageCode
from spark_mq.remoting.command import Body, HeaderEncoding, RemotingCommand
from spark_mq.remoting.errors import FrameError, FrameIllegalError

_HEAD = struct.Struct(">hBhiii")
_SIZE = struct.Struct(">i")
_NAME_SIZE = struct.Struct(">h")
_LANGUAGES = {int(code): code for code in LanguageCode}
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
    language = _LANGUAGES.get(language, LanguageCode.OTHER)
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
