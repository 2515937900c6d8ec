"""The only room that touches the disk: the local file system, fsspec for others, and files that are replaced whole.

Begin with `file_system.py`.
"""
