"""Few records go one by one, many by arrays: the same bytes in log, queues and index, whatever rolls in between."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.format import few
from storage.rules.inner_messages import InnerMessage
from storage.settings.load import load_config

SETTINGS = """\
brokerName=broker-few
brokerIP1=127.0.0.1
mappedFileSizeCommitLog=8192
mappedFileSizeConsumeQueue=400
maxHashSlotNum=20
maxIndexNum=60
"""
NOW_MS = 1_700_000_000_000
KEPT = ("commitlog", "consumequeue", "index")


def config_in(directory: Path) -> StoreConfig:
    (directory / "broker.conf").write_text(SETTINGS, encoding="ascii")
    return load_config(str(directory / "store"), read_bytes=lambda path: Path(path).read_bytes())


def puts(seed: int) -> list[list[InnerMessage]]:
    """Of one to a few messages each, for several queues, with and without keys, some delayed."""
    chance = random.Random(seed)
    numbers = itertools.count()

    def message() -> InnerMessage:
        number = next(numbers)
        properties = {"UNIQ_KEY": f"{number:032X}", "TAGS": chance.choice(["", "paid", "größer"])}
        if chance.random() < 0.7:
            properties["KEYS"] = " ".join(f"k{chance.randrange(9)}" for _ in range(chance.randrange(4)))
        topic = "SCHEDULE_TOPIC_XXXX" if chance.random() < 0.1 else chance.choice(["Orders", "Bills"])
        if topic.startswith("SCHEDULE"):
            properties["DELAY"] = "1"
        return InnerMessage(
            topic=topic,
            queue_id=chance.randrange(3),
            body=chance.randbytes(chance.randrange(900)),
            properties=properties,
            born_time_ms=NOW_MS + number,
        )

    return [[message() for _ in range(chance.choice([1, 1, 2, 5]))] for _ in range(60)]


def written(directory: Path, seed: int) -> dict[str, bytes]:
    """What a store's files hold after these puts; the index files by their order, as their names are times."""
    directory.mkdir()
    times = itertools.count(NOW_MS, 700)
    root = directory / "store"
    with open_store(
        root, config=config_in(directory), read_only=False, create=True, clock=lambda: next(times)
    ) as store:
        for messages in puts(seed):
            store.put_inner(messages)
    files = [path for kept in KEPT for path in sorted((root / kept).rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.parametrize("seed", range(6))
def test_few_records_leave_the_bytes_of_many(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = written(tmp_path / "few", seed)
    monkeypatch.setattr(few, "FEW_ROWS", 0)
    many = written(tmp_path / "many", seed)
    assert list(one_by_one) == list(many)
    assert one_by_one == many
    assert len([name for name in one_by_one if name.startswith("commitlog")]) > 3, "the log rolls"
    assert len([name for name in one_by_one if name.startswith("index")]) > 1, "the index rolls"
