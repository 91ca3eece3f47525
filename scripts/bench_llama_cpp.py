"""Decode and prefill of the demo beside llama.cpp on the same weights, alternately in one run.

    pip install xllamacpp gguf
    python scripts/bench_llama_cpp.py [--rounds 5] [--json]

Re-emits the demo checkpoint as a BF16 GGUF, starts `dgpp run deploy/demo.json` and llama.cpp's
own server (in this process), and asks each in turn for the same work: 128 tokens after a short
prompt, and one token after 512. Figures are medians over the rounds; dgpp's include HTTP and all
its processes, llama.cpp's are its engine's own timings. The bandwidth is read in the same rounds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from command_line import Options, ended, need

ROOT = Path(__file__).resolve().parents[1]
MODEL = "dgpp/demo"
DECODE_TOKENS = 128
PREFILL_TOKENS = 512
READ_BYTES = 256 << 20


def demo_directory() -> Path:
    override = os.environ.get("DGPP_MODELS_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(override) if override else cache / "dgpp" / "models") / MODEL


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The checkpoint's bf16 tensors as uint16."""
    data = np.memmap(path, np.uint8, "r")
    size = int.from_bytes(data[:8].tobytes(), "little")
    head = json.loads(data[8 : 8 + size].tobytes())
    tensors = {}
    for name, entry in head.items():
        if name != "__metadata__":
            low, high = entry["data_offsets"]
            raw = np.asarray(data[8 + size + low : 8 + size + high])
            tensors[name] = raw.view(np.uint16).reshape(entry["shape"])
    return tensors


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Half-split rotary rows in the pairwise order that llama.cpp rotates."""
    shape = weight.shape
    return weight.reshape(heads, 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(source: Path, target: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    from gguf import GGUFWriter

    writer = GGUFWriter(target, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_rope_freq_base(theta)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, json.loads((source / "tokenizer.json").read_text()))
    for name, tensor in read_tensors(source / "model.safetensors").items():
        add_tensor(writer, name, tensor, heads, kv_heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: Any, name: str, tensor: np.ndarray, heads: int, kv_heads: int) -> None:
    if name == "model.embed_tokens.weight":
        name = "token_embd.weight"
    elif name == "model.norm.weight":
        name = "output_norm.weight"
    else:
        _, _, layer, *parts, _ = name.split(".")
        kind = ".".join(parts)
        if kind == "self_attn.q_proj":
            tensor = interleaved(tensor, heads)
        if kind == "self_attn.k_proj":
            tensor = interleaved(tensor, kv_heads)
        name = f"blk.{layer}.{NAMES[kind]}.weight"
    if tensor.ndim == 1:
        writer.add_tensor(name, (tensor.astype(np.uint32) << 16).view(np.float32))
        return
    from gguf import GGMLQuantizationType

    raw = np.ascontiguousarray(tensor).view(np.uint8)
    writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.BF16)


def add_tokenizer(writer: Any, spec: dict[str, Any]) -> None:
    tokens = {i: t for t, i in spec["model"]["vocab"].items()}
    special = {t["id"] for t in spec["added_tokens"]}
    tokens |= {t["id"]: t["content"] for t in spec["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([tokens[i] for i in range(len(tokens))])
    writer.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


class Peer:
    """llama.cpp's server, in this process."""

    def __init__(self, model: Path, threads: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx = 2048
        params.n_parallel = 1
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.cache_prompt = False
        self._server = xllamacpp.Server(params)

    def ask(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """llama.cpp's own timings of one request."""
        answer = self._server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        return answer["timings"]


class Dgpp:
    """`dgpp run deploy/demo.json`, asked over HTTP."""

    def __init__(self, threads: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dgpp", "run", str(ROOT / "deploy" / "demo.json")),
                *("--port", str(self._port), "--threads", str(threads), "--stats-interval-s", "0"),
            ],
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=1):
                    return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("dgpp was not ready in 120 s")

    def ask(self, prompt: list[int], tokens: int) -> tuple[float, float]:
        """Seconds to the first event, and from the first to the last one."""
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        began = time.perf_counter()
        times = []
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
        return times[0] - began, times[-1] - times[0]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)


def bandwidth_reader(threads: int) -> Callable[[], float]:
    """A measurement of GB/s: a streaming read of 256 MiB by dgpp's own kernel threads."""
    from kernels_numba.cpu.bandwidth import reader
    from kernels_numba.jit import set_num_threads

    set_num_threads(threads)
    read = reader(READ_BYTES, threads)
    read()

    def measure() -> float:
        began = time.perf_counter()
        return read() / (time.perf_counter() - began) / 1e9

    return measure


def main() -> None:
    parser = Options(description=(__doc__ or "").splitlines()[0])
    parser.add_number("--rounds", 5)
    cores = len(os.sched_getaffinity(0))
    parser.add_number("--threads", cores, cores)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    need("xllamacpp", "gguf")
    source = demo_directory()
    weight_bytes = sum(t.nbytes for t in read_tensors(source / "model.safetensors").values())
    short = list(range(100, 116))
    long = [100 + i % 2000 for i in range(PREFILL_TOKENS)]
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "demo-bf16.gguf"
        write_gguf(source, model)
        measure = bandwidth_reader(options.threads)
        peer, own = Peer(model, options.threads), Dgpp(options.threads)
        try:
            for round_ in range(-1, options.rounds):
                bandwidth = statistics.median(measure() for _ in range(5))
                _, streamed = own.ask(short, DECODE_TOKENS)
                theirs = peer.ask(short, DECODE_TOKENS)
                first, _ = own.ask(long, 1)
                theirs_long = peer.ask(long, 1)
                if round_ < 0:
                    continue
                note("read_gb_s", bandwidth)
                note("dgpp_ms_per_token", streamed * 1e3 / (DECODE_TOKENS - 1))
                note("llama_ms_per_token", theirs["predicted_per_token_ms"])
                note("dgpp_prefill_tok_s", PREFILL_TOKENS / first)
                note("llama_prefill_tok_s", theirs_long["prompt_per_second"])
        finally:
            own.stop()
    figures = {name: round(statistics.median(values), 3) for name, values in rows.items()}
    floor_ms = weight_bytes / figures["read_gb_s"] / 1e6
    figures |= {
        "weight_mb": round(weight_bytes / 1e6, 1),
        "floor_ms": round(floor_ms, 3),
        "dgpp_over_floor": round(figures["dgpp_ms_per_token"] / floor_ms, 3),
        "decode_vs_llama": round(figures["llama_ms_per_token"] / figures["dgpp_ms_per_token"], 3),
        "prefill_vs_llama": round(
            figures["dgpp_prefill_tok_s"] / figures["llama_prefill_tok_s"], 3
        ),
    }
    sys.stdout.write(json.dumps(figures, indent=None if options.json else 2) + "\n")


if __name__ == "__main__":
    ended(main)
