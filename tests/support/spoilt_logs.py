"""Logs whose bodies a disk has spoilt."""

from __future__ import annotations

from pathlib import Path

from tests.oracle.damage import files, walk


def flip_body_in_file(root: Path, number: int) -> None:
    """Invert the first body byte of the first record in one of the log's files, counted from 0."""
    file = files(root)[number]
    record = next(walk(file))
    content = bytearray(file.read_bytes())
    content[record.body_offset] ^= 0xFF
    file.write_bytes(content)
