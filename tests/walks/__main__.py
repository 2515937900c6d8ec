"""`make walks`: the files that each deed enters, as a table; `-v` names them, `--record` makes today's count the limit of the test."""

from __future__ import annotations

import json
import sys

from tests.walks.deeds import walks
from tests.walks.limits import LIMITS, recorded


def main(arguments: list[str]) -> None:
    counts: dict[str, int] = {}
    before = recorded()
    print(f"{'deed':38} {'files':>5} {'recorded':>8} {'functions':>9}")
    for walk in walks():
        counts[walk.deed] = len(walk.files)
        print(f"{walk.deed:38} {len(walk.files):5} {before.get(walk.deed, 0):8} {walk.functions:9}")
        if "-v" in arguments:
            print("    " + " > ".join(walk.files))
    if "--record" in arguments:
        LIMITS.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")


main(sys.argv[1:])
