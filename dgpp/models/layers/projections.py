"""How checkpoints store a layer's query, key and value projections, and what of them a rank takes.

All give rows in the order [q | gate | k | v] of the rank's heads; the gate is there where the shape
is gated.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from dgpp.checkpoint.formats import Format
from dgpp.errors import ConfigError
from dgpp.models.shard import Shard, Split
from dgpp.models.sources import Linear


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Sizes of a whole layer's projections."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    values: int


def separate(name: str, sizes: HeadSizes, stored: Format) -> list[Linear]:
    """`name`.q_proj, k_proj and v_proj."""
    rows = {
        "q": sizes.heads * sizes.head_dim,
        "k": sizes.kv_heads * sizes.head_dim,
        "v": sizes.kv_heads * sizes.values,
    }
    return [
        Linear(f"{name}.{part}_proj", count, sizes.hidden, stored, split=Split.ROWS)
        for part, count in rows.items()
    ]


def gated(name: str, sizes: HeadSizes, stored: Format, shard: Shard) -> list[Linear]:
    """As `separate`, but a head of q_proj is followed by its output gate."""
    dim = sizes.head_dim
    own = shard.span(Split.ROWS, sizes.heads, "config.json's num_attention_heads")
    queries = [(2 * head * dim, dim) for head in own]
    gates = [(first + dim, dim) for first, _ in queries]
    q_proj = Linear(
        f"{name}.q_proj",
        2 * sizes.heads * dim,
        sizes.hidden,
        stored,
        take=(*queries, *gates),
        split=Split.TAKEN,
    )
    keys_values = separate(name, sizes, stored)[1:]
    if sizes.kv_heads % shard.world:
        keys_values = [_shared_head(linear, sizes, shard) for linear in keys_values]
    return [q_proj, *keys_values]


def shared_out(kv_heads: int, shard: Shard, what: str) -> int:
    """Heads of keys of one rank; where there are fewer than ranks, several ranks have the same one.
    Raises ConfigError where that does not come out even."""
    if shard.world % kv_heads == 0:
        return 1
    return shard.part(kv_heads, what)


def _shared_head(linear: Linear, sizes: HeadSizes, shard: Shard) -> Linear:
    """The rows of the head that this rank's queries go to, which is not its alone."""
    ranks = shard.world // sizes.kv_heads
    each = linear.rows // sizes.kv_heads
    take = ((shard.rank // ranks * each, each),)
    return structs.replace(linear, take=take, split=Split.TAKEN, copies=ranks)


def fused(name: str, sizes: HeadSizes, stored: Format, chunks: int, shard: Shard) -> list[Linear]:
    """`name`.qkv_proj in `chunks` of [q | k | v], each with its share of the heads. Raises
    ConfigError where the world cuts through a chunk."""
    if chunks % shard.world:
        raise ConfigError(f"world_size: {shard.world} does not divide the {chunks} parts of {name}")
    widths = (
        sizes.heads * sizes.head_dim // chunks,
        sizes.kv_heads * sizes.head_dim // chunks,
        sizes.kv_heads * sizes.values // chunks,
    )
    chunk = sum(widths)
    own = shard.span(Split.ROWS, chunks, name)
    take = tuple((at * chunk + sum(widths[:part]), widths[part]) for part in range(3) for at in own)
    return [
        Linear(
            f"{name}.qkv_proj", chunks * chunk, sizes.hidden, stored, take=take, split=Split.TAKEN
        )
    ]
