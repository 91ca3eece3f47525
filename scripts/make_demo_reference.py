"""Write tests/parity/data/demo_greedy.json: what transformers (float32, eager) says greedily, and
how far its own bf16 run lies from that.

usage: python scripts/make_demo_reference.py CHECKPOINT OUT.json

CHECKPOINT is the folder that `dgpp fetch demo` prints. Needs torch and transformers, which are no
dependencies of this project: give them a virtual environment of their own.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKENS = 64

RAW = {
    "capital": "The capital of France is",
    "story": "Once upon a time, in a village by the sea, there lived",
    "code": "def fibonacci(n):\n    ",
    "arithmetic": "1 + 1 = 2\n2 + 2 = 4\n3 + 3 =",
    "unicode": "Übersetzung: „Guten Morgen“ heißt auf Englisch",
}
CHAT = {
    "sky": [{"role": "user", "content": "Why is the sky blue?"}],
    "list": [{"role": "user", "content": "Name three fruits and say one thing about each."}],
    "system": [
        {"role": "system", "content": "You are a pirate. Answer like one."},
        {"role": "user", "content": "How do I boil an egg?"},
    ],
    "turns": [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name, and how many letters does it have?"},
    ],
    "long": [
        {
            "role": "user",
            "content": "Summarise this in one sentence. "
            + "The river rises in the hills, passes four towns and two old mills, turns south at "
            "the bridge, and reaches the sea after ninety miles. " * 12,
        }
    ],
}


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], list[float]]:
    """TOKENS ids after `prompt`, end tokens included like any other, and the distance between
    the two largest logits at each step."""
    ids: list[int] = []
    margins: list[float] = []
    fed, cache = torch.tensor([prompt]), None
    for _ in range(TOKENS):
        out = model(input_ids=fed, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = out.logits[0, -1].topk(2)
        ids.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 6))
        fed = torch.tensor([[ids[-1]]])
    return ids, margins


@torch.inference_mode()
def rows(model: torch.nn.Module, case: dict[str, Any]) -> torch.Tensor:
    """float32 logits of the rows that the case's ids were taken from, read in one forward."""
    fed = torch.tensor([[*case["prompt_ids"], *case["ids"][:-1]]])
    return model(input_ids=fed).logits[0, -TOKENS:].float()


def bf16_noise(
    model: torch.nn.Module, narrow: torch.nn.Module, cases: list[dict[str, Any]]
) -> dict[str, float]:
    """How far the model in bf16 lies from itself in float32, over all rows."""
    errors, agree = [], []
    for case in cases:
        wanted, got = rows(model, case), rows(narrow, case)
        errors.append((got - wanted).abs())
        agree.append(got.argmax(1) == wanted.argmax(1))
    error = torch.cat(errors)
    return {
        "mean_abs": round(float(error.mean()), 6),
        "max_abs": round(float(error.max()), 6),
        "argmax_agree": round(float(torch.cat(agree).float().mean()), 6),
    }


def main() -> None:
    checkpoint, out = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    cases = []
    prompts = [(name, {"text": text}) for name, text in RAW.items()]
    prompts += [(name, {"messages": messages}) for name, messages in CHAT.items()]
    for name, prompt in prompts:
        if "text" in prompt:
            rendered = prompt["text"]
        else:
            rendered = tokenizer.apply_chat_template(
                prompt["messages"], tokenize=False, add_generation_prompt=True
            )
        prompt_ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        ids, margins = greedy(model, prompt_ids)
        print(f"{name}: {len(prompt_ids)} → {min(margins)} {tokenizer.decode(ids)!r}")
        cases.append(
            {"name": name, **prompt, "prompt_ids": prompt_ids, "ids": ids, "margins": margins}
        )
    provenance = {
        "by": "scripts/make_demo_reference.py",
        "model": type(model).__name__,
        "weights": json.loads((checkpoint / "manifest.json").read_text())["files"][
            "model.safetensors"
        ]["sha256"],
        "precision": "float32 arithmetic on the bf16 weights, eager attention, one thread",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "margins": "largest logit minus second largest, per generated token",
    }
    narrow = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    noise = json.dumps(bf16_noise(model, narrow, cases))
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    head = json.dumps(provenance, indent=1, ensure_ascii=False)
    out.write_text(
        f'{{"provenance": {head},\n"tokens": {TOKENS},\n"hf_bf16_vs_fp32": {noise},\n'
        f'"cases": [\n{lines}\n]}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
