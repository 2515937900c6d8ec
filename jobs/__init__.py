"""Duties on a store, one module each: what it does in its first line, `python -m jobs.NAME PATH` to run it."""
