"""A broker's process: `python -m spark_mq.testing.child`.

It reads a JSON object a line from its standard input, and answers with one: first its settings, then clocks. It closes its broker
when its standard input ends. So it ends with its parent, also where that is killed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping
from typing import Any


class _NoPandas:
    """pyarrow loads pandas where there is one: 40 MB and half of the start, for nothing that a broker does."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError("a broker needs no pandas")


def main() -> None:
    """Serves until its standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is no answer

    def answer(found: Mapping[str, Any]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    sys.meta_path.insert(0, _NoPandas())
    gc.disable()  # what is loaded stays: looking for garbage among it would be a seventh of the start
    from spark_mq.remoting_server.server import ListenError
    from spark_mq.testing.servers import BrokerInThread

    first = json.loads(sys.stdin.readline())
    try:
        broker = BrokerInThread(first["settings"], first["offset_ms"])
    except ListenError as error:
        answer({"not listening": [error.host, error.port, error.reason]})
        return
    gc.freeze()
    gc.enable()
    answer({})
    for line in sys.stdin:
        broker.catch_up(json.loads(line)["offset_ms"])
        answer({})
    broker.stop()


if __name__ == "__main__":
    main()
