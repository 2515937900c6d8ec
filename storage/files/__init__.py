"""The only room that touches the disk: the local file system, fsspec for the others, files that are replaced whole.

Imports `format`. Begin with `file_system.py`.
"""
