"""Long runs of simulated worlds: `python -m tests.sim [--seed N] [--count C | --minutes M]`.

Plays the seeds from N on, each a world with its load and its fault, and audits it. With `--jobs` so
many processes share them out. What breaks a promise is told with the command that plays it again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from sim_audit import audit
from sim_case import FAULTS, Case
from sim_world import Run, many_worlds

EVERY = 5000
"""Seeds between two words of progress."""
PART = 100
"""Seeds that a process takes at once."""
MOST_FINDINGS = 10
"""A run ends after so many broken promises."""


class Narrator(logging.Handler):
    """What the simulated ranks log, with virtual time."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{self._run.loop.time():9.4f} {record.levelname:7} {record.getMessage()}")


class Played(NamedTuple):
    """Seeds that were played: how many with each kind of fault, and what was found."""

    kinds: Counter[str]
    findings: list[str]


def tell(case: Case) -> None:
    """Play one case aloud."""
    run = Run(case)
    logging.getLogger().addHandler(Narrator(run))
    logging.getLogger().setLevel(logging.INFO)
    lives = f", {case.lives} lives" if case.lives > 1 else ""
    shape = f"{case.world} ranks, depth {case.depth}, {len(case.requests)} requests{lives}"
    print(case.fault, shape)
    run.play(audit)
    print({rank: (status, f"{run.ended_s[rank]:.4f}") for rank, status in run.statuses.items()})


def play(seeds: range, fault: str | None, *, aloud: bool = False) -> Played:
    """Play `seeds`, as far as none breaks a promise; None is the seeds' own `fault`."""
    warnings.simplefilter("error")
    with nullcontext() if aloud else many_worlds():
        return play_each(seeds, fault, tell if aloud else play_one)


def play_one(case: Case) -> None:
    """Play one case."""
    Run(case).play(audit)


def play_each(seeds: range, fault: str | None, how: Callable[[Case], None]) -> Played:
    """Play each of `seeds` so, as far as none breaks a promise."""
    kinds: Counter[str] = Counter()
    for seed in seeds:
        case = Case(seed, fault)
        kinds[case.fault.kind] += 1
        try:
            how(case)
        except Exception:  # noqa: BLE001 - whatever it is, the seed is the finding
            again = f"--fault '{fault}' " if fault else ""
            replay = f"replay: python -m tests.sim --seed {seed} --count 1 {again}--tell"
            found = f"{traceback.format_exc()}seed {seed}: {case.fault}\n{replay}"
            return Played(kinds, [found])
    return Played(kinds, [])


def parts(first: int, seeds: int) -> Iterator[range]:
    """The seeds from `first` on in parts, `seeds` in all, 0 for no end."""
    end = first + seeds if seeds else None
    for start in count(first, PART) if end is None else range(first, end, PART):
        yield range(start, start + PART if end is None else min(start + PART, end))


def share_out(todo: Iterator[range], given: argparse.Namespace) -> Iterator[Played]:
    """What came of each part, as the processes end it."""
    with ProcessPoolExecutor(given.jobs) as pool:
        out: set[Future[Played]] = set()
        while True:
            while len(out) < 2 * given.jobs and (part := next(todo, None)) is not None:
                out.add(pool.submit(play, part, given.fault))
            if not out:
                return
            done, out = wait(out, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=0, help="how many; 0: no limit")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long; 0: no limit")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds out")
    parser.add_argument("--fault", choices=sorted(set(FAULTS)), help="this fault in every seed")
    parser.add_argument("--tell", action="store_true", help="print what the ranks log")
    given = parser.parse_args()
    seeds = given.count or (0 if given.minutes else 1000)
    began, played, findings, kinds = time.monotonic(), 0, 0, Counter[str]()
    end = began + 60 * given.minutes if given.minutes else float("inf")

    def todo() -> Iterator[range]:
        for part in parts(given.seed, seeds):
            if findings >= MOST_FINDINGS or time.monotonic() >= end:
                return
            yield part

    if given.jobs > 1 and not given.tell:
        came = share_out(todo(), given)
    else:
        came = (play(part, given.fault, aloud=given.tell) for part in todo())
    for part in came:
        for finding in part.findings:
            findings += 1
            print(finding, flush=True)
        kinds += part.kinds
        before, played = played, played + part.kinds.total()
        if played // EVERY > before // EVERY:
            print(f"{played} seeds, {time.monotonic() - began:.0f} s", flush=True)
        if findings and given.jobs == 1:
            return 1
    faults = ", ".join(f"{kind} {times}" for kind, times in sorted(kinds.items()))
    said = f"{findings} findings" if findings else "clean"
    print(f"{played} seeds {said} in {time.monotonic() - began:.0f} s: {faults}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
