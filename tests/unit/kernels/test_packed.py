"""Packed rows of cached context: their bytes by an oracle, and operations that read them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracles import E2M1, E4M3

from kernels_numba.backend import Attention
from kernels_numba.cpu.backend import CpuBackend
from kernels_numba.cpu.packed import Packing, pack_row, unpack_row
from kernels_numba.extended import Index, LatentAttention
from kernels_numba.packed_rows import PackedRow, RowCode

BLOCK, TOKENS, CAPACITY = 16, 300, 64
CODES = [RowCode.FP8, RowCode.FP4]


@pytest.fixture(scope="module")
def cpu() -> CpuBackend:
    return CpuBackend(CAPACITY, 2)


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Codes of ascending `table` nearest to |values|, of two equally near the even one."""
    sizes = np.abs(values.astype(np.float64))
    edges = (table[1:] + table[:-1]) / 2
    low, high = np.searchsorted(edges, sizes), np.searchsorted(edges, sizes, "right")
    return np.where(low % 2 == 0, low, high)


def bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))
    return (rounded.astype(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def kept(rows: np.ndarray, code: RowCode, plain: int = 0) -> np.ndarray:
    """float32 of the same shape: what packed rows keep of float32 ones."""
    coded = rows.shape[1] - plain
    out = rows.copy()
    out[:, coded:] = bf16(np.ascontiguousarray(rows[:, coded:]))
    for row, target in zip(rows[:, :coded], out[:, :coded], strict=True):
        most = np.abs(row).max(initial=np.float32(0))
        if code is RowCode.FP8:
            scale = np.float32(most / np.float32(448)) if most else np.float32(1)
            sizes = E4M3[nearest(row / scale, E4M3[:127])].astype(np.float32) * scale
            target[:] = np.copysign(sizes, row)
            continue
        factor = np.float32(most / np.float32(6 * 448)) if most else np.float32(1)
        for first in range(0, coded, 16):
            group = row[first : first + 16]
            peak = np.abs(group).max() / np.float32(np.float32(6) * factor)
            scale = np.float32(E4M3[nearest(peak, E4M3[:127])].astype(np.float32) * factor)
            sizes = E2M1[nearest(group / scale, E2M1)].astype(np.float32) * scale if scale else 0
            target[first : first + 16] = np.copysign(sizes, group)
    return out


@settings(deadline=None, max_examples=40)
@given(
    code=st.sampled_from(CODES),
    groups=st.integers(1, 6),
    odd=st.sampled_from([0, 0, 5]),
    plain=st.sampled_from([0, 8, 64]),
    spread=st.sampled_from([0.1, 2.0, 12.0]),
    seed=st.integers(0, 99),
)
def test_a_row_comes_back_as_the_oracle_keeps_it(code, groups, odd, plain, spread, seed) -> None:
    rng = np.random.default_rng(seed)
    width = 16 * groups + odd + plain
    values = (rng.standard_normal(width) * 2.0 ** rng.normal(0, spread, width)).astype(np.float32)
    values[rng.random(width) < 0.1] = 0
    values[: width // 3 * (seed % 2)] = 0
    packing = Packing(PackedRow(code, width, plain))
    held = np.full(packing.line + 8, 0xA5, np.uint8)
    pack_row(packing.address, int(values.ctypes.data), int(held.ctypes.data))
    out = np.full(-(-width // 16) * 16, np.nan, np.float32)
    unpack_row(packing.address, int(held.ctypes.data), int(out.ctypes.data))
    np.testing.assert_array_equal(out[:width], kept(values[None], code, plain)[0])
    assert not out[width:].any()
    assert (held[packing.line :] == 0xA5).all()


@pytest.mark.parametrize("code", CODES)
def test_what_is_kept_is_near(code: RowCode) -> None:
    rows = np.random.default_rng(3).standard_normal((50, 512)).astype(np.float32)
    error = np.abs(kept(rows, code) - rows)
    step = {RowCode.FP8: 1 / 16, RowCode.FP4: 1 / 4}[code]
    assert (error <= step * np.abs(rows) + 0.13 * step * np.abs(rows).max()).all()
    assert 0 < error.mean() < {RowCode.FP8: 0.02, RowCode.FP4: 0.08}[code]


def test_bytes_of_the_rows_that_are_served() -> None:
    """GLM-5.3's latents and index keys, MiMo's heads."""
    sizes = {
        (RowCode.FP8, 576, 64): 512 + 4 + 128,
        (RowCode.FP4, 576, 64): 256 + 32 + 4 + 128,
        (RowCode.FP8, 512, 0): 512 + 4,
        (RowCode.FP8, 128, 0): 128 + 4,
        (RowCode.FP8, 192, 0): 192 + 4,
    }
    for (code, width, plain), size in sizes.items():
        assert PackedRow(code, width, plain).bytes == size


def step(ops: CpuBackend, positions) -> object:
    rows = ops.rows(3, 20)
    rows.tables[:] = np.arange(20)[::-1] + 20 * np.arange(3)[:, None]
    rows.count = len(positions)
    rows.slots[: rows.count] = 1
    rows.positions[: rows.count] = positions
    ops.begin(rows)
    return rows


def tensor_of(ops: CpuBackend, values: np.ndarray):
    tensor = ops.tensor(values.shape[1])
    ops.write(tensor, values.astype(np.float32))
    return tensor


def stored(ops: CpuBackend, values: np.ndarray, code: RowCode, plain: int = 0):
    store = ops.store(60, BLOCK, values.shape[1], code=code, plain=plain)
    for first in range(0, TOKENS, CAPACITY):
        part = values[first : first + CAPACITY]
        ops.store_rows(step(ops, range(first, first + len(part))), tensor_of(ops, part), store)
    return store


POSITIONS = [0, 15, 16, 17, 127, 128, 200, 299]


@pytest.mark.parametrize("code", CODES)
def test_latents_and_keys_are_read_as_they_were_kept(cpu: CpuBackend, code: RowCode) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((TOKENS, 96 + 24)).astype(np.float32)
    latent = LatentAttention(20, 120, 96, 120**-0.5)
    queries = np.zeros((len(POSITIONS), 20, 128), np.float32)
    queries[:, :, :120] = rng.standard_normal((len(POSITIONS), 20, 120))
    index = Index(heads=16, dim=32, top=40, scale=32**-0.5, weight_scale=0.25)
    keys = rng.standard_normal((TOKENS, 32)).astype(np.float32)
    scored = rng.standard_normal((len(POSITIONS), 16 * 32 + 16)).astype(np.float32)

    def read(latents, held):
        at, out, chosen = step(cpu, POSITIONS), cpu.tensor(20 * 96), cpu.selection(index.top)
        q = tensor_of(cpu, queries.reshape(len(POSITIONS), -1))
        cpu.attend_latent(at, q, latent, latents, None, out)
        halves = [tensor_of(cpu, part) for part in np.split(scored, [16 * 32], axis=1)]
        cpu.index_select(at, *halves, index, held, chosen)
        return cpu.read(out, len(POSITIONS)), cpu.read_selection(chosen, len(POSITIONS))

    packed = read(stored(cpu, rows, code, 24), stored(cpu, keys, RowCode.FP8))
    plain = read(
        stored(cpu, kept(rows, code, 24), RowCode.FLOAT),
        stored(cpu, kept(keys, RowCode.FP8), RowCode.FLOAT),
    )
    for got, wanted in zip(packed, plain, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_heads_are_read_as_they_were_kept_in_any_cut(cpu: CpuBackend) -> None:
    heads, kv_heads, dim, values = 6, 2, 40, 24
    shape = Attention(
        heads, kv_heads, dim, dim**-0.5, cpu.rotary_table(np.zeros((TOKENS, 4), np.float32)),
        value_dim=values,
    )  # fmt: skip
    rng = np.random.default_rng(8)
    width = heads * dim + kv_heads * (dim + values)
    qkv = rng.standard_normal((TOKENS, width)).astype(np.float32)
    dense = qkv.copy()
    at = heads * dim
    for size in (dim, dim, values, values):
        dense[:, at : at + size] = kept(np.ascontiguousarray(qkv[:, at : at + size]), RowCode.FP8)
        at += size

    def run(rows: np.ndarray, code: RowCode, size: int) -> np.ndarray:
        plane, parts = cpu.plane(60, BLOCK, kv_heads, dim, values, code=code), []
        queries, out = cpu.tensor(heads * 48), cpu.tensor(heads * values)
        for first in range(0, TOKENS, size):
            chunk = rows[first : first + size]
            held = step(cpu, range(first, first + len(chunk)))
            cpu.rotary_cache_write(held, tensor_of(cpu, chunk), shape, plane, queries)
            cpu.attend_paged(held, queries, shape, plane, out)
            parts.append(cpu.read(out, len(chunk)))
        return np.concatenate(parts)

    wanted = run(dense, RowCode.FLOAT, CAPACITY)
    for size in (CAPACITY, 7):
        np.testing.assert_array_equal(run(qkv, RowCode.FP8, size), wanted)
