"""What a two-rank world of a tiny model says; alone: over shared memory, into a file.

usage: python tests/roce/said.py FILE

The host of an emulated machine runs this before that boots: so the kernels are compiled too.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from serving import ROOT, TINY, Server, Starter

ENGINE = {
    "backend": "cpu",
    "placement": "inline",
    "threads": 1,
    "kv_capacity": 1024,
    "max_concurrency": 2,
    "rendezvous_timeout_ms": 600_000,
}
"""Where a machine is emulated, a rank imports for a minute before it joins."""
READY_S = 400.0


def make_model(folder: Path) -> Path:
    """A checkpoint of a few hundred kilobytes, with a tokenizer."""
    folder.mkdir()
    for source in (TINY, ROOT / "tests" / "fixtures" / "glm-4.7-bf16"):
        for file in source.iterdir():
            shutil.copy(file, folder / file.name)
    return folder


def answers(server: Server) -> list[list[str]]:
    """Tokens of a greedy answer and of a drawn one."""
    said = []
    for more in ({"temperature": 0}, {"temperature": 0.8, "seed": 5}):
        body = {
            "model": server.model(), "max_tokens": 6, "ignore_eos": True, "logprobs": True,
            "messages": [{"role": "user", "content": "first"}],
        } | more  # fmt: skip
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200, answer
        entries = answer["choices"][0]["logprobs"]["content"]
        said.append([entry["token"] for entry in entries])
    return said


def over_shared_memory(serve: Starter, model: Path) -> list[list[str]]:
    server = serve(model, ready=False, world_size=2, collective="shm", **ENGINE)
    server.wait_ready(READY_S)
    said = answers(server)
    assert server.stop() == 0, server.log
    return said


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        serve = Starter(Path(folder))
        try:
            said = over_shared_memory(serve, make_model(Path(folder) / "model"))
        finally:
            serve.close()
    Path(sys.argv[1]).write_text(json.dumps(said))
