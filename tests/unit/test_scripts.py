"""How the scripts that measure end: what is wrong is one line, and status 1, before a device."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from dgpp.errors import ConfigError, DgppError

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
NAMED = sorted(set(re.findall(r"scripts/(bench_\w+\.py)", PAGE)))


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that scripts share are imported as from their own folder."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", os.environ.get("OPENBLAS_NUM_THREADS", "1"))


def ending(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> str:
    """The line that a script ends with, as Python prints it before status 1."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS / name), *words])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    said = caught.value.code
    assert isinstance(said, str), said
    assert "\n" not in said
    assert said.startswith(f"{name}: error: ")
    return said


@pytest.mark.parametrize("name", NAMED)
def test_an_option_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    said = ending(monkeypatch, name, "--nope")
    # Devices are no options.
    assert ("DEVICE DEVICE" if name == "bench_roce.py" else "; see --help") in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bench_cuda.py --forms FOO", "--forms: 'FOO' is not one of BF16, NVFP4, FP8_BLOCK"),
        ("bench_cuda.py --forms INT4_G64", "--forms: 'INT4_G64' is not one of BF16,"),
        ("bench_cuda.py --rows 1,x", "--rows: expected integers in 1..999999999 separated by "),
        ("bench_step.py --batch 17", "--batch: expected an integer in 1..16, got '17'"),
        ("bench_step.py --batch 1,2", "--batch: expected an integer in 1..16, got '1,2'"),
        ("bench_step.py --context 512,", "--context: expected integers in 1..999999999 "),
        ("bench_step.py --layers 0", "--layers: expected an integer in 1.."),
        ("bench_step.py --model nope", "model: 'nope' is neither a directory nor a name"),
        ("bench_step.py --context 9999999", "--context: 9999999 tokens and 5 after them"),
        ("bench_tier.py --layers x", "--layers: expected an integer in 1.."),
        ("bench_peer_hf.py --batches 1,8,17", "--batches: expected integers in 1..16 "),
        ("bench_ranks.py --worlds 0", "--worlds: expected integers in 1..64 "),
        ("bench_ranks.py --parts sums,decod", "--parts: 'decod' is not one of sums, decode,"),
        ("bench_grammar.py --serve --tokenizer x", "--model: expected a model's directory"),
        ("bench_grammar.py --tokenizer /nope/x", "No such file or directory: '/nope/x'"),
        ("bench_install.py /nope.tar.zst", "No such file or directory: '/nope.tar.zst'"),
        ("bench_host.py latency --model d --tokens 0", "--tokens: expected an integer in 1.."),
        ("bench_roce.py rxe0 rxe1 x", "GID: expected an integer in 0..65535, got 'x'"),
    ],
)
def test_a_value_that_is_not_taken_is_named(
    monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    name, *options = words.split()
    assert said in ending(monkeypatch, name, *options)


@pytest.mark.parametrize(
    "words",
    [
        ["bench_cuda.py"],
        ["bench_step.py", "--layers", "1"],
        ["bench_ranks.py", "--worlds", "1,2", "--parts", "sums"],
        ["bench_tier.py", "--backend", "cuda", "--layers", "1"],
    ],
    ids=lambda words: words[0],
)
def test_without_a_gpu_a_script_says_so(words: list[str]) -> None:
    """As processes, to which no device is shown where there are some."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPTS / words[0]), *words[1:]]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    (said,) = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert said.startswith(f"{words[0]}: error: ")
    assert re.search(r"driver is installed|CuPy is not installed|no CUDA device", said)


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    command_line = runpy.run_path(str(SCRIPTS / "command_line.py"))
    command_line["need"]("json", "pathlib")
    with pytest.raises(ConfigError, match=r"^nope_x is not installed: pip install json nope_x$"):
        command_line["need"]("json", "nope_x")


@pytest.mark.skipif(find_spec("pyverbs") is not None, reason="pyverbs is here")
def test_a_bus_without_its_library_is_one_line() -> None:
    """Its ranks are processes, which would each say it."""
    command = [sys.executable, str(SCRIPTS / "bench_roce.py"), "rxe0", "rxe1"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    (said,) = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert said.startswith("bench_roce.py: error: roce bus: no usable pyverbs ")


@pytest.mark.parametrize(
    ("statuses", "parts", "wrong"),
    [
        ([0, 0], ["sums"], None),
        ([0, -signal.SIGKILL], ["decode", "end"], None),
        # Only the part that kills a rank has one killed, and only the last one.
        ([0, -signal.SIGKILL], ["decode"], "rank 1 of 2 ended with status -9"),
        ([-signal.SIGKILL, 0], ["end"], "rank 0 of 2 ended with status -9"),
        ([0, 1], ["end"], "rank 1 of 2 ended with status 1"),
        ([-signal.SIGKILL], ["end"], "rank 0 of 1 ended with status -9"),
    ],
)
def test_a_rank_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, statuses: list[int], parts: list[str], wrong: str | None
) -> None:
    run_world = runpy.run_path(str(SCRIPTS / "bench_ranks.py"))["run_world"]
    left = iter(statuses)
    monkeypatch.setitem(
        run_world.__globals__,
        "subprocess",
        SimpleNamespace(Popen=lambda *_, **__: SimpleNamespace(wait=lambda: next(left))),
    )
    if wrong is None:
        run_world(len(statuses), parts)
        return
    with pytest.raises(DgppError, match=wrong):
        run_world(len(statuses), parts)


def test_a_server_that_does_not_start_is_quoted() -> None:
    serving = runpy.run_path(str(SCRIPTS / "scripted_server.py"))["serving"]
    said = "the server exited with status 1: dgpp: error: .*model: 'nope'"
    with pytest.raises(ConfigError, match=said), serving("nope", {}):
        raise AssertionError
