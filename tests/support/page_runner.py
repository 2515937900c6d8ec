"""Runs the Python examples of pages in one process with one Spark session: `python -m tests.support.page_runner PAGE…`.

Each page has names of its own; its examples run in their order. The directories of the examples lie in the working directory:
`/data` is `data`, `/var/lib/rocketmq` is `broker`, where a store with the topics orders and payments lies. Queries that a page leaves
running are drained and stopped. Behind what a page printed stands the line `##### PAGE passed` or `##### PAGE failed`.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import spark_mq
from storage import open_store
from tests.support.pages import Example, examples

PLACES = {"/var/lib/rocketmq": "broker", "/data": "data"}


def make_broker_store(path: Path) -> None:
    """What the examples read as a broker's own store."""
    path.parent.mkdir()
    with open_store(path, read_only=False, create=True) as store:
        for topic in ("orders", "payments"):
            for number in range(4):
                store.put(topic, b"...", tags="paid", keys=[f"order-471{number}"])


def run(example: Example, names: dict[str, Any]) -> None:
    """Runs it as it stands but for the directories. A traceback names the page and its line."""
    code = "\n" * (example.line - 1) + example.code
    for place, ours in PLACES.items():
        code = code.replace(f'"{place}/', f'"{Path.cwd() / ours}/')
    exec(compile(code, example.page, "exec"), names)


def run_page(page: str) -> str:
    """Whether all of the page ran: `passed` or `failed`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for example in examples(page):
            if example.reason is None:
                run(example, names)
                sys.stdout.flush()  # the console sink writes to the same place
        for query in spark_mq.build_session().streams.active:
            query.processAllAvailable()
            query.stop()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return "failed"
    return "passed"


def main(pages: list[str]) -> None:
    make_broker_store(Path("broker", "store"))
    for page in pages:
        print(f"##### {page} {run_page(page)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
