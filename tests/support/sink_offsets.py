"""What any client may do to a sink through a broker: store an offset for the consumer group that mirrors its last batch."""

from __future__ import annotations

from pathlib import Path

from storage.batch.ledger import GROUP_PREFIX, QUEUE_ID, TOPIC
from storage.tables.consumer_groups import ConsumerOffsets


def set_offset(root: str | Path, sink_id: str, next_batch: int) -> None:
    """In consumerOffset.json of a store that nobody has open."""
    path = Path(root, "config/consumerOffset.json")
    table = ConsumerOffsets.load(path.read_text("utf-8")) if path.exists() else ConsumerOffsets()
    path.write_text(table.with_offsets(GROUP_PREFIX + sink_id, {(TOPIC, QUEUE_ID): next_batch}, now_ms=1).to_text())
