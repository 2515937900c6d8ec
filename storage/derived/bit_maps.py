"""Bit maps for the extension units of messages that are being dispatched. Java: CommitLogDispatcherCalcBitMap.

What is not known gets no map: whoever filters looks at the message then.
"""

from __future__ import annotations

import logging

import numpy as np

from storage.format.bloom_filter import MapRule
from storage.log.commit_log import CommitLog
from storage.log.dispatch import QueueEntries

_LOG = logging.getLogger(__name__)


class BitMaps:
    """Gives entries the maps that a rule makes, of records that stand in the log's files already."""

    def __init__(self, log: CommitLog, rule: MapRule) -> None:
        self._log = log
        self._rule = rule

    def mapped(self, new: QueueEntries) -> QueueEntries:
        """The entries with their maps; as they are where there are none, or where they cannot be had. Raises nothing."""
        try:
            maps_of = self._rule(new.topic)
            if maps_of is None:
                return new
            places, sizes = (new.entries[name].astype(np.int64) for name in ("commitlog_offset", "size_bytes"))
            properties: list[bytes] = []
            for _, records in self._log.records(places, sizes):
                properties += records.raw_properties().to_pylist()
            return new._replace(bit_maps=maps_of(properties)) if len(properties) == len(places) else new
        except Exception:  # the messages are stored, and are filtered one by one
            _LOG.exception("messages of topic %s have no bit maps", new.topic)
            return new
