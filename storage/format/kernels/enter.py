"""Kernels of a commit: stamps, queue entries, index items."""

from __future__ import annotations
