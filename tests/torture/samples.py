"""Valid bytes to begin with: what Apache's broker wrote (tests/vectors), taken apart."""

from __future__ import annotations

import json
import zlib
from functools import cached_property
from pathlib import Path

from storage.format.record import Message
from tests.support.fixture_stores import unpack_fixture
from tests.support.log_records import log_records
from tests.support.message_builder import make_message
from tests.support.places import VECTORS

_STORES = ("clean", "ipv6", "ext", "timer")
_RECORD_LIMIT = 1_200


class Samples:
    """Parts of the fixture stores, unpacked into `directory` when first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def stores(self) -> dict[str, Path]:
        """The root of each store by its name."""
        return {name: unpack_fixture(name, self._directory / name).root for name in _STORES}

    @cached_property
    def messages(self) -> list[Message]:
        """Of the broker's messages the first of every kind that differs in topic, flags, hosts and names of properties."""
        found: dict[object, Message] = {}
        for root in self.stores.values():
            for message, raw in log_records(root):
                if len(raw) <= _RECORD_LIMIT:
                    kind = (
                        message.topic,
                        message.sys_flag,
                        message.magic,
                        len(message.store_host),
                        tuple(message.properties),
                    )
                    found.setdefault(kind, message)
        return [*found.values(), make_message(body=b""), make_message("T" * 200, magic=0xDAA320AB, sys_flag=0x30)]

    @cached_property
    def property_strings(self) -> list[bytes]:
        return sorted({message.raw_properties for message in self.messages})

    def scratch(self, name: str) -> Path:
        """A directory for what is written by this package's own code."""
        made = self._directory / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def files(self, pattern: str, limit: int = 1 << 16) -> list[bytes]:
        """Files of the stores by a pattern below ROOT, each as far as its first `limit` bytes; those that differ."""
        paths = (path for root in self.stores.values() for path in sorted(root.glob(pattern)) if path.is_file())
        return list(dict.fromkeys(path.read_bytes()[:limit] for path in paths))

    def state(self, name: str) -> list[bytes]:
        """What brokers left in config/ under that name, and the dialect's own vector."""
        vector = VECTORS / "config" / name
        found = self.files(f"config/{name}") + ([vector.read_bytes()] if vector.exists() else [])
        return [*found, (VECTORS / "config" / "fastjson.json").read_bytes()]

    def broker_conf(self) -> list[bytes]:
        return [root.parent.joinpath("broker.conf").read_bytes() for root in self.stores.values()]


def write_over(path: Path, content: bytes) -> None:
    """Make or change a file; one of the same length keeps its pages."""
    if not path.exists() or path.stat().st_size != len(content):
        path.write_bytes(content)
        return
    with path.open("r+b") as file:
        file.write(content)


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def sealed(content: bytes) -> bytes:
    """The first line of an input; every second one has the right checksum behind it, so that what stands in the line is read."""
    line = content.partition(b"\n")[0]
    return with_checksum(line) if len(content) % 2 else content


def with_checksum(line: bytes) -> bytes:
    return line + f"\n{zlib.crc32(line):08x}\n".encode()


def both_parities(line: bytes) -> list[bytes]:
    """The same in an even and in an odd number of bytes."""
    return [line, line + b" "]
