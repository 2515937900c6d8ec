"""Where the queues end when Spark repeats a batch after a restart: it does not ask the source then, so the store is asked here.

The options of a query's sources stand in its plan, in the driver's JVM. A session of Spark Connect has none at hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spark_mq.source.options import SourceOptions
from spark_mq.source.stream_reader import StreamReader

_SCAN = "StreamingDataSourceV2ScanRelation"


def source_options(query: Any) -> list[dict[str, str]]:
    """The options of each source of a running query, in the order of its progress; `query` is the JVM's StreamingQueryWrapper.

    What another kind of source was given is {}. Raises what py4j raises.
    """
    leaves = query.streamingQuery().logicalPlan().collectLeaves()
    found: list[dict[str, str]] = []
    seen: list[Any] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if not leaf.isStreaming():
            continue
        is_scan = leaf.getClass().getSimpleName() == _SCAN
        source = leaf.stream() if is_scan else leaf
        if not any(source.equals(other) for other in seen):  # one stream may stand in the plan twice
            seen.append(source)
            found.append(dict(leaf.relation().options()) if is_scan else {})
    return found


def latest_offset(options: Mapping[str, str], end_offset: str) -> str:
    """What the source would have reported as its latest offset when the batch that ends there was planned, as it is now.

    Raises the named conditions, among them those of a store that is not there.
    """
    own = {name: value for name, value in options.items() if name.lower() != "commitoffsets"}
    reader = StreamReader(SourceOptions.parse(own, "streaming"), ())
    try:
        return json.dumps(reader.report_behind(json.loads(end_offset)))
    finally:
        reader.stop()
