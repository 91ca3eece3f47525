"""Run the CPU tests tier by tier, each within its time budget, and close with one summary line.

usage: python scripts/run_tiers.py [--long]

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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
BUDGET_S = {"unit": 240, "parity": 120, "sim": 90, "e2e": 300, "compile": 180, "emulated": 180}
COMPILERS = ("g++", "clang++")
EMULATED = {"DGPP_TEST_EMULATED": "1"}
_FIXTURE = "tests/gpu/test_fixtures.py::test_a_fixture_is_as_near_as_bf16_allows"
MORE = {
    "emulated": [
        "tests/unit/kernels",
        "--ignore=tests/unit/kernels/test_panels.py",
        f"{_FIXTURE}[glm-4.7-bf16-per-layer]",
        f"{_FIXTURE}[glm-4.7-nvfp4-per-layer]",
        "tests/parity/test_exactness.py::test_decode_equals_prefill_bit_for_bit",
    ]
}
"""What a tier runs beside its own folder."""
NO_TESTS_COLLECTED = 5
OVERLOAD = 0.2


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


def run(name: str, targets: Iterable[str], marker: str, budget_s: float, counts: Counts) -> bool:
    """One pytest run. True when its tests passed in time."""
    environment = os.environ | (EMULATED if name == "emulated" else {})
    print(f"--- {name}", flush=True)
    start, busy, own = time.monotonic(), busy_s(), own_s()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", marker, f"--junit-xml={report}"]
        ended = subprocess.run([*command, *targets], cwd=ROOT, env=environment, check=False)
        status = ended.returncode
        counts.add(report)
    wall = time.monotonic() - start
    others = max(0.0, busy_s() - busy - (own_s() - own)) / (wall * (os.cpu_count() or 1))
    print(f"--- {name}: {wall:.1f} s of {budget_s:.0f} s, {others:.0%} of the machine to others")
    if wall > budget_s:
        print(f"--- {name}: over budget" + (", on an overloaded machine" * (others > OVERLOAD)))
    in_time = wall <= budget_s or others > OVERLOAD
    return status in (0, NO_TESTS_COLLECTED) and in_time


def main() -> int:
    long = sys.argv[1:] == ["--long"]
    tests = ROOT / "tests"
    counts, good = Counts(), True
    tiers = [tier for tier in BUDGET_S if any((tests / tier).rglob("test_*.py"))]
    for tier in [tier for tier in BUDGET_S if tier not in tiers]:
        print(f"--- {tier}: no tests", flush=True)
    if not any(map(shutil.which, COMPILERS)):
        print(f"--- emulated: left out, it needs one of {', '.join(COMPILERS)}", flush=True)
        tiers.remove("emulated")
    for tier in tiers:
        marker = "not long and not bench"
        targets = [f"tests/{tier}", *MORE.get(tier, [])]
        good &= run(tier, targets, marker, BUDGET_S[tier], counts)
    if long:
        targets = [f"tests/{tier}" for tier in tiers if tier != "emulated"]
        good &= run("long", [*targets, "--timeout=3600"], "long", float("inf"), counts)
    print(f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped", flush=True)
    return 0 if good and counts.passed and not counts.failed else 1


if __name__ == "__main__":
    sys.exit(main())
