"""The emulator finds what it is for: wrong barriers, missing waits, unknown instructions."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from emulator.cupy_host import Stream, zeros
from emulator.kernels import EmulatedKernels, compiler, library
from emulator.translate import UnknownSyntaxError, translate

from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.source import Unit

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++")


def unit(monkeypatch: pytest.MonkeyPatch, body: str) -> Unit:
    """One kernel `probe(int* out, const int* in)`."""
    text = f'extern "C" __global__ void probe(int* out, const int* in) {{\n{body}\n}}\n'
    monkeypatch.setattr("kernels_numba.gpu.source.source", lambda _: text)
    return Unit("probe", (("KEY", abs(hash(body)) % 10**9),))


def launch(
    monkeypatch: pytest.MonkeyPatch, body: str, threads: int = 64, shared: int = 0, blocks: int = 1
):
    out, given = zeros(threads * blocks, np.int32), zeros(threads, np.int32)
    given[...] = np.arange(threads)
    pointers = (int(out.data.ptr), int(given.data.ptr))
    EmulatedKernels().launch(unit(monkeypatch, body), "probe", (blocks,), threads, pointers, shared)
    return out.get()


def test_threads_exchange_through_shared_memory_and_shuffles(monkeypatch) -> None:
    body = """
    __shared__ int held[64];
    held[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    int sum = held[63 - threadIdx.x];
    for (int step = 16; step >= 1; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const unsigned odd = __ballot_sync(0xffffffffu, threadIdx.x & 1);
    out[threadIdx.x] = odd == 0xaaaaaaaau ? sum : -1;
    """
    got = launch(monkeypatch, body)
    assert got[:32].tolist() == [sum(range(32, 64))] * 32
    assert got[32:].tolist() == [sum(range(32))] * 32


def test_a_barrier_that_some_threads_reach_elsewhere_is_found(monkeypatch) -> None:
    body = """
    if (threadIdx.x < 32) { __syncthreads(); } else { __syncthreads(); }
    out[threadIdx.x] = 1;
    """
    with pytest.raises(RuntimeError, match="wait for one another at different places"):
        launch(monkeypatch, body)


def test_a_copy_that_nobody_waited_for_is_not_there(monkeypatch) -> None:
    body = """
    extern __shared__ int held[];
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(held + threadIdx.x));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(in + threadIdx.x));
    asm volatile("cp.async.commit_group;");
    WAIT
    __syncthreads();
    out[threadIdx.x] = held[threadIdx.x];
    """
    waited = 'asm volatile("cp.async.wait_group %0;" ::"n"(0));'
    assert launch(monkeypatch, body.replace("WAIT", waited), shared=256).tolist() == [*range(64)]
    assert launch(monkeypatch, body.replace("WAIT", ""), shared=256).tolist() == [-1] * 64


def test_a_copy_to_where_others_still_read_is_there_at_once_in_odd_blocks(monkeypatch) -> None:
    body = """
    extern __shared__ int held[];
    held[threadIdx.x] = -7;
    __syncthreads();
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(held + threadIdx.x));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(in + threadIdx.x));
    asm volatile("cp.async.commit_group;");
    out[blockIdx.x * 64 + threadIdx.x] = held[threadIdx.x];
    """
    got = launch(monkeypatch, body, shared=256, blocks=2).reshape(2, 64)
    assert got.tolist() == [[-7] * 64, [*range(64)]]


def test_threads_that_poll_let_those_go_on_for_whom_they_wait(monkeypatch) -> None:
    body = """
    if (threadIdx.x >= 16) return;
    const unsigned long long at = reinterpret_cast<unsigned long long>(out) + 8 * threadIdx.x;
    unsigned long long seen = threadIdx.x == 15;
    while (seen == 0) {
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(at + 8) : "memory");
    }
    asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(at), "l"(seen + 1) : "memory");
    """
    found = launch(monkeypatch, body, threads=32).view(np.uint64)
    assert found.tolist() == [*range(17, 1, -1)]


def test_an_instruction_that_is_not_known_is_named(monkeypatch) -> None:
    body = 'asm volatile("wgmma.fence.sync.aligned;");'
    with pytest.raises(CudaError, match=r"probe\.cu .* is not emulated: .*ptx_wgmma_fence"):
        library(unit(monkeypatch, body))
    with pytest.raises(UnknownSyntaxError, match="not one plain instruction"):
        translate('asm("{ .reg .pred p; setp.eq.u32 p, 0, 0; }");')


TOUCH = """
import sys
import numpy as np
from emulator.cupy_host import zeros
from emulator.kernels import EmulatedKernels
from kernels_numba.gpu import source

source.source = lambda _: sys.argv[1]
held = zeros(8, np.int32)
arguments = (int(held.data.ptr), int(sys.argv[2]))
EmulatedKernels().launch(source.Unit("probe"), "probe", (1,), 32, arguments)
"""


@pytest.mark.parametrize("access", ["held[0] = held[at] + 1", "held[at] = 1"])
def test_a_kernel_that_touches_what_lies_before_or_behind_an_array_ends_its_process(access) -> None:
    body = f"if (threadIdx.x == 0) {access};"
    text = f'extern "C" __global__ void probe(int* held, long long at) {{ {body} }}'
    # Eight words end their page.
    before = 8 - mmap.PAGESIZE // 4 - 1
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for at, status in ((7, 0), (8, -signal.SIGSEGV), (before, -signal.SIGSEGV)):
        command = [sys.executable, "-c", TOUCH, text, str(at)]
        assert subprocess.run(command, env=environment, check=False).returncode == status, at


def test_operands_keep_their_order() -> None:
    operands = '"=r"(a), "+f"(b[1]) : "l"(p + (q, 3)) : "memory"'
    text = f'asm volatile("mma.x.y {{%0, %1}}, [%2], 16;" : {operands});'
    assert translate(text) == "ptx_mma_x_y(a, b[1], p + (q, 3), 16);"
    assert translate("extern __shared__ __align__(16) u8 m[];") == (
        "u8* m = reinterpret_cast<u8*>(emulated::dynamic_shared());"
    )


def test_recorded_work_runs_when_the_graph_does(monkeypatch) -> None:
    held = zeros(4, np.int32)
    stream = Stream()
    stream.begin_capture()
    held.fill(3)
    graph = stream.end_capture()
    assert held.tolist() == [0] * 4
    graph.launch(stream)
    assert held.tolist() == [3] * 4
