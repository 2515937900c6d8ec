"""What a record says without where, when and at which host it is stored: by that a row staged a second time is known again.

    0         20                       36         40          48          56           64           72
    | …       | queue offset · place   | sysFlag  | born time | born host | store time | store host | reconsume times | half's place | …
              |---- not counted -------|          |------------------ not counted -----------------|                 |-- commits --|

A task that is run again, by whichever process on whichever machine, makes the same content of the same row. Born time and hosts are
those of the attempt, unless the row names them, so they do not count either. IPv6 hosts are 12 bytes longer.
"""

from __future__ import annotations

import numpy as np
from isal import isal_zlib

from storage.format.layout import view_at
from storage.format.record_block import commits_among, half_positions, scatter

_ORIGIN_POSITION = 40
_RECONSUME_SIZE = 4
_HALF = np.dtype("V8")


def content_sum(data: np.ndarray, positions: np.ndarray, start: int = 0) -> int:
    """CRC-32 of the contents of whole records that begin at `positions` of a writable `uint8` buffer and are not stamped yet.

    All have hosts of the same kinds. `start` is the sum of the records before. The buffer is as before when this returns.
    """
    if not len(positions):
        return start
    origins = positions + _ORIGIN_POSITION
    width = _origin_size(data, positions)
    kept = view_at(data, origins, width)
    commits = commits_among(data, positions)
    halves = half_positions(data, commits)
    kept_halves = view_at(data, halves, _HALF)
    scatter(data, origins, np.zeros(len(positions), width))
    scatter(data, halves, np.zeros(len(halves), _HALF))
    found = isal_zlib.crc32(data, start)
    scatter(data, halves, kept_halves)
    scatter(data, origins, kept)
    return int(found)


def copy_origins(logged: np.ndarray, staged: np.ndarray, positions: np.ndarray) -> None:
    """Make staged records say of their born time, their store time and their hosts what the same records in the log say."""
    if len(positions):
        origins = positions + _ORIGIN_POSITION
        scatter(staged, origins, view_at(logged, origins, _origin_size(staged, positions)))


def _origin_size(data: np.ndarray, positions: np.ndarray) -> np.dtype:
    """Born time, born host, store time and store host, as bytes."""
    first = positions[:1]
    end = int(half_positions(data, first)[0]) - _RECONSUME_SIZE
    return np.dtype((np.void, end - int(first[0]) - _ORIGIN_POSITION))
