"""What a model shared out to two ranks does in service, on devices that are real or emulated."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from serving import ROOT, TINY, Server

from dgpp.check.expected import stated_tolerances

FIXTURE = ROOT / "tests" / "fixtures" / "glm-4.7-bf16"
LAYERS = 5
CHAT = "/v1/chat/completions"
END_S = 3.0


def margin() -> float:
    """Logits nearer to one another than this may change places between one rank and two: four times
    what the reference's own bf16 run is off by on average."""
    noise = stated_tolerances(FIXTURE / "expected.npz").noise
    assert noise is not None
    return 4 * noise.mean_abs


def model_in(folder: Path) -> Path:
    """The fixture's weights beside a tokenizer."""
    for source in (TINY, FIXTURE):
        for file in source.iterdir():
            shutil.copy(file, folder / file.name)
    return folder


def ask(server: Server, text: str, tokens: int, **more: Any) -> list[dict[str, Any]]:
    """The answer's tokens with their logprobs, each beside the next best."""
    body = {
        "model": server.model(),
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
    }
    status, answer = server.post(CHAT, body | more)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == tokens
    found: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
    assert found
    return found


def answers(server: Server, texts: list[str], tokens: int) -> list[list[dict[str, Any]]]:
    """Those of all `texts` at once."""
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(partial(ask, server, tokens=tokens), texts))


def require_near(world: list[dict[str, Any]], alone: list[dict[str, Any]]) -> bool:
    """Two ranks' answer is one's as long as no two logits are nearer than `margin`; whether it is
    to its end."""
    for mine, theirs in zip(world, alone, strict=False):
        best, second = (entry["logprob"] for entry in theirs["top_logprobs"])
        if mine["token"] != theirs["token"]:
            assert best - second <= margin(), (mine, theirs)
            return False
        assert abs(mine["logprob"] - theirs["logprob"]) <= margin(), (mine, theirs)
    assert len(world) == len(alone)
    return True


def require_counted(server: Server, path: str = "p2p") -> None:
    """Each decode step sums twice a layer, replayed or not, and gathers its candidates."""
    metrics = server.metrics()
    done, steps = metrics["collectives"], metrics["scheduler"]["decode_steps"]
    assert done["all_reduces"] >= 2 * LAYERS * (steps - 1) > 0
    assert done["all_gathers"] >= steps - 1
    assert done["bytes"] > 4 * 64 * done["all_reduces"]
    told = server.get("/metrics/prometheus")[1].decode()
    total = done["all_reduces"] + done["all_gathers"] + done["barriers"]
    assert done["path"] == path
    labels = f'model_name="{server.model()}",path="{path}",rank="0"'
    assert f"dgpp_rank_collectives_total{{{labels}}} {total}" in told


def require_one_stream_of_operations(server: Server) -> None:
    """It ends in order, and its ranks did the same."""
    assert server.stop() == 0
    assert "op streams of 2 ranks: identical" in server.log
    assert server.operations(0) == server.operations(1) != b""


def require_named_end(
    server: Server, who: tuple[str, int], fault: signal.Signals, tokens: int, slack_s: float
) -> None:
    """SIGKILL or SIGSTOP of the process that plays a role on a rank, amid an answer, ends every
    rank, named, within END_S and `slack_s`."""
    role, rank = who
    family = server.family()
    asking = threading.Thread(target=lambda: server.post(CHAT, {
        "model": server.model(), "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": tokens, "ignore_eos": True,
    }))  # fmt: skip
    asking.start()
    while not server.metrics()["scheduler"]["decode_steps"]:
        time.sleep(0.02)
    began = time.monotonic()
    os.kill(server.actor(role, rank).pid, fault)
    assert server.process.wait(20) == 2, server.log
    assert time.monotonic() - began < END_S + slack_s, server.log
    asking.join()
    left = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not left
    if fault is signal.SIGKILL:
        assert f"{role} of rank {rank} was killed by signal 9" in server.log
    else:
        # Its supervisor sees it, and so does the rank that waits for it in a sum.
        told = rf"{role} of rank {rank} stopped responding|rank {rank} \(.*\) is dead or stopped"
        assert re.search(told, server.log), server.log
