"""Compiles all kernels into the user's cache: what a process without any starts beside itself."""

from __future__ import annotations

from storage.compiler import compile_all

if __name__ == "__main__":
    compile_all()
