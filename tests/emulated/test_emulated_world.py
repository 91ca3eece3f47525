"""Two ranks on emulated GPUs served over HTTP, each in processes of its own."""

from __future__ import annotations

import signal

import pytest
from emulator.kernels import compiler
from faulty import EMULATED, SHORT_CHUNKS, injected
from serving import Starter
from world_served import (
    answers,
    model_in,
    require_counted,
    require_named_end,
    require_near,
    require_one_stream_of_operations,
)

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++"),
    pytest.mark.skipif(not EMULATED, reason="needs DGPP_TEST_EMULATED=1"),
    pytest.mark.timeout(400),
]
ENGINE = {"backend": "cuda", "max_concurrency": 2, "kv_capacity": 512}
TEXTS = ["first", "second " * 9]
TOKENS = 4


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    starter = Starter(tmp_path_factory.mktemp("servers"))
    model = model_in(tmp_path_factory.mktemp("model"))

    def start(**engine):
        with injected(SHORT_CHUNKS):
            server = starter(model=model, ready=False, **ENGINE, **engine)
        server.wait_ready(200)
        return server

    yield start
    starter.close()


def test_two_emulated_devices_do_the_same(serve) -> None:
    world = serve(world_size=2)
    assert "collective p2p: rank 1 of 2" in world.log
    assert world.metrics()["collectives"]["path"] == "p2p"
    found = answers(world, TEXTS, TOKENS)
    assert answers(world, TEXTS[:1], TOKENS) == found[:1]
    require_counted(world)
    require_one_stream_of_operations(world)


@pytest.mark.long
def test_two_emulated_devices_answer_as_one_does(serve) -> None:
    alone = serve()
    wanted = answers(alone, TEXTS, TOKENS)
    assert alone.stop() == 0
    found = answers(serve(world_size=2), TEXTS, TOKENS)
    whole = [require_near(*pair) for pair in zip(found, wanted, strict=True)]
    assert any(whole)


@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_amid_a_sum_ends_the_world_by_name(serve, fault) -> None:
    world = serve(world_size=2)
    require_named_end(world, ("engine", 1), fault, tokens=300, slack_s=3.0)
