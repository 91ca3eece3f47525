"""The demo over HTTP from the GPU: greedy text leaves the reference's only between near equals."""

from __future__ import annotations

import json
import os

import pytest

for needed in ("aiohttp", "psutil", "uvloop"):
    pytest.importorskip(needed, reason=f"the server needs {needed}, which is not installed")

from serving import ROOT, Starter  # noqa: E402 - after the check that it can load

from dgpp.checkpoint.demo import DEMO_MODEL, LAYOUT_VERSION  # noqa: E402
from dgpp.checkpoint.demo_store import is_whole  # noqa: E402
from dgpp.checkpoint.resolve import models_directory  # noqa: E402
from dgpp.text.codec import TextCodec  # noqa: E402

REFERENCE = json.loads((ROOT / "tests/parity/data/demo_greedy.json").read_text())
NOISE = REFERENCE["hf_bf16_vs_fp32"]["mean_abs"]


@pytest.fixture(scope="module")
def demo():
    folder = models_directory(os.environ) / DEMO_MODEL
    if not is_whole(folder, LAYOUT_VERSION, verify=False):
        pytest.skip(f"the demo model is not in {folder}: dgpp fetch demo puts it there")
    return folder


@pytest.fixture(scope="module")
def server(cuda, demo, tmp_path_factory):
    starter = Starter(tmp_path_factory.mktemp("servers"))
    yield starter(model=demo, backend="cuda", max_concurrency=4, kv_capacity=4096)
    starter.close()


def answer(server, case):
    """The text of the case's tokens, from the endpoint that its prompt is for."""
    body = {
        "model": server.model(),
        "max_tokens": REFERENCE["tokens"],
        "temperature": 0,
        "ignore_eos": True,
    }
    if "text" in case:
        status, found = server.post("/v1/completions", body | {"prompt": case["text"]})
        assert status == 200, found
        return found["choices"][0]["text"]
    status, found = server.post("/v1/chat/completions", body | {"messages": case["messages"]})
    assert status == 200, found
    return found["choices"][0]["message"]["content"]


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: case["name"])
def test_greedy_text_on_cuda(server, demo, case) -> None:
    text = answer(server, case)
    tokenizer = TextCodec.load(demo).tokenizer
    # The longest head of the reference's tokens whose text the answer has.
    kept = max(
        n for n in range(len(case["ids"]) + 1) if text.startswith(tokenizer.decode(case["ids"][:n]))
    )
    print(f"{case['name']}: {kept} of {len(case['ids'])} tokens")
    # A token that shows nothing may hide where the answer left, or one that goes on alike.
    near = case["margins"][max(0, kept - 1) : kept + 1]
    assert kept == len(case["ids"]) or min(near) <= NOISE, text
