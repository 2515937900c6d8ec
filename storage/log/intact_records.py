"""Intact records in a stretch of the log, whatever lies between them: what may stand behind a bad one.

A record is intact if its lengths add up, its body has its CRC, the whole the one that it ends in, if it does (`__CRC32#`), and it names
the place at which it stands. So bytes of a body that look like a record are none, and what was copied from elsewhere is none. Java has
no such search.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.files.file_system import ReadableFile
from storage.format.layout import view_at
from storage.format.record import MINIMUM_RECORD_SIZE, find_candidates
from storage.format.record_batch import Records

_SCAN_BYTES = 8 << 20
_PLACE_POSITION = 28
_PLACE = np.dtype(">i8")


def intact_records(file: ReadableFile, file_start: int, position: int = 0) -> Iterator[Records]:
    """The intact records of a file from a position on, in ascending batches, none of them within another.

    `file_start` is the place in the log of the file's first byte. Holes are passed over.
    """
    buffer = file.view(0, file.size_bytes)
    reach = 0
    for start, stop in file.data_ranges(position):
        for at in range(start, stop, _SCAN_BYTES):
            end = min(at + _SCAN_BYTES, stop, len(buffer) - MINIMUM_RECORD_SIZE + 1)
            positions = find_candidates(buffer, at, end)
            places = view_at(buffer, positions + _PLACE_POSITION, _PLACE)
            records = Records(buffer, positions[places == positions + file_start])
            records = records.take(records.is_whole)
            records = records.take(records.crc_agrees() & records.property_crc_agrees(required=False))
            ends = np.maximum.accumulate(np.concatenate(([reach], records.positions + records.column("size_bytes"))))
            reach = int(ends[-1])
            outer = records.positions >= ends[:-1]
            if outer.any():
                yield records.take(outer)
