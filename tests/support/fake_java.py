"""A Java that is a shell script."""

from __future__ import annotations

from pathlib import Path


def make_java(home: Path, version: str, *, release: bool = True) -> Path:
    """A home whose `java` answers as Java does, with or without the file that spares asking it."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho '    java.version = {version}' >&2\n",
        encoding="utf-8",
    )
    executable.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n', encoding="utf-8")
    return home
