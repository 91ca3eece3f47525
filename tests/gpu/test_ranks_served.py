"""Two ranks on two GPUs served over HTTP: one rank's answers, one stream of operations, one end."""

from __future__ import annotations

import signal

import pytest

for needed in ("aiohttp", "psutil", "uvloop"):
    pytest.importorskip(needed, reason=f"the server needs {needed}, which is not installed")

from serving import Starter  # noqa: E402 - after the check that it can load
from world_served import (  # noqa: E402
    answers,
    ask,
    model_in,
    require_counted,
    require_named_end,
    require_near,
    require_one_stream_of_operations,
)

ENGINE = {"backend": "cuda", "max_concurrency": 8, "kv_capacity": 8192}
TEXTS = [f"question {number} " * (1 + 12 * number) for number in range(8)]
TOKENS = 24
SLACK_S = 0.5


@pytest.fixture(scope="module")
def model(cuda, tmp_path_factory):
    from kernels_numba.gpu.device import device_count

    if device_count() < 2:
        pytest.skip("two ranks need a GPU each")
    return model_in(tmp_path_factory.mktemp("model"))


@pytest.fixture
def serve(tmp_path):
    starter = Starter(tmp_path)
    yield starter
    starter.close()


def test_two_gpus_answer_as_one_does(model, serve) -> None:
    alone = serve(model=model, **ENGINE)
    wanted = answers(alone, TEXTS, TOKENS)
    assert alone.stop() == 0
    world = serve(model=model, world_size=2, **ENGINE)
    for rank in range(2):
        assert f"collective p2p: rank {rank} of 2" in world.log
    found = answers(world, TEXTS, TOKENS)
    whole = [require_near(*pair) for pair in zip(found, wanted, strict=True)]
    assert sum(whole) >= len(TEXTS) // 2, whole
    # What the world says does not depend on who else asks.
    assert [ask(world, text, TOKENS) for text in TEXTS[:3]] == found[:3]
    drawn = {"temperature": 0.9, "seed": 5, "top_p": 0.9, "frequency_penalty": 0.5}
    assert ask(world, "drawn", 12, **drawn) == ask(world, "drawn", 12, **drawn)
    require_counted(world)
    require_one_stream_of_operations(world)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("who", [("engine", 1), ("engine", 0), ("scheduler", 1)])
def test_a_rank_that_dies_or_stops_ends_the_world_by_name(model, serve, who, fault) -> None:
    world = serve(model=model, world_size=2, **ENGINE)
    require_named_end(world, who, fault, tokens=4000, slack_s=SLACK_S)


def test_nccl_connects_ranks_as_well(model, serve) -> None:
    world = serve(model=model, world_size=2, collective="nccl", **ENGINE)
    assert "collective nccl: rank 1 of 2" in world.log
    first = answers(world, TEXTS, TOKENS)
    assert answers(world, TEXTS, TOKENS) == first
    require_counted(world, "nccl")
    require_one_stream_of_operations(world)
