"""A store on a disk, without a broker and without Spark: written, read, searched. A broker can continue with it.

python examples/store_without_broker.py [DIRECTORY]    without a directory it takes a temporary one
"""

from __future__ import annotations

import sys
import tempfile

from storage import RowIllegalError, StoreLockedError, open_store


def main(directory: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path = directory or f"{temporary}/store"
        with open_store(path, read_only=False, create=True) as store:
            for number in range(1_000):
                customer = f"customer-{number % 10}"
                placed = store.put(
                    "orders", b"order %d" % number, tags="paid", keys=[f"order-{number}"], sharding_key=customer
                )
            print("the last order:", placed.topic, placed.queue_id, placed.queue_offset)
            try:
                store.put("not a topic", b"...")
            except RowIllegalError as error:
                print("refused:", error.rule)
            try:
                open_store(path, read_only=False)
            except StoreLockedError:
                print("one writer at a time")

        with open_store(path) as store:  # takes no lock and changes no file
            sizes = {queue: store.max_offset("orders", queue) for queue in store.queue_ids("orders")}
            print("orders:", sum(sizes.values()), "in", len(sizes), "queues")
            (found,) = store.query("orders", "order-471")
            print("found by its key:", found.plain_body.decode(), "of queue", found.queue_id)
            again = store.get("orders", found.queue_id, found.queue_offset, max_count=1).messages[0]
            print("and by its place:", again.plain_body.decode())
            first = store.offset_by_time("orders", found.queue_id, found.store_time_ms)
            print("by its time:", first <= found.queue_offset)


if __name__ == "__main__":
    main(*sys.argv[1:])
