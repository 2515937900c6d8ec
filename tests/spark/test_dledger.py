"""The store of a DLedger group's peer through Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fixture_stores import unpack_group

from .conftest import ReadStore
from .streams import Stream, needs_limits

TOPICS = "TopicA,TopicBatch,TopicDelay,TopicTransaction,TopicTail"


@needs_limits
@pytest.mark.spark
def test_batch_and_stream_have_what_the_group_served(
    read_store: ReadStore, stream_store: Callable[..., Stream], tmp_path: Path
) -> None:
    group = unpack_group("dledger", tmp_path / "group")
    served = group["leader"].served
    assert served is not None
    lines = [json.loads(text) for text in served.read_text("utf-8").splitlines()]
    expected = sorted(
        (line["topic"], line["queueId"], line["queueOffset"], line["bodySha256"])
        for line in lines
        if line["type"] == "message"
    )
    for peer in group.values():
        rows = read_store(peer.root, subscribe=TOPICS).select("topic", "queue_id", "queue_offset", "body").collect()
        assert sorted((*row[:3], hashlib.sha256(row.body).hexdigest()) for row in rows) == expected
    stream = stream_store(
        group["follower"].root, subscribe=TOPICS, startingOffsets="earliest", maxOffsetsPerTrigger="90"
    )
    stream.run()
    assert len(stream.runs) > 2
    stream.forget_commit(max(stream.runs))
    stream.run()
    rows = [row for rows in stream.batches.values() for row in rows]
    assert sorted((*row[:3], hashlib.sha256(row.body).hexdigest()) for row in rows) == expected
