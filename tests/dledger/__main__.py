"""Lives of DLedger groups, by seeds.

    python -m tests.dledger --seed 4711                     one life again
    python -m tests.dledger --seeds 10000                   many, from --seed on; a failure names its seed
    python -m tests.dledger faults                          which planted faults are noticed, and by which invariant

Exit code 1 where something was found.
"""

from __future__ import annotations

import argparse
import sys

from tests.dledger.faults import plant_all
from tests.dledger.life import STEPS, lived


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dledger", description=__doc__.split("\n\n")[0])
    parser.add_argument("what", nargs="?", choices=("faults",))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many lives")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each life")
    options = parser.parse_args()
    if options.what == "faults":
        shown = plant_all(print)
        print(f"planted faults noticed {sum(by is not None for by in shown.values())}/{len(shown)}")
        return int(None in shown.values())
    found = lived(range(options.seed, options.seed + options.seeds), options.steps)
    for name, figure in sorted(found.counts.items()):
        print(f"{name:40} {figure:>12,}")
    print("\n".join(found.failures) or f"no invariant is broken in {found.counts['lives']:,} lives")
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main())
