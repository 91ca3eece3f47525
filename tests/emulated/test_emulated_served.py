"""`dgpp run` on an emulated GPU: steps ahead of verdicts, recorded graphs, a device that fails."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from emulator.kernels import compiler
from faulty import SHORT_CHUNKS, injected, patching
from serving import ROOT, Starter

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++"),
    pytest.mark.timeout(300),
]
CONFIG = ROOT / "tests" / "fixtures" / "glm-4.7-nvfp4" / "config.json"
# A prompt of 50 tokens meets a device that has failed.
FAILS = patching(
    "kernels_numba.gpu.backend",
    """
def patch(module):
    real = module.CudaBackend.embed
    def embed(self, rows, table, out, **more):
        if rows.count == 50:
            error = module.load_cupy().cuda.runtime.CUDARuntimeError
            raise error("cudaErrorIllegalAddress: an illegal memory access was encountered")
        real(self, rows, table, out, **more)
    module.CudaBackend.embed = embed
""",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    # One dense layer and one of experts.
    config = json.loads(CONFIG.read_text())
    small = folder / "small.json"
    small.write_text(json.dumps(config | {"num_hidden_layers": 2, "first_k_dense_replace": 1}))
    starter = Starter(folder)
    with injected(FAILS), injected(SHORT_CHUNKS):
        server = starter(
            model=small, backend="cuda", load="dummy", max_concurrency=2, kv_capacity=512,
            ready=False,
        )  # fmt: skip
    server.wait_ready(280)
    yield server
    starter.close()


def ask(server, tokens: int):
    prompt = [7 + n for n in range(tokens)]
    body = {"model": server.model(), "prompt": prompt, "max_tokens": 5, "temperature": 0}
    return server.post("/v1/completions", body)


def test_answers_are_the_same_alone_and_together(server) -> None:
    alone = [ask(server, tokens)[1]["choices"] for tokens in (40, 30)]
    with ThreadPoolExecutor(2) as pool:
        together = [body["choices"] for _, body in pool.map(partial(ask, server), (40, 30))]
    assert together == alone


def test_a_fault_of_the_device_ends_the_world_by_name(server) -> None:
    status, answer = ask(server, 50)
    assert status == 503, answer
    assert "cudaErrorIllegalAddress" in answer["error"]["message"]
    assert server.process.wait(30) == 2
    assert "engine of rank 0 failed" in server.log
    assert "cudaErrorIllegalAddress: an illegal memory access" in server.log
