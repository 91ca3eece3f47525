"""What a CUDA machine cannot give is named before a weight is read; a fault in service ends it."""

from __future__ import annotations

import json
import time

import pytest

for needed in ("aiohttp", "psutil", "uvloop"):
    pytest.importorskip(needed, reason=f"the server needs {needed}, which is not installed")

from faulty import injected, patching  # noqa: E402 - after the check that it can load
from serving import ROOT, Starter  # noqa: E402

from dgpp.engine.backends import choose_backend  # noqa: E402

CONFIG = ROOT / "tests" / "fixtures" / "glm-4.7-nvfp4" / "config.json"
PROMPT = {"prompt": [1] * 100, "max_tokens": 64, "temperature": 0}


@pytest.fixture
def serve(cuda, tmp_path):
    starter = Starter(tmp_path)

    def start(**more):
        return starter(**{"model": CONFIG, "backend": "cuda", "load": "dummy", **more})

    yield start
    starter.close()


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"kv_capacity": 1 << 38}, "are free on device 0 ("),
        ({"devices": [63]}, "CUDA device 63 does not exist: this machine has"),
    ],
)
def test_what_a_cuda_device_cannot_hold_is_named(serve, engine, said) -> None:
    server = serve(ready=False, **engine)
    assert server.process.wait(60) == 1
    assert said in server.log
    assert "Traceback" not in server.log


def test_no_cuda_device_is_named(serve, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    server = serve(ready=False)
    assert server.process.wait(60) == 1
    assert "engine.backend cuda: no CUDA device can be used" in server.log


def test_auto_says_why_it_leaves_a_cuda_device(cuda, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    choice = choose_backend("auto")
    assert choice.backend == "cpu"
    assert choice.why.startswith("no CUDA device can be used: ")
    assert choice.why.endswith("see nvidia-smi, and CUDA_VISIBLE_DEVICES, which is ''")


def test_sizes_that_cuda_kernels_do_not_take_are_named_before_weights(serve, tmp_path) -> None:
    config = {**json.loads(CONFIG.read_text()), "n_routed_experts": 2048}
    (tmp_path / "large.json").write_text(json.dumps(config))
    server = serve(ready=False, model=tmp_path / "large.json")
    assert server.process.wait(60) == 1
    assert "takes n_routed_experts up to 1024, config.json has 2048; set it to cpu" in server.log
    assert "Traceback" not in server.log


BROKEN_SOURCE = patching(
    "kernels_numba.gpu.source",
    """
def patch(module):
    real = module.source
    def source(name):
        return real(name) + ("this is no C++" if name == "moe" else "")
    module.source = source
""",
)
STRAY_POINTER = patching(
    "kernels_numba.gpu.backend",
    """
def patch(module):
    real = module.CudaBackend.embed
    def embed(self, rows, table, out, **more):
        if rows.count == 100:
            table.weights = (8, *table.weights[1:])
        real(self, rows, table, out, **more)
    module.CudaBackend.embed = embed
""",
)


def test_a_kernel_that_does_not_compile_on_cuda_ends_the_start(serve) -> None:
    with injected(BROKEN_SOURCE):
        server = serve(ready=False)
    assert server.process.wait(60) == 1
    assert "moe.cu does not compile for this device" in server.log


def test_a_cuda_fault_in_service_ends_the_world_by_name(serve) -> None:
    with injected(STRAY_POINTER):
        server = serve()
    began = time.monotonic()
    status, answer = server.post("/v1/completions", {"model": server.model(), **PROMPT})
    assert status == 503, answer
    assert server.process.wait(20) == 2
    assert time.monotonic() - began < 20
    assert "engine of rank 0 failed" in server.log
    assert "illegal" in server.log.lower()
