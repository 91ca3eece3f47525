"""A real `dgpp run` in a process group of its own, on a free port, for tests that ask for one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty import environment

ROOT = Path(__file__).parents[1]
TINY = ROOT / "tests" / "fixtures" / "tiny-chat"

CALLING_TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
    "<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}"
    "</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}"
    "</tool_call>{% endfor %}{% endfor %}"
)
"""A chat template that knows calls, in GLM's form."""

THINKING_TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls %}"
    "<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}"
    "</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}"
    "</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
)
_CALL = (
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Köln</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
)
THINKING_TEXT = f"Hm, rain?</think>Let me look.\n{_CALL}"
"""What a model says that thinks, talks and calls a tool; `THINKING_TEMPLATE` is its template."""


COMPILING_S = 300
"""What a server on the CPU gets that may be the first to need its kernels."""


FIRST_PORT = 10_000
PAST_PORTS = 32_000
"""Below those that systems give to whoever asks for any, so that no connection takes one that is
free before its server has."""
_turns = count(97 * os.getpid())
"""Tests that run beside one another each have a stretch of their own."""


def free_ports(count: int) -> list[int]:
    """Ports of this host that nobody listens on."""
    found: list[int] = []
    while len(found) < count:
        port = FIRST_PORT + next(_turns) % (PAST_PORTS - FIRST_PORT)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


class Server:
    """One `dgpp run` and what tests ask of it."""

    def __init__(self, config: Path, log: Path, flags: list[str]) -> None:
        self.port, self.journal_port = free_ports(2)
        self.base = f"http://127.0.0.1:{self.port}"
        self._log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "dgpp",
                    "run",
                    str(config),
                    "--port",
                    str(self.port),
                    "--journal-port",
                    str(self.journal_port),
                    "--set",
                    f"paths.log_dir={log.parent / log.stem}",
                    *flags,
                ],
                stdout=stream,
                stderr=stream,
                cwd=ROOT,
                env=os.environ | {"NUMBA_NUM_THREADS": "2"} | environment(log.parent),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_ready(self, timeout_s: float = 60, every_s: float = 0.02) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"exited {self.process.returncode}:\n{self.log}"
            with contextlib.suppress(OSError):
                if self.get("/health")[0] == 200:
                    return
            time.sleep(every_s)
        pytest.fail(f"not ready in {timeout_s} s:\n{self.log}")

    def get(self, path: str) -> tuple[int, bytes]:
        return self.request("GET", path)

    def post(self, path: str, body: dict[str, Any] | bytes) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = self.request("POST", path, data)
        return status, json.loads(answer)

    def request(
        self, method: str, path: str, data: bytes | None = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        request = urllib.request.Request(self.base + path, data, method=method)
        request.add_header("Content-Type", kind)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/metrics")[1])
        return found

    def model(self) -> str:
        """The served model's id."""
        found: str = json.loads(self.get("/health")[1])["model"]
        return found

    def actor(self, role: str, rank: int = 0) -> psutil.Process:
        """The process that plays `role` on `rank`; of ranks beyond the first, "supervisor" too."""
        wanted = ["actors.rank", str(rank)] if role == "supervisor" else [role, str(rank)]
        for child in psutil.Process(self.process.pid).children(recursive=True):
            line = child.cmdline()
            # `python -P -m actors.child ROLE RANK FD` or `python -P -m actors.rank RANK FD`
            if line[-3:-1] == wanted:
                return child
        pytest.fail(f"no process plays {role} of rank {rank}")

    def operations(self, rank: int) -> bytes:
        """What rank `rank` wrote of its operation stream."""
        return (self._log.parent / self._log.stem / f"serve_rank{rank}.ops").read_bytes()

    def family(self) -> list[psutil.Process]:
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def stop(self, timeout_s: float = 45) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


class Starter:
    """`start(model=..., script=[...], **engine keys)`: a server, ready unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: list[Server] = []

    def __call__(
        self,
        model: Path | str = TINY,
        script: list[dict[str, Any]] | None = None,
        *,
        ready: bool = True,
        world_size: int = 1,
        flags: tuple[str, ...] = (),
        **engine: Any,
    ) -> Server:
        number = len(self._servers)
        engine = {"backend": "scripted", "stats_interval_s": 0} | engine
        if script is not None:
            lines = self._folder / f"script{number}.jsonl"
            lines.write_text("\n".join(json.dumps(line) for line in script))
            engine["script"] = str(lines)
        config = self._folder / f"config{number}.json"
        document = {"model": str(model), "world_size": world_size, "engine": engine}
        config.write_text(json.dumps(document))
        server = Server(config, self._folder / f"log{number}.txt", list(flags))
        self._servers.append(server)
        if ready:
            server.wait_ready(COMPILING_S if engine["backend"] == "cpu" else 60)
        return server

    def close(self) -> None:
        for server in self._servers:
            server.close()
