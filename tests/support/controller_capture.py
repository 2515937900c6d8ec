"""What brokers and an Apache controller said to each other. `tests/vectors/controller/how_made.md` says how it was taken down."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from spark_mq.remoting import LanguageCode, RemotingCommand
from tests.support.places import VECTORS

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
