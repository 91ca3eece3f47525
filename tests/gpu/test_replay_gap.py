"""The whole server at GLM-4.7's real widths: the device never waits for the actors."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

for needed in ("aiohttp", "psutil", "uvloop"):
    pytest.importorskip(needed, reason=f"the server needs {needed}, which is not installed")

from serving import ROOT, Starter  # noqa: E402 - after the check that it can load

GAP_S = 50e-6
LAYERS = 8
PROMPT = 500
ANSWER = 400


@pytest.fixture(scope="module")
def server(cuda, tmp_path_factory):
    folder = tmp_path_factory.mktemp("glm")
    config = json.loads((ROOT / "deploy" / "facts" / "glm-4.7.json").read_text())
    sizes = folder / "glm.json"
    sizes.write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))
    starter = Starter(folder)
    yield starter(model=sizes, backend="cuda", load="dummy", max_concurrency=8, kv_capacity=16384)
    starter.close()


def ask(server, number: int, **more) -> int:
    body = {
        "model": server.model(),
        "prompt": [(7 * number + n) % 50_000 for n in range(PROMPT)],
        "max_tokens": ANSWER,
        "temperature": 0,
        "ignore_eos": True,
    }
    status, answer = server.post("/v1/completions", body | more)
    assert status == 200, answer
    return answer["usage"]["completion_tokens"]


def gaps(server) -> dict[float, int]:
    """Replays by the upper bound of the gap before them, in seconds."""
    name = "dgpp_decode_replay_gap_seconds_bucket"
    text = server.get("/metrics/prometheus")[1].decode()
    found, before = {}, 0
    for line in text.splitlines():
        if line.startswith(name):
            bound = line.split('le="')[1].split('"')[0]
            running = int(float(line.rsplit(" ", 1)[1]))
            found[float(bound)] = running - before
            before = running
    return found


def difference(after: dict[float, int], before: dict[float, int]) -> dict[float, int]:
    return {bound: after[bound] - before[bound] for bound in after if after[bound] != before[bound]}


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("sampled", [False, True])
def test_replays_follow_one_another_within_fifty_microseconds(server, batch, sampled):
    more = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "seed": 5} if sampled else {}
    before = gaps(server)
    with ThreadPoolExecutor(batch) as pool:
        assert list(pool.map(lambda n: ask(server, n, **more), range(batch))) == [ANSWER] * batch
    found = difference(gaps(server), before)
    batch_metrics = server.metrics()["scheduler"]["decode_batch"]
    print(f"batch {batch}, sampled {sampled}: gaps {found}, {batch_metrics['replays_by_slots']}")
    total = sum(found.values())
    assert total >= ANSWER - 20
    late = sum(count for bound, count in found.items() if bound > GAP_S)
    assert late <= 0.02 * total


def test_start_up_says_what_was_recorded(server):
    (line,) = [line for line in server.log.splitlines() if "decode graphs recorded" in line]
    print(line)
    assert "MiB" in line
