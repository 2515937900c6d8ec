"""What a broker does to an index file, one key at a time. Java: IndexFile.putKey, RocketMQ 5.3.

It believes slot and header as it finds them. `tests/storage/index/test_index_writer.py` compares it with files of a real broker.
"""

from __future__ import annotations

from pathlib import Path

from storage.format.keys import HEADER_SIZE, HEADER_STRUCT, ITEM, ITEM_STRUCT, SLOT


def put_keys(path: Path, slot_count: int, keys: list[tuple[int, int, int]]) -> None:
    """Enter keys (hash, place in the log, store time in ms) into a file that has room for them."""
    content = bytearray(path.read_bytes())
    for key_hash, commitlog_offset, store_time_ms in keys:
        begin_ms, _, begin_offset, _, used, count = HEADER_STRUCT.unpack_from(content)
        count = max(count, 1)
        slot = HEADER_SIZE + SLOT.itemsize * (key_hash % slot_count)
        newest = int.from_bytes(content[slot : slot + SLOT.itemsize], "big", signed=True)
        if newest > count:
            newest = 0
        difference = (store_time_ms - begin_ms) // 1_000 if begin_ms > 0 else 0
        position = HEADER_SIZE + SLOT.itemsize * slot_count + ITEM.itemsize * count
        ITEM_STRUCT.pack_into(content, position, key_hash, commitlog_offset, max(difference, 0), max(newest, 0))
        content[slot : slot + SLOT.itemsize] = count.to_bytes(SLOT.itemsize, "big")
        if count == 1:
            begin_ms, begin_offset = store_time_ms, commitlog_offset
        used += newest <= 0
        HEADER_STRUCT.pack_into(content, 0, begin_ms, store_time_ms, begin_offset, commitlog_offset, used, count + 1)
    path.write_bytes(content)


def lose_slots(path: Path, slots: bytes) -> None:
    """As if the writer had been killed behind its header: the slots are those of before."""
    with path.open("r+b") as file:
        file.seek(HEADER_SIZE)
        file.write(slots)
