"""Duties on a store, one module each: `spark-mq job NAME PATH` or `python -m jobs.NAME PATH` runs it."""

from __future__ import annotations

JOBS = {
    "archive": "Archive topics into a Delta table that readers go on in, and keep the table.",
    "check_transactions": "Ask what became of half messages, and commit them, roll them back or put them back.",
    "delete_expired_files": "Delete a store's oldest log files, and the files of queues and index that then point to nothing.",
    "deliver_delayed": "Deliver delayed messages that are due, by level and by time.",
    "rebuild_queues": "Build a store's consume queues and index again from its log.",
    "redrive_transactions": "Put half messages without an answer back, so that they are checked again.",
    "replay_dead_letters": "Put a consumer group's dead letters back into their topics, or into the group's retry topic.",
    "restore": "Put archived messages back into a store or a cluster, each once.",
    "verify_store": "Compare a store's queues, index and checkpoint with its log, reading only.",
}
"""Each job, and the first line of its --help."""
