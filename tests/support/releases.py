"""The releases of RocketMQ that are tried: their stores (fixtures `v*`), their brokers, and the table of both."""

from __future__ import annotations

from storage.settings.nouns import SHORT_TOPIC_LIMIT, parse_broker_version, release_of
from tests.support.java_broker import RELEASE

RELEASES = ("4.9.7", "5.0.0", "5.1.4", "5.2.0", "5.3.3", "5.4.0", "5.5.0")
ENDS = ("", "-killed")
"""Of a fixture's name: stopped cleanly, or killed while it took messages."""

CHOSEN = release_of(parse_broker_version(RELEASE))
"""What the broker does that interop tests run beside; tests expect by this table, not by numbers of releases."""
LOSES_KEYS_AFTER_A_KILL = ("v5.5.0",)
"""Fixtures whose broker has recovered a killed store, and no longer finds some keys: it deletes the last index file and begins behind
the file's first items (`messageIndexSafe=false`, and the checkpoint's `logicsPhysicalOffset`)."""


def release_table() -> str:
    """The table of docs/compatibility.md. Each "yes" is a case of the tests that the page names."""
    head = ["release", "read", "recovered after a kill", "written, and its own broker goes on", "refused for it"]
    lines = [head, ["---"] * len(head)]
    for release in RELEASES:
        lines.append([release, "yes", "yes", "yes", ", ".join(refused(release)) or "–"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def refused(release: str) -> list[str]:
    """What is not written for it, as the table of `storage.settings.nouns` says."""
    broker = release_of(parse_broker_version(release))
    parts = []
    if not broker.has_timer:
        parts.append("rows with `deliver_at`")
    if broker.refusal_of_topic("T" * (SHORT_TOPIC_LIMIT + 1)) is not None:
        parts.append(f"records of topics of more than {SHORT_TOPIC_LIMIT} bytes")
    return parts
