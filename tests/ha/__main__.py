"""Lives of masters and slaves, by seeds.

    python -m tests.ha --seed 4711 --steps 300             one life again
    python -m tests.ha --seeds 1000 --steps 100            many, from --seed on; a failure names its seed
    python -m tests.ha controlled --seed 4711               with a controller that says who is master
    python -m tests.ha faults                              which planted faults are noticed, and by which invariant

Exit code 1 where something was found.
"""

from __future__ import annotations

import argparse
import sys

from tests.ha.controlled_faults import CONTROLLERS_DIALECT
from tests.ha.faults import DEFAULT_DIALECT, plant_all
from tests.ha.lives import CONTROLLED, OPERATED, lived, table

DEFAULT_STEPS = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ha", description=__doc__.split("\n\n")[0])
    parser.add_argument("what", nargs="?", choices=("controlled", "faults"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many lives")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="of each life")
    options = parser.parse_args()
    if options.what == "faults":
        killed = [by for sort in (DEFAULT_DIALECT, CONTROLLERS_DIALECT) for by in plant_all(print, sort).values()]
        print(f"planted faults noticed {sum(by is not None for by in killed)}/{len(killed)}")
        return int(None in killed)
    kind = CONTROLLED if options.what == "controlled" else OPERATED
    found = lived(range(options.seed, options.seed + options.seeds), options.steps, print, kind)
    print("\n".join(table(found)))
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main())
