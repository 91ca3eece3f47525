"""Decode of GLM-4.7's first layers at real widths, beside transformers under torch.compile.

usage: python scripts/bench_peer_hf.py [--batches 1,8,16] [--layers 8] [--context 512] [--once]

Both have random bf16 weights and run in turn on the same device: dgpp, transformers, dgpp again
(not with --once), each in a process of its own. A step is the forward pass with the head and the
choice of the next token. transformers: static cache, torch.compile(mode="reduce-overhead"), experts
by --experts, random ids each step. dgpp: `dgpp bench decode`, the served engine. Needs torch and
transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import Options, ended, need

from dgpp.cli.numbers import most_of

ROOT = Path(__file__).resolve().parents[1]
FACTS = ROOT / "deploy" / "facts" / "glm-4.7.json"
WARM, STEPS, RUNS = 8, 24, 5
ROOM = WARM + RUNS * STEPS


class Peer:
    """transformers' model of the facts, cut to its first layers."""

    def __init__(self, layers: int, context: int, experts: str) -> None:
        import torch
        from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

        facts = json.loads(FACTS.read_text())
        rope = {
            "rope_type": "default",
            "rope_theta": float(facts.pop("rope_theta")),
            "partial_rotary_factor": facts.pop("partial_rotary_factor"),
        }
        for name in ("architectures", "model_type", "rope_scaling", "eos_token_id"):
            facts.pop(name)
        facts |= {"num_hidden_layers": layers, "rope_parameters": rope, "pad_token_id": None}
        self.torch, self.context, self.experts = torch, context, experts
        self.config = Glm4MoeConfig(**facts)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            self.model = Glm4MoeForCausalLM(self.config).eval()
        torch.set_default_dtype(torch.float32)
        for parameter in self.model.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0.0, 0.02)

    def ids(self, *shape: int) -> Any:
        return self.torch.randint(0, self.config.vocab_size, shape, device="cuda")

    def picked(self, call: Any, ids: Any, cache: Any) -> Any:
        out = call(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1)

    def measure(self, batch: int) -> dict[str, float]:
        """ms of a step at `batch`, and the seconds until the first one was ready."""
        from transformers import StaticCache

        torch = self.torch
        torch._dynamo.reset()
        # Prompts are read as generate() does; the mode of the experts counts for decode alone.
        self.model.set_experts_implementation("grouped_mm")
        cache = StaticCache(config=self.config, max_cache_len=self.context + ROOM)
        self.picked(self.model, self.ids(batch, self.context), cache)
        self.model.set_experts_implementation(self.experts)
        compiled = torch.compile(self.model, mode="reduce-overhead", dynamic=False)
        tokens = self.ids(STEPS, batch, 1)

        def step(index: int) -> None:
            torch.compiler.cudagraph_mark_step_begin()
            self.picked(compiled, tokens[index % STEPS].clone(), cache)

        began = time.perf_counter()
        for index in range(WARM):
            step(index)
        torch.cuda.synchronize()
        ready = time.perf_counter() - began
        times = []
        for _ in range(RUNS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for index in range(STEPS):
                step(index)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / STEPS)
        return {
            "batch": batch,
            "ms": statistics.median(times),
            "ms_min": min(times),
            "ms_max": max(times),
            "ready_s": ready,
        }


def peer(options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """transformers' figures as they come, from a process of its own: its memory goes with it."""
    command = [sys.executable, __file__, "--peer", *_same(options), "--experts", options.experts]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if running.returncode:
        # It has said why.
        sys.exit(1)


def own(options: argparse.Namespace) -> dict[int, float]:
    """dgpp's ms by batch."""
    command = [sys.executable, "-m", "dgpp", "bench", "decode", "--json"]
    command += ["--checkpoint", str(FACTS), "--load", "dummy", "--backend", "cuda"]
    command += ["--layers", str(options.layers), "--context", str(options.context)]
    command += ["--batch", _listed(options.batches)]
    measured = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if measured.returncode:
        sys.exit(1)
    found = json.loads(measured.stdout.strip().splitlines()[-1])
    ms = {figure["batch"]: figure["ms"] for figure in found["figures"]}
    said = ", ".join(f"batch {batch} {value:.3f} ms" for batch, value in ms.items())
    print(f"dgpp: {said}", flush=True)
    return ms


def _listed(batches: tuple[int, ...]) -> str:
    return ",".join(map(str, batches))


def _same(options: argparse.Namespace) -> list[str]:
    values = {
        "batches": _listed(options.batches),
        "layers": options.layers,
        "context": options.context,
    }
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def main() -> None:
    parser = Options(description=__doc__)
    parser.add_numbers("--batches", "1,8,16", most_of("engine.max_concurrency"))
    parser.add_number("--layers", 8)
    parser.add_number("--context", 512)
    parser.add_argument("--experts", default="grouped_mm", choices=("grouped_mm", "batched_mm"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", action="store_true", help="dgpp runs before transformers alone")
    parser.add_argument("--peer", action="store_true", help="print transformers' figures alone")
    options = parser.parse_args()
    need("torch", "transformers")
    if options.peer:
        import torch

        with torch.no_grad():
            model = Peer(options.layers, options.context, options.experts)
            for batch in options.batches:
                print(json.dumps(model.measure(batch)), flush=True)
        return
    first = own(options)
    theirs = []
    for other in peer(options):
        theirs.append(other)
        mine = first[int(other["batch"])]
        spread = f"{other['ms_min']:.3f} to {other['ms_max']:.3f}"
        print(
            f"batch {other['batch']}: transformers {other['ms']:.3f} ms ({spread}, ready after "
            f"{other['ready_s']:.0f} s), dgpp {mine:.3f} ms, ratio {other['ms'] / mine:.2f}",
            flush=True,
        )
    last = {} if options.once else own(options)
    if options.json:
        options.json.write_text(json.dumps({"dgpp": [first, last], "transformers": theirs}))


if __name__ == "__main__":
    ended(main)
