"""What Apache's processes said to each other, frame by frame. `tests/vectors/remoting/how_made.md` says how it was taken down."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from spark_mq.remoting import LanguageCode, RemotingCommand
from tests.support.places import VECTORS

FOLDERS = ("json", "binary", "oldsend")
_ASKED = re.compile(r"RESPONSE \w+ to \w+\((\d+)\)")


class CapturedFrame(NamedTuple):
    """One frame, and what Apache's classes read from it."""

    folder: str
    file: str
    data: bytes
    said: Mapping[str, Any]

    @property
    def asked(self) -> int:
        """The code of the request: its own, or that of the one that it answers."""
        answered = _ASKED.match(self.said["what"])
        return int(answered[1]) if answered else int(self.said["code"])

    @property
    def is_response(self) -> bool:
        """Whether it answers."""
        return bool(self.said["flag"] & 1)

    def __repr__(self) -> str:
        return f"{self.folder}/{self.file}@{self.said['off']}: {self.said['what']}"


@cache
def _files() -> Mapping[str, bytes]:
    with tarfile.open(VECTORS / "remoting" / "captures.tgz") as archive:
        contents = {member.name: archive.extractfile(member) for member in archive.getmembers() if member.isfile()}
        return {name: content.read() for name, content in contents.items() if content is not None}


@cache
def captured_streams() -> Mapping[str, bytes]:
    """Each direction of each connection, by folder and file name."""
    return {name: content for name, content in _files().items() if name.endswith(".bin")}


@cache
def captured_frames() -> tuple[CapturedFrame, ...]:
    """All of them."""
    frames = []
    for folder in FOLDERS:
        for line in _files()[f"{folder}/frames.jsonl"].splitlines():
            said = json.loads(line)
            stream = captured_streams()[f"{folder}/{said['file']}"]
            data = stream[said["off"] : said["off"] + said["len"]]
            frames.append(CapturedFrame(folder, said["file"], data, said))
    return tuple(frames)


# What brokers and an Apache controller said to each other (tests/vectors/controller/how_made.md)

CONTROLLER_PORT = 39_877


class SaidFrame(NamedTuple):
    """One frame; of an answer `asked` is the code of its request."""

    time_ms: int
    source: int
    target: int
    asked: int
    command: RemotingCommand

    @property
    def is_to_controller(self) -> bool:
        """Whether a broker asks the controller."""
        return self.target == CONTROLLER_PORT

    def __repr__(self) -> str:
        return f"{self.time_ms}: {self.source} → {self.target}: {self.asked}, {self.command}"


def _command(header: Mapping[str, Any], body: str) -> RemotingCommand:
    return RemotingCommand(
        code=header["code"],
        opaque=header["opaque"],
        flag=header["flag"],
        ext_fields=header.get("extFields"),
        body=body.encode(),
        remark=header.get("remark"),
        language=LanguageCode[header["language"]],
        version=header["version"],
    )


@cache
def said_frames() -> tuple[SaidFrame, ...]:
    """All of them, in their order."""
    frames = []
    asked: dict[tuple[int, int, int], int] = {}
    with gzip.open(VECTORS / "controller" / "frames.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            said = json.loads(line)
            command, source, target = _command(said["header"], said["body"]), said["src"], said["dst"]
            if not command.is_response:
                asked[source, target, command.opaque] = command.code
            code = asked.get((target, source, command.opaque)) if command.is_response else command.code
            if code is not None:
                frames.append(SaidFrame(said["t"], source, target, code, command))
    return tuple(frames)
