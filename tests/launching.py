"""The commands of one deployment over machines of `sshd.py` or `netns.py`, as users call them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from serving import ROOT, TINY, free_ports
from sshd import Machines

from dgpp.cluster.record import start_ticks


class Launcher:
    """The commands of one deployment of two nodes."""

    def __init__(
        self, machines: Machines, folder: Path, name: str = "two nodes; $(touch oops)", **keys: Any
    ) -> None:
        self.machines = machines
        self.port, self.journal, self.metrics = free_ports(3)
        self.config = folder / f"{name}.json"
        engine = {"backend": "scripted", "stats_interval_s": 0, "step_ms": 2}
        self.document = {
            "model": str(TINY),
            "nodes": [machines.first, *machines.hosts],
            "engine": engine | keys,
            "http": {"port": self.port},
            "ports": {"journal": self.journal},
        }
        self.write()
        home = folder / "home"
        home.mkdir(exist_ok=True)
        self.home = home
        self.environment = os.environ | {"HOME": str(home), "PYTHONPATH": str(ROOT)}
        self.environment.pop("DGPP_ENV_FILE", None)

    def write(self) -> None:
        """What `document` says from now on."""
        self.config.write_text(json.dumps(self.document))

    def command(self, verb: str, *flags: str, config: bool = True) -> list[str]:
        given = [str(self.config)] if config else []
        ssh = [] if verb in ("paths",) else ["--ssh-config", str(self.machines.config)]
        return [*self.machines.here, sys.executable, "-m", "dgpp", verb, *given, *ssh, *flags]

    def start(self, verb: str, *flags: str) -> subprocess.Popen[str]:
        """The same without waiting, in a process group of its own."""
        return subprocess.Popen(
            self.command(verb, *flags),
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def run(self, verb: str, *flags: str, config: bool = True) -> tuple[int, str]:
        done = subprocess.run(
            self.command(verb, *flags, config=config),
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    @cache  # noqa: B019 - as long as the test
    def paths(self):
        return json.loads(self.run("paths")[1])

    def folders(self, kind: str) -> list[Path]:
        """Its folders for "logs" or "stage", one on each machine."""
        mine = Path(self.paths()[kind])
        homes = self.machines.homes.values()
        return [mine, *(home / mine.relative_to(self.home) for home in homes)]

    def records(self):
        place = self.paths()
        homes = [self.home, *self.machines.homes.values()]
        for rank, home in zip(place["ranks"], homes, strict=True):
            file = Path(rank["record"].replace(str(self.home), str(home)))
            if file.exists():
                yield json.loads(file.read_text())

    def pids(self):
        return [record["pid"] for record in self.records()]

    def answers(self) -> bool:
        body = {"model": str(TINY), "prompt": "go", "max_tokens": 8, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            return json.loads(response.read())["usage"]["completion_tokens"] == 8

    def kill_all(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def gone(pids) -> bool:
    # Whether remains are cleared away is up to this machine's first process.
    return not any(start_ticks(pid) for pid in pids)
