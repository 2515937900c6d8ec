"""A frame's header as JSON: keys in alphabetical order, no blanks, extFields a flat object of strings.

    {"code":0,"extFields":{…},"flag":1,"language":"JAVA","opaque":7,"remark":"…","serializeTypeCurrentRPC":"JSON","version":479}

Java: RemotingSerializable, fastjson 1.2.83. As there, numbers and booleans among the extFields read as their text, nulls as absent, and
bytes that are no UTF-8 as U+FFFD. Departures: the dialect of `storage/format/fastjson.py` is not read here. A header without code or
opaque is refused; Java takes it for code 0, or gives it a number of its own.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NoReturn

from spark_mq.remoting.codes import LanguageCode
from spark_mq.remoting.command import Body, HeaderEncoding, RemotingCommand
from spark_mq.remoting.errors import FrameError
from storage.format.fastjson import quoted

_LANGUAGE_NAMES = {code: code.name for code in LanguageCode}
_LANGUAGES = {code.name: code for code in LanguageCode}
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
    try:
        found = _DECODER.decode(header.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FrameError(position, "header", header[:16], f"it is no JSON: {reason[:120]}") from None
    if not isinstance(found, dict):
        raise FrameError(position, "header", header[:16], "it is no JSON object")
    remark = found.get("remark")
    if remark is not None and not isinstance(remark, str):
        raise FrameError(position, "remark", remark, "it must be a string")
    code = _number(found, "code", None, position)
    opaque = _number(found, "opaque", None, position)
    flag = _number(found, "flag", 0, position)
    version = _number(found, "version", 0, position)
    fields = _fields(found.get("extFields"), position)
    language = _language(found.get("language", "JAVA"))
    return RemotingCommand(code, opaque, flag, fields, body, remark, language, version, HeaderEncoding.JSON)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=_refuse)


def _number(header: dict[str, Any], name: str, default: int | None, position: int) -> int:
    value = header.get(name, default)
    if type(value) is not int or not -0x8000_0000 <= value <= 0x7FFF_FFFF:
        raise FrameError(position, name, value, "it must be a number of 32 bits")
    return value


def _language(name: object) -> LanguageCode:
    return _LANGUAGES.get(name, LanguageCode.OTHER) if isinstance(name, str) else LanguageCode.OTHER


def _fields(fields: object, position: int) -> dict[str, str] | None:
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise FrameError(position, "extFields", fields, "it must be an object")
    for value in fields.values():
        if type(value) is not str:
            return {name: _text(name, value, position) for name, value in fields.items() if value is not None}
    return fields


def _text(name: str, value: object, position: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise FrameError(position, f"extFields.{name}", value, "it must be a string")
