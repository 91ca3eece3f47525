"""Tables of n-gram rows: where a checkpoint has them, what a rank keeps, what they are found by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from model_fixtures import write_checkpoint

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import FP8_TENSOR, MXFP8
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.account import Account
from dgpp.models.layers.ngram import NgramRows, NgramShape
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.shard import ALONE, Shard
from dgpp.models.sources import CheckedWeights, LoadedWeights, PlannedWeights
from dgpp.models.table_binding import bind_table, holds_some, rows_within
from dgpp.models.tables import Table, Tables
from kernels_numba.cpu.backend import CpuBackend
from kernels_numba.tables import NgramHash

HOW = NgramHash(multipliers=(5, 9, 3), primes=(5, 7, 11, 13), pad=1, reset=1)
ROWS, SHARDS = 40, 4
SHAPE = NgramShape(HOW, 16, ROWS)
CODES = np.random.default_rng(2).integers(0, 120, (ROWS, 16)).astype(np.uint8)


def table_of(shard: Shard = ALONE, **changes) -> Table:
    fields = {
        "prefixes": ("layers.1.ple", "layers.2.ple"),
        "matrix": "rows",
        "rows": ROWS,
        "columns": 16,
        "format": FP8_TENSOR,
        "shards": SHARDS,
        "scale": "scale",
        "constants": (("primes", HOW.primes),),
        "held": SHAPE.held(shard),
    }
    return Table(**{**fields, **changes})


def write(
    directory: Path, prefix: str = "layers.1.ple", without: Sequence[str] = (), scale: int = 0x3F00
) -> Checkpoint:
    each = ROWS // SHARDS
    tensors = {
        f"{prefix}.rows.shard_{s}.weight": ("F8_E4M3", CODES[s * each : (s + 1) * each])
        for s in range(SHARDS)
    }
    # 0x3F00 is 0.5 in bf16.
    tensors[f"{prefix}.rows.scale"] = ("BF16", np.array([scale], np.uint16))
    tensors[f"{prefix}.primes"] = ("I64", np.array(HOW.primes, np.int64))
    for name in [name for name in tensors if any(part in name for part in without)]:
        del tensors[name]
    return write_checkpoint(directory, tensors)


def bind(checkpoint: Checkpoint, table: Table, tables: Checkpoint | None = None):
    own = Binding(checkpoint)
    shards = bind_table(own, None if tables is None else Binding(tables), table).shards
    own.finish()
    return shards


@pytest.mark.parametrize("prefix", ["layers.1.ple", "layers.2.ple"])
def test_a_table_binds_under_either_name(tmp_path: Path, prefix: str) -> None:
    shards = bind(write(tmp_path, prefix), table_of())
    assert [shard.tensor for shard in shards] == [
        f"{prefix}.rows.shard_{s}.weight" for s in range(SHARDS)
    ]
    np.testing.assert_array_equal(np.concatenate([s.part.data for s in shards]), CODES)
    assert all(float(shard.part.scale[3, 0]) == 0.5 for shard in shards)


def test_a_table_of_another_checkpoint(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare", without=["rows"])
    other = write(tmp_path / "other", "layers.2.ple")
    shards = bind(bare, table_of(), other)
    assert shards[0].checkpoint is other
    # Its own rows are set aside where another checkpoint's are asked for.
    whole = write(tmp_path / "whole")
    assert bind(whole, table_of(), other)[0].checkpoint is other
    with pytest.raises(CheckpointError, match=r"bare: tensor layers.1.ple.rows.shard_0.weight is "
                       r"missing; engine.ngram_table_model names"):  # fmt: skip
        bind(bare, table_of())
    with pytest.raises(CheckpointError, match=r"bare: tensor .* is missing"):
        bind(whole, table_of(), bare)


def test_rows_that_are_found_otherwise_are_refused(tmp_path: Path) -> None:
    table = table_of(constants=(("primes", (5, 7, 11, 17)),))
    with pytest.raises(CheckpointError, match=r"layers.1.ple.primes is \[5, 7, 11, 13\], "
                       r"config.json makes it \[5, 7, 11, 17\]"):  # fmt: skip
        bind(write(tmp_path), table)
    with pytest.raises(CheckpointError, match=r"shard_3.weight is missing"):
        bind(write(tmp_path / "part", without=["shard_3"]), table_of())


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_keep_their_heads_rows_and_all_of_them_together(world: int) -> None:
    spans = [SHAPE.held(Shard(rank, world)) for rank in range(world)]
    rows = [row for first, count in spans for row in range(first, first + count)]
    assert rows == list(range(ROWS))
    if world == 2:
        assert spans == [(0, 12), (12, 28)]
    with pytest.raises(ConfigError, match="does not divide the heads of the n-gram table"):
        SHAPE.held(Shard(0, 3))


def test_a_plan_counts_what_a_rank_keeps() -> None:
    for tables, size in ((Tables(), (11 + 13 + 4) * 16), (Tables(mapped=True), None)):
        source = PlannedWeights(Shard(1, 2), tables)
        NgramRows(source, table_of(source.shard), SHAPE)
        assert source.items.get("n-gram table") == size
        assert source.mapped == (0 if size else ROWS * 16)


def test_rows_within_any_parts(tmp_path: Path) -> None:
    parts = [shard.part for shard in bind(write(tmp_path), table_of())]
    for first, count in ((0, ROWS), (3, 2), (9, 2), (5, 30), (30, 10)):
        found = rows_within(parts, first, count)
        np.testing.assert_array_equal(
            np.concatenate([part.data for part in found]), CODES[first : first + count]
        )


@pytest.mark.parametrize("mapped", [False, True])
def test_the_layer_gives_rows_side_by_side(tmp_path: Path, mapped: bool) -> None:
    backend = CpuBackend(8, 1)
    checkpoint = write(tmp_path)
    source = LoadedWeights(Binding(checkpoint), backend, ALONE, Tables(mapped=mapped))
    layer = NgramRows(source, table_of(), SHAPE)
    checkpoint.release()
    work = Workspace(backend, WorkspaceShape(16, 16, 16, 0, extra=SHAPE.rows), None)
    ring = backend.store(1, SHAPE.ring("layer").rows, 1, wide=True)
    layer.prepare(backend, work, ring)
    rows = backend.rows(1, 1)
    rows.count = 3
    rows.tokens[:3], rows.positions[:3] = [4, 1, 6], [0, 1, 2]
    backend.begin(rows)
    got = backend.read(layer.forward(rows, work, None), 3).reshape(3, 4, 16)
    # By hand: 4·5 ^ 1·9 = 29, ^ 1·3 = 30; 1·5 ^ 4·9 = 33, ^ 1·3 = 34 (nothing before the prompt);
    # 6·5 ^ 1·9 = 23, ^ 1·3 = 20 (token 1 ends what went before).
    for row, (two, three) in enumerate([(29, 30), (33, 34), (23, 20)]):
        ids = [two % 5, 5 + two % 7, 12 + three % 11, 23 + three % 13]
        code = CODES[ids].astype(np.int64)
        exponent, mantissa = code >> 3, code & 7
        size = np.where(exponent, np.ldexp(8 + mantissa, exponent - 10), np.ldexp(mantissa, -9))
        np.testing.assert_array_equal(got[row], (size * 0.5).astype(np.float32))


def test_ranks_of_a_mapped_table_compare_its_ends(tmp_path: Path) -> None:
    accounts: list[Account] = []
    for rank in range(2):
        source = LoadedWeights(
            Binding(write(tmp_path / str(rank))), CpuBackend(1, 1), Shard(rank, 2),
            Tables(mapped=True),
        )  # fmt: skip
        NgramRows(source, table_of(source.shard), SHAPE)
        accounts.append(source.account)
    assert accounts[0].digests == accounts[1].digests
    assert len(accounts[0].digests) == SHARDS
    assert (accounts[0].total, accounts[0].read) == (0, 0)
    source = LoadedWeights(Binding(write(tmp_path / "r")), CpuBackend(1, 1), Shard(1, 2))
    NgramRows(source, table_of(source.shard), SHAPE)
    assert (source.account.total, source.account.read) == (ROWS * 16, 28 * 16)


def test_checking_reads_nothing_and_names_what_is_wrong(tmp_path: Path) -> None:
    checkpoint = write(tmp_path)
    NgramRows(CheckedWeights(Binding(checkpoint)), table_of(), SHAPE)
    with pytest.raises(CheckpointError, match=r"shard_0.weight has shape \[10, 16\], not"):
        NgramRows(CheckedWeights(Binding(checkpoint)), table_of(columns=8), SHAPE)


def test_a_table_of_which_anything_is_there_is_not_elsewhere(tmp_path: Path) -> None:
    def some(name: str, *without: str) -> bool:
        return holds_some(Binding(write(tmp_path / name, without=without)), table_of())

    codes = [f"shard_{s}" for s in range(SHARDS)]
    assert some("whole")
    assert some("codes", "scale")
    assert some("scale", *codes)
    assert some("end", *codes[:-1], "scale")
    assert not some("none", *codes, "scale")


def test_a_tables_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, scale=0x7FC0)
    with pytest.raises(CheckpointError, match=r"tensor layers.1.ple.rows.scale is nan, not a"):
        bind(checkpoint, table_of())


@pytest.mark.parametrize("row", [3, 25])
def test_a_scale_of_a_row_that_this_rank_keeps_is_named(tmp_path: Path, row: int) -> None:
    scales = np.full((ROWS, 1), 127, np.uint8)
    scales[row] = 255
    codes = np.zeros((ROWS, 32), np.uint8)
    arrays = {"t.rows.weight": ("F8_E4M3", codes), "t.rows.scale": ("F8_E8M0", scales)}
    checkpoint = write_checkpoint(tmp_path, arrays)
    for first, count in ((0, 20), (20, 20)):
        table = Table(("t",), "rows", ROWS, 32, MXFP8, held=(first, count))
        weights = LoadedWeights(Binding(checkpoint), CpuBackend(1, 1))
        if row not in range(first, first + count):
            assert weights.table("", table) is not None
            continue
        with pytest.raises(CheckpointError, match=r"tensor t.rows.scale holds a scale that is no"):
            weights.table("", table)
