"""A server of its own for measurements over HTTP."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgpp.errors import ConfigError, EngineStalledError

READY_S = 300


@contextlib.contextmanager
def serving(model: str, engine: dict[str, Any]) -> Iterator[int]:
    """`dgpp run` on a free port; the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.json"
        config.write_text(json.dumps({"model": model, "world_size": 1, "engine": engine}))
        said = Path(folder) / "stderr"
        with said.open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "dgpp", "run", str(config), "--port", str(port)], stderr=log
            )
        try:
            _wait_ready(port, server, said)
            yield port
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def scripted(streams: int, step_ms: float) -> dict[str, Any]:
    """Settings of the engine that plays a script, for so many streams at once."""
    return {
        "backend": "scripted",
        "step_ms": step_ms,
        "max_concurrency": streams,
        "kv_capacity": streams * 4096,
        "stats_interval_s": 0,
    }


def _wait_ready(port: int, server: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            last = "".join(said.read_text(errors="replace").splitlines()[-1:])
            raise ConfigError(f"the server exited with status {server.returncode}: {last}")
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise EngineStalledError(f"the server was not ready in {READY_S} s")
