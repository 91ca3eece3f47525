"""What a mapped n-gram table costs a decode step, beside the same table in memory.

Two models of Qwen3.8-Flash-Next's widths (two layers, few experts, random weights) differ in where
their table lies: in memory, or in a file whose pages the system holds. Steps of both take turns on
the same random tokens; every step looks other rows up. Printed are the medians of both, and of the
paired ratios: of time, and of processor time, which other programs disturb less (with one thread).

    python scripts/bench_ngram.py [--rows 1000000] [--steps 200] [--threads N]
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

# BLAS and Numba settle their threads when NumPy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from command_line import Options, ended

from dgpp.models.dummy_weights import DummyWeights
from dgpp.models.layers.extended import extended
from dgpp.models.plan import BLOCK_TOKENS
from dgpp.models.qwen4_exp.config import parse
from dgpp.models.qwen4_exp.model import Qwen4ExpModel
from dgpp.models.tables import Table, Tables
from dgpp.state.pools import StatePools
from kernels_numba.backend import Rows
from kernels_numba.cpu.backend import CpuBackend
from kernels_numba.weights import Form, Part

FACTS = Path(__file__).parents[1] / "deploy" / "facts" / "qwen3.8-flash-next-fp8.json"
POSITIONS = 4096
SLOTS = 1


class TableInFile(DummyWeights):
    """Random weights, but for the table's, which are the bytes of a file."""

    def __init__(self, backend: CpuBackend, codes: np.ndarray, *, mapped: bool) -> None:
        super().__init__(backend, tables=Tables(mapped=mapped), seed=1)
        self._codes = codes
        self._extended = extended(backend)

    def table(self, item: str, table: Table) -> Any:
        scale = np.broadcast_to(np.float32(2e-4), (table.rows, 1))
        part = Part(Form.FP8_CHANNEL, self._codes[: table.rows], scale)
        return self._extended.table([part], mapped=self.tables.mapped)


class Model:
    """A model that decodes one request, token by token."""

    def __init__(self, config: Any, codes: np.ndarray, threads: int, *, mapped: bool) -> None:
        self.backend = CpuBackend(SLOTS, threads)
        self.model = Qwen4ExpModel(
            config, TableInFile(self.backend, codes, mapped=mapped), drafts=False
        )
        blocks = POSITIONS // BLOCK_TOKENS
        pools = StatePools(
            self.model.state, self.backend, slots=SLOTS, blocks=blocks, block_tokens=BLOCK_TOKENS
        )
        self.model.prepare(self.backend, pools, POSITIONS)
        self.rows: Rows = self.backend.rows(SLOTS, blocks)
        self.rows.tables[0] = np.arange(blocks)
        self.rows.count = 1
        self.logits = self.backend.logits(1, config.vocab_size)

    def step(self, position: int, token: int) -> tuple[float, float]:
        """Seconds of one decode step, logits included, and of processor time."""
        rows = self.rows
        rows.positions[0], rows.tokens[0] = position, token
        begun = time.perf_counter(), time.process_time()
        self.backend.begin(rows)
        self.model.forward(rows)
        self.model.logits([0], self.logits)
        return time.perf_counter() - begun[0], time.process_time() - begun[1]


def config_of(rows: int) -> Any:
    """The released widths, two layers of 16 experts, a small vocabulary, at least `rows` rows."""
    config = json.loads(FACTS.read_text("utf-8"))
    text = config["text_config"]
    text |= {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention"] * 2,
        "num_experts": 16,
        "vocab_size": 8192,
        "eos_token_id": 1,
        "bos_token_id": 1,
        "ngram_vocab_size_base": rows // 16,
        "max_position_embeddings": POSITIONS,
    }
    return parse(config)


def measure(rows: int, steps: int, threads: int, directory: Path) -> list[str]:
    """The lines to print."""
    config = config_of(rows)
    rng = np.random.default_rng(0)
    shape = (rows + (1 << 20), config.ple_embed_dim // 16)
    path = directory / "table"
    path.write_bytes(rng.integers(0, 0x7F, shape, np.uint8).tobytes())
    codes = np.memmap(path, np.uint8, "r", shape=shape)
    # The system holds the file's pages from here on.
    int(codes[:, ::64].sum(dtype=np.int64))
    models = {
        name: Model(config, codes, threads, mapped=name == "mapped")
        for name in ("resident", "mapped")
    }
    tokens = rng.integers(2, config.vocab_size, steps + 8).tolist()
    for position in range(8):
        for model in models.values():
            model.step(position, tokens[position])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for position in range(8, steps + 8):
        order = list(models) if position % 2 else list(models)[::-1]
        for name in order:
            times[name].append(models[name].step(position, tokens[position]))
    lines = [f"{rows} rows of {shape[1]} values, {steps} decode steps each, {threads} threads"]
    for place, kind in enumerate(("time", "processor time")):
        held = {name: [step[place] for step in told] for name, told in times.items()}
        ratios = [b / a for a, b in zip(held["resident"], held["mapped"], strict=True)]
        told = ", ".join(f"{name} {1e3 * statistics.median(held[name]):.3f} ms" for name in models)
        lines.append(f"{kind}: {told}; mapped / resident {statistics.median(ratios):.4f}")
    return lines


def main() -> None:
    parser = Options(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_number("--rows", 1_000_000)
    parser.add_number("--steps", 200)
    cores = len(os.sched_getaffinity(0))
    parser.add_number("--threads", cores, cores)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dgpp-ngram-") as directory:
        print("\n".join(measure(told.rows, told.steps, told.threads, Path(directory))))


if __name__ == "__main__":
    ended(main)
