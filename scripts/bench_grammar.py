"""Measure what constrained answers cost: compiling, the first mask, and a mask per token.

Walks reference answers token by token as the sampler does: a mask, then the token. Masks are made
while the model's forward pass runs. Prints one line for each kind of constraint.

    python scripts/bench_grammar.py --model DIR                    a model's directory
    python scripts/bench_grammar.py --tokenizer FILE               a tokenizer.json, or one in .xz
    python scripts/bench_grammar.py --model DIR --serve            and the wait for a first token
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command_line import Options, ended
from scripted_server import scripted, serving

from dgpp.bench.table import aligned
from dgpp.grammar.answer import Wanted, answer_grammar
from dgpp.grammar.guides import Guides
from dgpp.grammar.matcher import Grammars
from dgpp.grammar.vocabulary import vocabulary
from dgpp.text.calls.format import GLM
from dgpp.text.dialect import Dialect, Thinking
from dgpp.text.messages import Tool
from dgpp.text.tokenizer import Tokenizer

CITY = {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 200},
        "kind": {"enum": ["report", "note", "letter"]},
        "cities": {"type": "array", "items": CITY},
        "when": {"type": "string", "format": "date-time"},
    },
    "required": ["title", "kind", "cities"],
}
ANSWER = {
    "title": "How rivers shape the towns beside them",
    "kind": "report",
    "cities": [{"name": f"Town {n} on the river", "size": 1000 * n} for n in range(20)],
}
PROSE = "First I look at what was asked, then at what I know; 3 < 4, and so on. " * 20
DIALECT = Dialect(Thinking(trimmed=False, after=b""), GLM, trimmed=True)


class Case(NamedTuple):
    """`text` is an answer that the constraint allows."""

    name: str
    wanted: Wanted
    text: str


def cases() -> list[Case]:
    tool = Tool("save", json.dumps({"name": "save", "parameters": SCHEMA}), strict=True)
    answer = json.dumps(ANSWER)
    call = GLM.write("save", ANSWER)
    return [
        Case("json_object", Wanted(schema={}), f"{PROSE}</think>{answer}"),
        Case("json_schema", Wanted(schema=SCHEMA, strict=True), f"{PROSE}</think>{answer}"),
        Case("required call", Wanted(tools=(tool,), choice="required"), f"{PROSE}</think>{call}"),
        Case("strict tool", Wanted(tools=(tool,)), f"{PROSE}</think>{PROSE}{call}"),
    ]


def load(options: argparse.Namespace) -> Tokenizer:
    if options.model:
        return Tokenizer.load(options.model)
    path = Path(options.tokenizer)
    data = path.read_bytes()
    return Tokenizer(json.loads(lzma.decompress(data) if path.suffix == ".xz" else data))


def measure(case: Case, tokenizer: Tokenizer, grammars: Grammars) -> list[str]:
    grammar = answer_grammar(case.wanted, DIALECT, tokenizer, reasoning=True)
    compiled = timed(lambda: grammars.compile(grammar))
    guides = Guides(grammars, tokenizer.vocab_size)
    opened = timed(lambda: guides.open(0, grammar))
    first = timed(lambda: guides.masks([0]))
    masks, steps = [], []
    for token in tokenizer.encode(case.text, controls=True):
        masks.append(timed(lambda: guides.masks([0])))
        mask = guides.masks([0])[0]
        assert mask[token // 32] >> np.uint32(token % 32) & 1, tokenizer.decode([token])
        steps.append(timed(lambda taken=token: guides.advance(0, [taken])))  # type: ignore[misc]
    spread = statistics.quantiles(masks, n=100)
    return [
        case.name,
        str(len(masks)),
        f"{compiled * 1e3:.1f}",
        f"{opened * 1e3:.2f}",
        f"{first * 1e6:.0f}",
        f"{statistics.median(masks) * 1e6:.0f}",
        f"{spread[98] * 1e6:.0f}",
        f"{statistics.median(steps) * 1e6:.0f}",
    ]


def timed(work: Any) -> float:
    """Seconds of the processor, which others on the machine do not lengthen."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def first_token(port: int, model: str, body: dict[str, Any]) -> float:
    """Seconds from the request to its first event."""
    asked = {"model": model, "stream": True, "max_tokens": 2, **body}
    asked["messages"] = [{"role": "user", "content": "Hi"}]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    start = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.readline()
        found = time.perf_counter() - start
        answer.read()
    return found


def serve(model: str) -> None:
    """The wait for a first token, plain and constrained in turn, once the grammar is known."""
    schema = {"name": "a", "strict": True, "schema": SCHEMA}
    constrained = {"response_format": {"type": "json_schema", "json_schema": schema}}
    with serving(model, scripted(2, 5.0)) as port:
        waits: dict[str, list[float]] = {"plain": [], "constrained": []}
        for turn in range(52):
            for name, body in (("plain", {}), ("constrained", constrained)):
                found = first_token(port, model, body)
                if turn > 1:
                    waits[name].append(found)
    for name, found in waits.items():
        print(f"first token, {name}: {statistics.median(found) * 1e3:.2f} ms p50")


def main() -> None:
    parser = Options(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="")
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    if not options.model and (options.serve or not options.tokenizer):
        parser.error("--model: expected a model's directory; --tokenizer FILE does without --serve")
    tokenizer = load(options)
    made: list[Any] = []
    spent = timed(lambda: made.append(vocabulary(tokenizer, [max(tokenizer.controls.values())])))
    print(f"{tokenizer.vocab_size} ids, read for grammars in {spent:.2f} s")
    head = ["", "tokens", "compile ms", "again ms", "first us", "mask p50 us", "p99 us", "token us"]
    grammars = Grammars(made[0])
    rows = [measure(case, tokenizer, grammars) for case in cases()]
    print("\n".join(aligned(head, rows)))
    if options.serve:
        serve(options.model)


if __name__ == "__main__":
    ended(main)
