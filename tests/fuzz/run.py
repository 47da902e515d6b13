"""Fuzzes the host by real children, for as long as you like.

python tests/fuzz/run.py --seconds 1800 --seed 7
python tests/fuzz/run.py --seed 7 --only 123 --repeat 20     one script again
python tests/fuzz/run.py --seconds 60 --kind bad_text --state RUNNING
"""

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import scripts
from fuzz.host import Fuzzer


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--slots", type=int, default=4, help="hostile children at once")
    parser.add_argument("--only", type=int, help="number of the one script to play")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument(
        "--kind", choices=sorted({kind for state in scripts.STATES for kind in scripts.kinds(state)})
    )
    parser.add_argument("--state", choices=scripts.STATES)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    for _ in range(options.repeat):
        fuzzer = Fuzzer(options.seed, slots=options.slots, kind=options.kind, state=options.state)
        numbers = None if options.only is None else range(options.only, options.only + 1)
        started = time.monotonic()
        report = fuzzer.run(options.seconds, numbers, lambda line: print(line, flush=True))
        print(report, f"(whole run {time.monotonic() - started:.1f} s)", sep="\n", flush=True)
        if report.failures:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
