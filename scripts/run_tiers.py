"""Run the CPU tests by tier, each within its time budget, and close with one summary line.

usage: python scripts/run_tiers.py [--long]

Tiers run in lanes, two side by side: most keep one core busy, or wait.
A tier fails when a test fails or when it takes longer than its budget. Over budget it only warns
when more than a fifth of the machine went to others meanwhile (other programs, or the host): then
the clock says nothing about the tests.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import TextIO
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
BUDGET_S = {
    "unit": 320,
    "kernels": 220,
    "known_reports": 20,
    "parity": 150,
    "sim": 120,
    "launcher": 120,
    "e2e": 360,
    "compile": 90,
    "emulated": 180,
    "long": inf,
}
COMPILERS = ("g++", "clang++")
EMULATED = {"DGPP_TEST_EMULATED": "1"}
_SCORED = "tests/parity/test_scored_prompts.py::test_an_answer_read_as_a_prompt_has_its_numbers"
_FIXTURE = "tests/gpu/test_fixtures.py::test_a_fixture_is_as_near_as_bf16_allows"
MORE = {
    "unit": ["--ignore=tests/unit/kernels"],
    "emulated": [
        "-k=cuda or emulat or fixture",
        "tests/unit/kernels",
        "--ignore=tests/unit/kernels/test_panels.py",
        f"{_FIXTURE}[glm-4.7-bf16-per-layer]",
        f"{_FIXTURE}[glm-4.7-nvfp4-per-layer]",
        "tests/parity/test_exactness.py::test_decode_equals_prefill_bit_for_bit",
        f"{_SCORED}[cuda-glm-4.7-bf16]",
        "tests/parity/test_disk_tier_bits.py",
    ],
}
"""What a tier runs beside its own folder."""
NO_TESTS_COLLECTED = 5
OVERLOAD = 0.2
PHASES = (
    (("unit", "known_reports", "sim"), ("kernels", "emulated", "compile")),
    (("parity", "launcher"), ("e2e",)),
)
"""What runs when, every phase in lanes side by side: those that compile or compute beside one
another, then processes, which wait half of the time, beside numbers on one thread."""


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, report: Path) -> None:
        """Add what the JUnit report of one pytest run says; a run that died before it counts 1."""
        if not report.exists():
            self.failed += 1
            return
        for suite in ET.parse(report).getroot().iter("testsuite"):
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped = int(suite.get("skipped", 0))
            self.failed += failed
            self.skipped += skipped
            self.passed += int(suite.get("tests", 0)) - failed - skipped


@dataclass
class Ran:
    """What came of one tier."""

    name: str
    good: bool
    wall_s: float
    counts: Counts = field(default_factory=Counts)


def busy_s() -> float:
    """Processor seconds spent by anybody, stolen ones included, since boot; 0 where unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, stat.read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """Processor seconds of the processes that this one started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(name: str, targets: Iterable[str], marker: str, out: TextIO) -> Ran:
    """One pytest run, its output to `out`."""
    environment = os.environ | (EMULATED if name == "emulated" else {})
    print(f"--- {name}", file=out, flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", marker, f"--junit-xml={report}"]
        ended = subprocess.run(
            [*command, *targets], cwd=ROOT, env=environment, check=False, stdout=out
        )
        ran = Ran(name, ended.returncode in (0, NO_TESTS_COLLECTED), time.monotonic() - start)
        ran.counts.add(report)
    print(f"--- {name}: {ran.wall_s:.1f} s of {BUDGET_S[name]:.0f} s", file=out, flush=True)
    return ran


def folder_of(tier: str) -> str:
    """Where a tier's own tests are."""
    return "tests/unit/kernels" if tier == "kernels" else f"tests/{tier}"


def run_lane(tiers: Sequence[str], out: TextIO) -> list[Ran]:
    """The tiers one after the other."""
    return [
        run(tier, [folder_of(tier), *MORE.get(tier, [])], "not long and not bench", out)
        for tier in tiers
    ]


def run_side_by_side(lanes: Sequence[Sequence[str]]) -> list[Ran]:
    """Every lane in a thread of its own; what the later ones print comes when they have ended."""
    busy, own, start = busy_s(), own_s(), time.monotonic()
    with ThreadPoolExecutor(len(lanes)) as threads, ExitStack() as files:
        outs = [sys.stdout, *(files.enter_context(TemporaryFile("w+")) for _ in lanes[1:])]
        running = [threads.submit(run_lane, *job) for job in zip(lanes, outs, strict=True)]
        ran = [tier for lane in running for tier in lane.result()]
        for out in outs[1:]:
            out.seek(0)
            shutil.copyfileobj(out, sys.stdout)
    machine = (time.monotonic() - start) * (os.cpu_count() or 1)
    others = max(0.0, busy_s() - busy - (own_s() - own)) / machine
    names = ", ".join(tier.name for tier in ran)
    print(f"--- {names}: {others:.0%} of the machine to others", flush=True)
    for tier in ran:
        if tier.wall_s > BUDGET_S[tier.name]:
            excuse = ", on an overloaded machine" * (others > OVERLOAD)
            print(f"--- {tier.name}: over budget{excuse}", flush=True)
            tier.good &= others > OVERLOAD
    return ran


def run_long(tiers: Sequence[str]) -> Ran:
    targets = [folder_of(tier) for tier in tiers if tier not in ("emulated", "kernels")]
    return run("long", [*targets, "--timeout=3600"], "long", sys.stdout)


def main() -> int:
    tiers = [tier for tier in BUDGET_S if any((ROOT / folder_of(tier)).rglob("test_*.py"))]
    if not any(map(shutil.which, COMPILERS)):
        print(f"--- emulated: left out, it needs one of {', '.join(COMPILERS)}", flush=True)
        tiers.remove("emulated")
    ran: list[Ran] = []
    for lanes in PHASES:
        here = [[tier for tier in lane if tier in tiers] for lane in lanes]
        ran += run_side_by_side([lane for lane in here if lane])
    if sys.argv[1:] == ["--long"]:
        ran.append(run_long(tiers))
    passed, failed, skipped = (
        sum(getattr(tier.counts, kind) for tier in ran) for kind in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 0 if all(tier.good for tier in ran) and passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
