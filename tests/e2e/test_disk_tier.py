"""Prefixes on disk: back after memory gave them up, after a restart, and never when damaged."""

from __future__ import annotations

import random
import shutil
import time

import pytest
from faulty import injected, patching
from serving import ROOT, TINY

# The first server may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

GENERATOR = random.Random(3)
FIRST, SECOND, THIRD = ([GENERATOR.randrange(8, 200) for _ in range(460)] for _ in range(3))


@pytest.fixture
def tier(serve, tmp_path):
    """Start a server of `fixture` whose prefix cache has a disk; memory holds one prompt."""

    def start(fixture: str, **engine):
        model = tmp_path / "model"
        if not model.exists():
            shutil.copytree(TINY, model)
            shutil.copytree(ROOT / "tests" / "fixtures" / fixture, model, dirs_exist_ok=True)
        sizes = {"kv_capacity": 640, "max_concurrency": 1, "prefix_min_tokens": 64, "threads": 1}
        flags = [
            *("--set", "nvme_cache.enabled=true", "--set", f"nvme_cache.path={tmp_path}/disk"),
            *("--set", "nvme_cache.capacity_gib=0.02", "--set", "nvme_cache.min_tokens=64"),
        ]
        return serve(model=model, backend="cpu", flags=flags, **sizes, **engine)

    return start


def ask(server, prompt):
    """The tokens of the answer, and how many of the prompt were not computed again."""
    body = {"model": server.model(), "prompt": prompt, "max_tokens": 8, "temperature": 0}
    status, answer = server.post("/v1/completions", body | {"ignore_eos": True, "logprobs": 1})
    assert status == 200, answer
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["logprobs"], cached


def settle(server, name: str, least: int):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = server.metrics()["nvme_cache"]
        if found[name] >= least and not found["pending"]:
            return found
        time.sleep(0.05)
    pytest.fail(f"{name} stays below {least}: {found}\n{server.log}")


def test_what_memory_gave_up_comes_back_from_disk_and_outlives_the_server(tier, tmp_path):
    server = tier("glm-4.7-bf16", placement="inline")
    wanted, cached = ask(server, FIRST)
    assert cached == 0
    settle(server, "spilled", 1)
    for other in (SECOND, THIRD):
        ask(server, other)
    assert ask(server, FIRST) == (wanted, 448)
    found = settle(server, "restored", 1)
    assert (found["restore_failed"], found["spill_failed"]) == (0, 0)
    assert server.stop() == 0

    again = tier("glm-4.7-bf16", placement="inline")
    assert ask(again, FIRST) == (wanted, 448)
    assert settle(again, "restored", 1)["bytes_read"] > 0
    assert again.stop() == 0
    assert "of an earlier run taken over" in again.log

    slab = tmp_path / "disk" / "rank0.slab"
    data = bytearray(slab.read_bytes())
    for at in range(100, len(data), 4096):
        data[at] ^= 1
    slab.write_bytes(data)
    damaged = tier("glm-4.7-bf16", placement="inline")
    assert ask(damaged, FIRST) == (wanted, 0)
    assert settle(damaged, "restore_failed", 1)["restored"] == 0
    assert damaged.stop() == 0
    assert "not what was written (CRC-32C)" in damaged.log
    assert "they are computed again" in damaged.log


def test_ranks_with_recurrent_state_bring_it_back_together(tier):
    server = tier("qwen3.8-27b-bf16", world_size=2, placement="inline")
    wanted, _ = ask(server, FIRST)
    settle(server, "spilled", 1)
    for other in (SECOND, THIRD):
        ask(server, other)
    found, cached = ask(server, FIRST)
    assert found == wanted
    assert cached >= 384
    assert settle(server, "restored", 1)["restore_failed"] == 0
    assert server.stop() == 0
    assert "op streams of 2 ranks: identical" in server.log


# Once there is a file "stop", rank 1 gets no further than the first page of a spill.
STUCK = patching(
    "actors.cold_slab",
    """
def patch(module):
    import time
    real = module.Slab.write
    def write(self, page, data):
        real(self, page, data)
        path = self._file.path
        if path.name == "rank1.slab" and path.with_name("stop").exists():
            path.with_name("half").touch()
            time.sleep(600)
    module.Slab.write = write
""",
)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_rank_killed_in_mid_spill_leaves_what_all_have(tier, tmp_path, world):
    with injected(STUCK):
        server = tier("glm-4.7-bf16", world_size=world, placement="inline")
    first, _ = ask(server, FIRST)
    settle(server, "spilled", 1)
    (tmp_path / "disk" / "stop").touch()
    second, _ = ask(server, SECOND)
    deadline = time.monotonic() + 20
    while not (tmp_path / "disk" / "half").exists():
        assert time.monotonic() < deadline, server.log
        time.sleep(0.05)
    server.actor("supervisor", 1).kill()
    assert server.process.wait(30) == 2
    assert "rank 1 was killed by signal 9" in server.log

    again = tier("glm-4.7-bf16", world_size=world, placement="inline")
    assert "entries of an earlier run taken over" in again.log
    assert ask(again, FIRST) == (first, 448)
    assert ask(again, SECOND) == (second, 0)
    assert settle(again, "restored", 1)["restore_failed"] == 0
    assert again.stop() == 0
    assert f"op streams of {world} ranks: identical" in again.log
