"""What ends half messages in the batch that brings them: commits, which say where their half lies, and op messages.

    halves (places a, b, c; states commit, rollback, commit) · commits (prepared_transaction_offset a, c) · op "offsets of a, b, c,"

Commits are encoded before anybody knows where their halves will lie; that is written into them when they are read to be appended.
Java: EndTransactionProcessor, TransactionalMessageServiceImpl.deletePrepareMessage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from storage.format.record_block import BlockColumns, RecordBlock, RecordRun, stamp_halves
from storage.format.sys_flag import TRANSACTION_COMMIT
from storage.log.placement import Placement
from storage.messages.inner_messages import InnerMessages, outgoing_messages
from storage.messages.op_messages import op_messages
from storage.put.settings import PutSettings

_LONGEST_OFFSET = len("9223372036854775807,")


class HalfPlaces(NamedTuple):
    """Where n halves stand."""

    commitlog_offsets: np.ndarray
    queue_offsets: np.ndarray

    @classmethod
    def of(cls, placements: Sequence[Placement]) -> HalfPlaces:
        """Those of runs that were appended."""
        nothing = np.empty(0, np.int64)
        return cls(
            np.concatenate([nothing, *(placement.commitlog_offsets for placement in placements)]),
            np.concatenate([nothing, *(placement.queue_offsets for placement in placements)]),
        )

    def followed_by(self, others: HalfPlaces) -> HalfPlaces:
        """These, then the others."""
        return HalfPlaces(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))


class CommitRun(NamedTuple):
    """Commits that say where their halves lie, `half_offsets`, in the order of the records."""

    run: RecordRun
    half_offsets: np.ndarray

    @property
    def columns(self) -> BlockColumns:
        return self.run.columns

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records, which are whole records."""
        self.run.read(start, end, into)
        sizes = self.columns.sizes_bytes
        positions = np.cumsum(sizes, dtype=np.int64) - sizes
        rows = slice(*np.searchsorted(positions, (start, end)).tolist())
        stamp_halves(into, positions[rows] - start, self.half_offsets[rows])


def commit_runs(halves: Sequence[RecordRun], commits: Sequence[RecordRun], places: HalfPlaces) -> list[RecordRun]:
    """The commits of these halves, all of them, in their order, where the halves stand at `places`."""
    half_offsets = places.commitlog_offsets[states_of(halves) == TRANSACTION_COMMIT]
    bounds = np.cumsum([0, *(run.columns.row_count for run in commits)])
    if bounds[-1] != len(half_offsets):
        raise ValueError(f"{bounds[-1]} commits for {len(half_offsets)} halves that are committed")
    return [
        CommitRun(run, half_offsets[start:end]) for run, start, end in zip(commits, bounds, bounds[1:], strict=False)
    ]


def op_runs(halves: Sequence[RecordRun], places: HalfPlaces, settings: PutSettings, now_ms: int) -> list[RecordRun]:
    """The op messages of those halves whose end is known."""
    ended = places.queue_offsets[states_of(halves) != 0]
    # What cannot be appended would stand between every later opening and the store.
    greatest = min(settings.max_message_size - _LONGEST_OFFSET, settings.log_file_size_bytes // 2)
    asked = settings.transaction.transaction_op_msg_max_size
    limit = asked and max(min(asked, greatest), 1)
    messages = op_messages(ended, limit, now_ms)
    if not messages:
        return []
    inner = InnerMessages.of(messages)
    parts = outgoing_messages(inner, settings.host, settings.delays_ms, settings.limits)
    return [settings.encode(part) for part in parts]


def halves_and_rest(runs: Sequence[RecordRun]) -> tuple[list[RecordRun], list[RecordRun]]:
    """The runs of half messages, which come first, and the others."""
    halves = [run for run in runs if run.columns.transaction_states is not None]
    return halves, list(runs[len(halves) :])


def with_states(halves: RecordBlock, states: np.ndarray) -> RecordBlock:
    """The halves with how each of them ends."""
    return halves._replace(columns=halves.columns._replace(transaction_states=states))


def states_of(halves: Sequence[RecordRun]) -> np.ndarray:
    """How each of the halves ends, by its transaction bits."""
    states = [run.columns.transaction_states for run in halves]
    return np.concatenate([np.empty(0, np.int8), *(found for found in states if found is not None)])
