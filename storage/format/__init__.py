"""The formats of RocketMQ's files as pure functions: bytes and arrays in, bytes and arrays out. No I/O.

Begin with `record.py`: one record, byte by byte.
"""
