"""Time to the first token of a long shared prompt: never seen, and seen with another question.

    PYTHONPATH=. .venv/bin/python scripts/bench_prefix.py [--model dgpp/demo] [--tokens 2000]

Starts `dgpp run`, asks two questions about each of several texts over HTTP, streaming, and prints
the median times to the first token, cold and from the prefix cache, and their ratio.
"""

from __future__ import annotations

import json
import random
import statistics
import time
import urllib.request
from typing import Any

from command_line import Options, ended
from scripted_server import serving

WORDS = ("time", "people", "way", "day", "man", "thing", "woman", "life", "child", "world")
QUESTIONS = ("Summarise the text in one word.", "Which word comes first in it?")


def first_token(port: int, model: str, text: str, question: str) -> tuple[float, dict[str, Any]]:
    """Seconds until the first token of the answer, which is its only one, and the usage."""
    messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": 1, "stream": True}
    body |= {"stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True}
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    begun, first, usage = time.perf_counter(), 0.0, {}
    with urllib.request.urlopen(asked, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event["choices"] and event["choices"][0]["finish_reason"] and not first:
                first = time.perf_counter() - begun
            usage = event.get("usage") or usage
    return first, usage


def main() -> None:
    parser = Options(description=__doc__)
    parser.add_argument("--model", default="dgpp/demo")
    parser.add_number("--tokens", 2000)
    parser.add_number("--texts", 5)
    given = parser.parse_args()
    engine = {"kv_capacity": 32768, "max_concurrency": 2, "stats_interval_s": 0}
    cold, hot, usage = [], [], {}
    with serving(given.model, engine) as port:
        first_token(port, given.model, "warm up", QUESTIONS[0])
        for number in range(given.texts):
            rng = random.Random(number)
            text = " ".join(rng.choice(WORDS) for _ in range(given.tokens))
            cold.append(first_token(port, given.model, text, QUESTIONS[0])[0])
            seconds, usage = first_token(port, given.model, text, QUESTIONS[1])
            hot.append(seconds)
    slow, fast = statistics.median(cold), statistics.median(hot)
    prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    print(
        f"{given.model}: {prompt} prompt tokens, {cached} of them cached; time to first token "
        f"cold {1e3 * slow:.0f} ms, cached {1e3 * fast:.0f} ms: {100 * fast / slow:.1f} % "
        f"(medians of {given.texts})"
    )


if __name__ == "__main__":
    ended(main)
