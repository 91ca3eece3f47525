"""`scripts/setup.sh` and `dgpp setup` from bare nodes behind real ssh servers to READY."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_hub import FakeHub, model_files
from fetch_site import MODEL, FarSite
from launching import gone
from serving import ROOT, TINY, free_ports
from sshd import Machines

from dgpp.config.site import parse_env


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    found = Machines(tmp_path_factory.mktemp("machines") / "ssh", 1)
    yield found
    found.close()


def checkout(folder: Path) -> Path:
    """A checkout whose virtual environment is made already: the one that runs these tests."""
    (folder / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "scripts/setup.sh", "scripts/lib.sh"):
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    stamp = subprocess.run(
        ["cksum"],
        input=f"{folder}\n".encode() + (folder / "pyproject.toml").read_bytes(),
        capture_output=True,
        check=True,
    )
    for extra in ("", "-cuda"):
        (folder / ".venv" / f".dgpp-installed{extra}").write_bytes(stamp.stdout)
    return folder


class Bare(FarSite):
    """A site of which nothing is known, and a deployment of two nodes for it."""

    def __init__(self, machines: Machines, hub: FakeHub, folder: Path) -> None:
        super().__init__(machines, hub, folder)
        text = {file.name: file.read_bytes() for file in TINY.iterdir()}
        hub.models[MODEL]["main"] = model_files() | text
        del self.told["DGPP_NODES"]
        self.checkout = checkout(folder / "a checkout")
        self.env = self.home / "site of mine.env"
        self.told["DGPP_ENV_FILE"] = str(self.env)
        self.port, journal = free_ports(2)
        self.config = self.home / "two nodes.json"
        engine = {"backend": "scripted", "stats_interval_s": 0, "placement": "inline"}
        document = {"model": MODEL, "world_size": 2, "engine": engine, "http": {"port": self.port}}
        self.config.write_text(json.dumps(document))
        self.told["DGPP_JOURNAL_PORT"] = str(journal)

    def setup(self, *words: str, answers: str | None = None) -> tuple[int, str]:
        rest = {n: v for n, v in os.environ.items() if not n.startswith(("DGPP_", "HF_", "XDG_"))}
        command = [str(self.checkout / "scripts" / "setup.sh"), *words]
        done = subprocess.run(
            [*command, "--ssh-config", str(self.machines.config)],
            env=rest | self.told | {"PYTHONPATH": str(ROOT)},
            cwd=self.home,
            input=answers,
            stdin=subprocess.DEVNULL if answers is None else None,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    @property
    def known(self) -> dict[str, str]:
        return parse_env(self.env.read_text(), "site")

    def end(self) -> None:
        for record in self.home.parent.rglob("rank*.json"):
            with contextlib.suppress(ProcessLookupError, ValueError, KeyError):
                os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def bare(machines, hub, tmp_path, monkeypatch):
    found = Bare(machines, hub, tmp_path)
    yield found
    found.end()


def test_unattended_from_nothing_to_ready_and_again(bare, machines, hub):
    nodes = f"127.0.0.1 {machines.hosts[0]}"
    status, said = bare.setup(
        "--yes", "--nodes", nodes, "--deployment", str(bare.config), "--start"
    )
    assert status == 0, said
    assert f"READY — http://127.0.0.1:{bare.port}/v1" in said
    assert bare.snapshot(bare.peers[0]) == bare.wanted()
    assert "no RoCE device with an address on" in said
    sent = dict(hub.sent)
    # A second run asks nothing and does nothing twice.
    known = bare.known
    status, said = bare.setup("--start")
    assert status == 0, said
    assert f"{bare.config}: serves already" in said
    assert (bare.known, hub.sent) == (known, sent)
    status, said = bare.run("down")
    assert status == 0, said
    assert "op streams: identical across 2 ranks" in said
    assert not list(bare.home.rglob("oops"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_a_word(bare, number):
    with subprocess.Popen(
        [sys.executable, "-m", "dgpp", "setup"],
        env=os.environ | bare.told | {"PYTHONPATH": str(ROOT)},
        cwd=bare.home,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as asking:
        said = b""
        while b"Machines, this one first" not in said:
            said += os.read(asking.stderr.fileno(), 4096) or pytest.fail(said.decode())
        asking.send_signal(number)
        said = asking.stderr.read().decode()
    assert asking.returncode == 128 + number
    assert f"stopped by {number.name}; the same command goes on from there" in said


INSTALL = """
import sys
from pathlib import Path
from dgpp.cluster.bring import prepare
from dgpp.cluster.node import RemoteNode
prepare(RemoteNode(1, sys.argv[1], ["dgpp"], ssh=["ssh", "-F", sys.argv[2]]), Path(sys.argv[3]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_it_installs_on_a_node_ends_with_it(machines, tmp_path, number):
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "setup.sh"
    script.write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\necho $$ >pid.new; mv pid.new pid\nexec sleep 60\n'
    )
    script.chmod(0o755)
    words = [machines.hosts[0], str(machines.config), str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", INSTALL, *words], env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as installing:
        file, end = script.with_name("pid"), time.monotonic() + 20
        while not file.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        installing.send_signal(number)
    while not gone([int(file.read_text())]):
        assert time.monotonic() < end
        time.sleep(0.01)
