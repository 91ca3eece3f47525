"""What the CUDA kernels reach on this GPU, beside a copy and a product of the same run.

usage: python scripts/bench_cuda.py [--parts linear,decode,nvfp4,prefill] [--layers 8] [--json FILE]

linear   projections alone: matrices that exceed the L2 in rotation, replayed as one CUDA graph
decode   GLM-4.7's real dimensions with fewer layers and random weights: a step at 512 tokens of
         context, batch 1, 8, 16, eagerly with selection, and its forward pass replayed as a graph
nvfp4    the same at batch 1 with NVFP4 weights
prefill  one prompt of 2,048 and of 8,192 tokens, eagerly
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import msgspec
import numpy as np

from dgpp.engine.model_engine import DummyModel, ModelEngine
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.sample.params import SamplingParams
from dgpp.sample.tables import allocate_tables
from dgpp.sched.plan import DecodeRow, Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids
from kernels_numba.gpu.backend import CudaBackend
from kernels_numba.weights import Form

SHAPES = ((17408, 5120), (5120, 17408), (5120, 6144), (248320, 5120), (1536, 5120))
L2_TIMES = 6 * 60 << 20
CONTEXT = 512
GLM = {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "hidden_act": "silu",
    "max_position_embeddings": 202752,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "rope_theta": 1000000,
    "vocab_size": 151552,
    "hidden_size": 5120,
    "first_k_dense_replace": 3,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "num_experts_per_tok": 8,
}
NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "config_groups": {},
    "ignore": ["lm_head", "*self_attn*"],
}


def recorded(backend: CudaBackend, calls: list[Callable[[], None]]) -> Callable[[int], float]:
    """Seconds per replay of what `calls` enqueue, recorded as one graph."""
    stream = backend._stream
    with stream:
        for call in calls:
            call()
        stream.synchronize()
        stream.begin_capture()
        for call in calls:
            call()
        graph = stream.end_capture()

    def replay(times: int) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        graph.launch(stream)
        start.record(stream)
        for _ in range(times):
            graph.launch(stream)
        end.record(stream)
        end.synchronize()
        return cupy.cuda.get_elapsed_time(start, end) / 1e3 / times

    return replay


def bench_linear(copy: float) -> list[dict[str, Any]]:
    backend = CudaBackend(64)
    results = []
    for form in (Form.BF16, Form.NVFP4):
        for n, k in SHAPES:
            one = backend.dummy(form, n, k, 1)
            number = max(1, -(-L2_TIMES // one.nbytes))
            matrices = [one, *(backend.dummy(form, n, k, seed) for seed in range(2, number + 1))]
            x, out = backend.tensor(k), backend.tensor(n, wide=True)
            x.set(np.random.default_rng(0).standard_normal((64, k)).astype(np.float32))
            rows = backend.rows(1, 1)
            for count in (1, 8, 16):
                rows.count = count
                backend.begin(rows)
                calls = [partial(backend.linear, rows, x, matrix, out) for matrix in matrices]
                replay = recorded(backend, calls)
                seconds = statistics.median(replay(20) for _ in range(5)) / len(matrices)
                rate = one.nbytes / seconds
                results.append(
                    {
                        "part": "linear",
                        "form": form.name,
                        "shape": f"{n}x{k}",
                        "rows": count,
                        "us": seconds * 1e6,
                        "copy": rate / copy,
                    }
                )
                show(results[-1])
    return results


def build(layers: int, slots: int, tokens: int, chunk: int, *, quantised: bool) -> ModelEngine:
    config = shape(layers, quantised=quantised)
    per_slot = -(-tokens // 64) * 64
    plan = plan_memory(config, MemorySettings(slots=slots, kv_capacity=slots * per_slot))
    limits = msgspec.structs.replace(plan.limits, chunk_limit=chunk)
    engine = ModelEngine(DummyModel(config), limits, 1, backend="cuda")
    engine.warm_up()
    return engine


def open_slots(engine: ModelEngine, batch: int, tokens: int) -> None:
    limits = engine.limits
    each = limits.blocks // limits.slots
    rng = np.random.default_rng(0)
    opens = tuple(
        Open(
            slot,
            Submit(
                f"bench-{slot}",
                pack_ids(rng.integers(0, limits.vocab_size, tokens)),
                1,
                SamplingParams(temperature=0.0),
            ),
            tuple(range(slot * each, (slot + 1) * each)),
        )
        for slot in range(batch)
    )
    engine.forward(Plan(0, closes=tuple(range(batch)), opens=opens))


def read_prompt(engine: ModelEngine, slot: int, tokens: int) -> None:
    for start in range(0, tokens, engine.limits.chunk_limit):
        count = min(engine.limits.chunk_limit, tokens - start)
        chunk = PrefillChunk(slot, start, count, last=start + count == tokens)
        engine.forward(Plan(1, prefills=(chunk,)))


class Chosen:
    """Counts the distinct experts that each MoE layer read."""

    def __init__(self, engine: ModelEngine) -> None:
        self._backend = engine.backend
        self.experts: list[int] = []

    def hidden(self, index: int, rows: Any, x: Any) -> None:
        """Nothing is kept."""

    def routed(self, layer: int, rows: Any, routes: Any) -> None:
        ids, _ = self._backend.read_routes(routes, rows.count)
        self.experts.append(len(np.unique(ids)))


def shape(layers: int, *, quantised: bool) -> dict[str, Any]:
    config = {**GLM, "num_hidden_layers": layers}
    return {**config, "quantization_config": NVFP4} if quantised else config


def step_bytes(config: dict[str, Any], batch: int, experts: list[int]) -> float:
    """Weights but the embedding and experts not chosen, and the cached keys and values."""
    layers = config["num_hidden_layers"]
    plan = plan_memory(config, MemorySettings())
    sizes = {i.name: i.bytes for i in plan.items if i.name.startswith("weights: ")}
    sizes.pop("weights: embedding")
    sizes["weights: experts"] *= sum(experts) / (160 * len(experts))
    return sum(sizes.values()) + batch * (CONTEXT + 1) * layers * 2 * 8 * 128 * 2


def bench_decode(copy: float, layers: int, *, quantised: bool) -> list[dict[str, Any]]:
    batches = (1,) if quantised else (1, 8, 16)
    engine = build(layers, max(batches), CONTEXT + 64, CONTEXT, quantised=quantised)
    tables = allocate_tables(engine.limits.slots, engine.limits.vocab_size, 1)
    results = []
    open_slots(engine, max(batches), CONTEXT)
    for slot in range(max(batches)):
        read_prompt(engine, slot, CONTEXT)
    for batch in batches:
        decodes = tuple(DecodeRow(slot, CONTEXT, 5 + 7 * slot) for slot in range(batch))
        chosen = Chosen(engine)
        engine.observer = chosen
        engine.forward(Plan(2, decodes=decodes))
        engine.observer = None
        times = []
        for _ in range(30):
            began = time.perf_counter()
            engine.forward(Plan(2, decodes=decodes))
            engine.select(tables)
            times.append(time.perf_counter() - began)

        index = list(range(batch))
        replay = recorded(
            engine.backend,
            [
                partial(engine.model.forward, engine.rows),
                partial(engine.model.logits, index, engine._logits),
            ],
        )
        seconds = statistics.median(replay(20) for _ in range(5))
        size = step_bytes(shape(layers, quantised=quantised), batch, chosen.experts)
        results.append(
            {
                "part": "nvfp4" if quantised else "decode",
                "batch": batch,
                "experts": statistics.mean(chosen.experts),
                "GB": size / 1e9,
                "graph_ms": seconds * 1e3,
                "copy": size / seconds / copy,
                "eager_ms": statistics.median(times) * 1e3,
            }
        )
        show(results[-1])
    return results


def bench_prefill(layers: int, product: float) -> list[dict[str, Any]]:
    engine = build(layers, 1, 8192 + 64, 2048, quantised=False)
    dense, moe = 3 * 3 * 5120 * 12288, (layers - 3) * (9 * 3 * 5120 * 1536 + 160 * 5120)
    parameters = dense + moe + layers * (5120 * (96 + 16) * 128 + 5120 * 96 * 128)
    results = []
    for tokens in (2048, 8192):
        times = []
        for _ in range(4):
            open_slots(engine, 1, tokens)
            engine.backend._stream.synchronize()
            began = time.perf_counter()
            read_prompt(engine, 0, tokens)
            engine.backend._stream.synchronize()
            times.append(time.perf_counter() - began)
        seconds = statistics.median(times[1:])
        rate = 2 * parameters * tokens / seconds
        results.append(
            {
                "part": "prefill",
                "tokens": tokens,
                "ms": seconds * 1e3,
                "tflops": rate / 1e12,
                "gemm": rate / product,
            }
        )
        show(results[-1])
    return results


def product_rate() -> float:
    """FLOP per second of a bf16 2048 × 5120 × 17408 product by PyTorch; 0 without it."""
    try:
        import torch
    except ImportError:
        return 0.0
    a = torch.randn(2048, 5120, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(17408, 5120, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        a @ b.T
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(50):
        a @ b.T
    end.record()
    torch.cuda.synchronize()
    return 50 * 2 * 2048 * 5120 * 17408 / (start.elapsed_time(end) / 1e3)


def show(result: dict[str, Any]) -> None:
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items())
    print("  ".join(shown), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="linear,decode,nvfp4,prefill")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts = options.parts.split(",")
    copy = CudaBackend(1).copy_bandwidth(4 << 30, 10)
    print(f"device copy {copy / 1e12:.3f} TB/s", flush=True)
    results: list[dict[str, Any]] = [{"part": "copy", "bytes_per_second": copy}]
    if "linear" in parts:
        results += bench_linear(copy)
    for part in ("decode", "nvfp4"):
        if part in parts:
            results += bench_decode(copy, options.layers, quantised=part == "nvfp4")
            cupy.get_default_memory_pool().free_all_blocks()
    if "prefill" in parts:
        product = product_rate()
        print(f"bf16 product {product / 1e12:.0f} TFLOP/s", flush=True)
        results += bench_prefill(options.layers, product or float("nan"))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
