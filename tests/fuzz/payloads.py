"""Results made to hurt: what they cost the host in time and memory, and its other children in latency.

python tests/fuzz/payloads.py [NAME ...]
"""

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from children import hostile
from fuzz.siblings import Siblings, at_rest
from fuzz.texts import TEXTS
from sandbox_exec import SandboxExecutor


@dataclass
class Cost:
    ending: str
    seconds: float  # from the child's last word to the outcome; 0: it was cut off before
    growth: int  # the host's highest resident set over what it was
    pongs: list[float]

    def __str__(self) -> str:
        middle = statistics.median(self.pongs) if self.pongs else 0.0
        worst = max(self.pongs, default=0.0)
        return (
            f"{self.ending:18} {self.seconds * 1e3:7.1f} ms   host {self.growth / 1e6:+6.1f} MB   "
            f"sibling p50 {middle * 1e3:5.2f} ms, at most {worst * 1e3:6.1f} ms"
        )


def measure(executor: SandboxExecutor, siblings: Siblings, name: str) -> Cost:
    before = at_rest()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    pongs = len(siblings.pongs)
    child = executor.launch(hostile.payload, (name,))
    outcome = child.outcome(60)
    ended = time.monotonic_ns()
    cost = Cost(
        outcome.error.classification if outcome.error else outcome.state.value,
        max(0, ended - int(outcome.stdout.text or ended)) / 1e9,
        _peak() - before,
        list(siblings.pongs[pongs:]),
    )
    del child, outcome
    return cost


def _peak() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(line)


def main() -> None:
    failures: list[str] = []
    with SandboxExecutor() as executor:
        siblings = Siblings(executor, failures.append)
        measure(executor, siblings, "promised items")  # warm
        for name in sys.argv[1:] or TEXTS:
            print(f"{name:26} {measure(executor, siblings, name)}", flush=True)
        siblings.stop()
    print(*failures, sep="\n")


if __name__ == "__main__":
    main()
