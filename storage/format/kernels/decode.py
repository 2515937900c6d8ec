"""Kernels of the way from records to rows."""

from __future__ import annotations
