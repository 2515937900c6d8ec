"""A frame's header as JSON: keys in alphabetical order, no blanks, extFields a flat object of strings.

    {"code":0,"extFields":{…},"flag":1,"language":"JAVA","opaque":7,"remark":"…","serializeTypeCurrentRPC":"JSON","version":479}

Java: RemotingSerializable, fastjson 1.2.83. As there, numbers and booleans among the extFields read as their text, nulls as absent,
bytes that are no UTF-8 as U+FFFD, numbers in quotes or with a fraction of zeros as numbers, a language by its name or its number;
what is not there is 0, as some serializers leave zeros out. Names may be spelt as `wire_class.py` says, and the whole in the dialect
of `storage/format/fastjson.py`. Departures: a request without opaque has the number 0, and is answered so, where Java gives it a
number of its own; an answer without one, which nobody waits for, is refused; of the dialect are 64 KiB at most.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, NoReturn

from spark_mq.remoting.codes import LanguageCode
from spark_mq.remoting.command import RESPONSE_FLAG, Body, HeaderEncoding, RemotingCommand
from spark_mq.remoting.errors import FrameError
from spark_mq.remoting.wire_class import LikeNames
from storage.errors import StateFileError
from storage.format.fastjson import parse_sent, quoted

_LANGUAGE_NAMES = {code: code.name for code in LanguageCode}
_LANGUAGES = {code.name: code for code in LanguageCode}
_BY_NUMBER = {code.value: code for code in LanguageCode}
_NUMBER = re.compile(r"(-?[0-9]{1,10})(?:\.0+)?", re.ASCII)
_DIALECT_BYTES_MOST = 65_536
"""Of a header that is no plain JSON: what is read token by token takes its time, and all connections wait for it."""
_NAMES = LikeNames(("code", "extFields", "flag", "language", "opaque", "remark", "serializeTypeCurrentRPC", "version"))
_name = lru_cache(1_024)(quoted)


def encode_json_header(command: RemotingCommand) -> bytes:
    """The header without what stands before it."""
    code, opaque, flag, fields, _, remark, language, version, _ = command
    fields_text = remark_text = ""
    if fields is not None:
        told = [
            f'{_name(name)}:"{value}"' if value.isalnum() and value.isascii() else f"{_name(name)}:{quoted(value)}"
            for name, value in fields.items()
        ]
        fields_text = '"extFields":{' + ",".join(told) + "},"
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
    number = _NUMBER.fullmatch(str(value)) if isinstance(value, str | float) else None
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
