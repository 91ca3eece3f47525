"""Processes that want the same entries of a cache at once: one makes each, the others wait."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels_numba import jit
from kernels_numba.entry_lock import held, hold, let_go

TWO_KERNELS = """
import sys
from numba.core import event
from kernels_numba import jit
from kernels_numba.compile_log import CompileLog

compiled = CompileLog("")
compiled.install()

@jit.kernel()
def inner(x):
    return x * 3

@jit.kernel()
def outer(x):
    return inner(x) + 1

print("begin", flush=True)
sys.stdin.readline()
assert outer(2) == 7
assert outer(2.0) == 7.0
print(compiled._count)
"""


def test_one_process_compiles_and_the_others_load(tmp_path: Path) -> None:
    script = tmp_path / "kernels.py"
    script.write_text(TWO_KERNELS)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
    counts = [int(process.communicate("go\n", timeout=60)[0]) for process in processes]
    # Two functions for two types each: four, however they were dealt out.
    assert sum(counts) == 4


def test_a_lock_that_is_not_let_go_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    lock = hold(tmp_path / "deep" / "entry")
    assert lock is not None
    began = time.monotonic()
    assert hold(tmp_path / "deep" / "entry", wait_s=0.1) is None
    assert 0.1 <= time.monotonic() - began < 5
    let_go(lock)
    with held(tmp_path / "deep" / "entry"):
        assert hold(tmp_path / "deep" / "entry", wait_s=0.0) is None


def test_whoever_dies_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from kernels_numba.entry_lock import hold\n"
        "assert hold(Path(sys.argv[1])) is not None; print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "entry")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert hold(tmp_path / "entry", wait_s=0.0) is None
        process.send_signal(signal.SIGKILL)
    lock = hold(tmp_path / "entry", wait_s=10.0)
    assert lock is not None
    let_go(lock)


def test_a_folder_that_takes_no_lock_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert hold(tmp_path / "file" / "entry") is None


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_an_entry_that_lost_its_end_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, kept: float
) -> None:
    """As files are after the machine stopped while they were written."""
    monkeypatch.setattr(jit.config, "CACHE_DIR", str(tmp_path / "cache"))
    script = tmp_path / "kernels.py"
    script.write_text("from kernels_numba import jit\n@jit.kernel()\ndef f(x):\n    return x * 3\n")
    hits = []
    for _ in range(3):
        f = runpy.run_path(str(script))["f"]
        assert f(2) == 6
        hits.append(sum(f.stats.cache_hits.values()))
        if len(hits) == 1:
            (file,) = (tmp_path / "cache").rglob(f"*{ending}")
            os.truncate(file, int(kept * file.stat().st_size))
    # Made anew by the second, found by the third.
    assert hits == [0, 0, 1]
