"""Index file: header, hash slots, chained items. Java: IndexHeader, IndexFile.

    0       40             40 + 4·S                  40 + 4·S + 20·N
    | header | S slots (4) | N items (20)            |   big-endian

A slot holds the number of its newest item, an item the number of the one before. Items count from 1; item 0 stays
unused, so the header's count starts at 1 and the file is full at count ≥ N. S and N stand nowhere in the file.
"""

from __future__ import annotations

import numpy as np

from storage.format.layout import struct_of

HEADER = np.dtype(
    [
        ("begin_time_ms", ">i8"),
        ("end_time_ms", ">i8"),
        ("begin_commitlog_offset", ">i8"),
        ("end_commitlog_offset", ">i8"),
        ("used_slot_count", ">i4"),
        ("index_count", ">i4"),  # next item to write; 1 in an empty file, 0 in one never flushed
    ]
)
HEADER_SIZE = HEADER.itemsize
HEADER_STRUCT = struct_of(HEADER)
SLOT = np.dtype(">i4")
ITEM = np.dtype(
    [
        ("key_hash", ">i4"),
        ("commitlog_offset", ">i8"),
        ("time_difference_s", ">i4"),  # store time − begin time of the file
        ("previous_item", ">i4"),  # of the same slot; 0 = none
    ]
)
ITEM_STRUCT = struct_of(ITEM)
assert (HEADER_SIZE, ITEM.itemsize) == (40, 20)


def index_file_size(slot_count: int, item_count: int) -> int:
    """Length in bytes of an index file of that geometry."""
    return HEADER_SIZE + SLOT.itemsize * slot_count + ITEM.itemsize * item_count


def index_key(topic: str, key: str) -> str:
    """The text whose hash is entered. Java: IndexService.buildKey."""
    return f"{topic}#{key}"
