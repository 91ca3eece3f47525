"""Long runs of simulated worlds: `python -m tests.sim [--seed N] [--count C | --minutes M]`.

Plays one seed after the other from N on, each a world with its load and its fault, and audits it.
The first that breaks a promise ends the run with the command that plays it again, told.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sim_audit import audit
from sim_case import FAULTS, Case
from sim_world import Run

EVERY = 5000
"""Seeds between two words of progress."""


class Narrator(logging.Handler):
    """What the simulated ranks log, with virtual time."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{self._run.loop.time():9.4f} {record.levelname:7} {record.getMessage()}")


def tell(case: Case) -> None:
    """Play one case aloud."""
    run = Run(case, aloud=True)
    logging.getLogger().addHandler(Narrator(run))
    logging.getLogger().setLevel(logging.INFO)
    print(case.fault, f"{case.world} ranks, depth {case.depth}, {len(case.requests)} requests")
    run.play(audit)
    print({rank: (status, f"{run.ended_s[rank]:.4f}") for rank, status in run.statuses.items()})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=0, help="how many; 0: no limit")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long; 0: no limit")
    parser.add_argument("--fault", choices=sorted(set(FAULTS)), help="this fault in every seed")
    parser.add_argument("--tell", action="store_true", help="print what the ranks log")
    given = parser.parse_args()
    warnings.simplefilter("error")
    count = given.count or (0 if given.minutes else 1000)
    began, seed, kinds = time.monotonic(), given.seed, Counter()
    while (not count or seed < given.seed + count) and (
        not given.minutes or time.monotonic() < began + 60 * given.minutes
    ):
        case = Case(seed, given.fault)
        try:
            if given.tell:
                tell(case)
            else:
                Run(case).play(audit)
        except Exception:  # noqa: BLE001 - whatever it is, the seed is the finding
            traceback.print_exc()
            again = f"--fault '{given.fault}' " if given.fault else ""
            print(f"seed {seed}: {case.fault}")
            print(f"replay: python -m tests.sim --seed {seed} --count 1 {again}--tell")
            return 1
        kinds[case.fault.kind] += 1
        seed += 1
        if (seed - given.seed) % EVERY == 0:
            print(f"{seed - given.seed} seeds, {time.monotonic() - began:.0f} s", flush=True)
    faults = ", ".join(f"{kind} {times}" for kind, times in sorted(kinds.items()))
    print(f"{seed - given.seed} seeds clean in {time.monotonic() - began:.0f} s: {faults}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
