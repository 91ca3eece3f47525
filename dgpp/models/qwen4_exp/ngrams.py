"""How Qwen3.8-Flash-Next finds the rows of its n-gram table: what config.json alone makes of it."""

from __future__ import annotations

from itertools import islice

from dgpp.models.layers.ngram import NgramShape, primes_from
from dgpp.models.qwen4_exp.config import Qwen4ExpConfig
from dgpp.models.shard import Shard
from dgpp.models.tables import Table
from kernels_numba.tables import NgramHash

_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def _splitmix(state: int) -> int:
    """The number that the generator gives next after `state`, in 64 bits."""
    mixed = (state + _STEP) & _WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
    return mixed ^ mixed >> 31


def multipliers(config: Qwen4ExpConfig) -> tuple[int, ...]:
    """Odd factors, one per token of the longest n-gram, whose products with ids fit 63 bits."""
    half = ((1 << 63) - 1) // config.vocab_size // 2
    return tuple(
        2 * (_splitmix(config.seed + _STEP * (place + 1) & _WORD) % half) + 1
        for place in range(config.ngram_size)
    )


def primes(config: Qwen4ExpConfig) -> tuple[int, ...]:
    """Rows of each head's part of the table: consecutive primes from the base on."""
    heads = (config.ngram_size - 1) * config.heads_per_ngram
    return tuple(islice(primes_from(config.ngram_vocab_size_base), heads))


def ngram_shape(config: Qwen4ExpConfig) -> NgramShape:
    how = NgramHash(
        multipliers(config), primes(config), pad=config.eos_token_id, reset=config.eos_token_id
    )
    unit = config.make_ngram_vocab_size_divisible_by
    total = -(-how.offsets[-1] // unit) * unit
    return NgramShape(how, config.ple_embed_dim // len(how.primes), total)


def ngram_table(config: Qwen4ExpConfig, prefixes: tuple[str, ...], shard: Shard) -> Table:
    """The table under one of `prefixes`, and the constants that releases store beside it."""
    shape = ngram_shape(config)
    stored = config.table_format
    return Table(
        prefixes=prefixes,
        matrix="ngram_embedding",
        rows=shape.total,
        columns=shape.dim,
        format=stored,
        shards=config.split_ngram_parts,
        scale="" if stored.name == "bf16" else "weight_scale",
        constants=(
            ("layer_multipliers", shape.how.multipliers),
            ("ngram_heads_vocab_sizes", shape.how.primes),
            ("ngram_heads_offsets", shape.how.offsets[:-1]),
        ),
        held=shape.held(shard),
    )
