"""DeepSeek-V4-Flash: heads of one shared row, a window beside compressed entries, four streams.

Every layer: the streams collapse, attention of their norm, the output expands over the streams; the
same around a mixture of experts, which in the first layers a table names by token. Queries see a
window and, in layers of ratio 4, the entries that an indexer selects, in those of another ratio all
entries. What comes out is a weighted sum of the streams. Draft stages see a window only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dgpp.checkpoint.formats import F32_BARE, FP8_E8M0_128, MXFP4_I8
from dgpp.models.decoder import Decoder
from dgpp.models.deepseek import shapes
from dgpp.models.deepseek.shapes import dspark_shape, hyper_shape
from dgpp.models.deepseek.stages import (
    StageLayer,
    declaration,
    draft_stages,
    dspark_drafter,
    ends,
    kept,
    rotary_tables,
)
from dgpp.models.deepseek_v4.config import INDEXED, TILE, DeepseekV4Config
from dgpp.models.layers.compressor import Compressor, CompressorShape
from dgpp.models.layers.dspark import DSpark
from dgpp.models.layers.entry_indexer import EntryIndexer, EntryIndexerShape
from dgpp.models.layers.extended import extended
from dgpp.models.layers.hyper import GatedStreams, HyperConnection
from dgpp.models.layers.moe import DEEPSEEK, MoeShape, RoutedMoe
from dgpp.models.layers.shared_key import SharedKeyAttention, SharedKeyShape
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.shard import Shard
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import PagedRows, Ring
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows, Tensor
from kernels_numba.extended import Code, Entries, Rounding


def attention_shape(config: DeepseekV4Config) -> SharedKeyShape:
    return replace(shapes.attention_shape(config), norm_heads=True, rounding=_row_rounding(config))


def _row_rounding(config: DeepseekV4Config) -> Rounding | None:
    """Of a window's rows and of entries, whose turning values stay as they are."""
    still = config.head_dim - config.qk_rope_head_dim
    return shapes.rounding(config, Code.FP8_E8M0, still, TILE)


def entry_shape(config: DeepseekV4Config, ratio: int) -> CompressorShape:
    shape = shapes.compressor_shape(config, f"entry {ratio}", config.head_dim, ratio)
    parts = 2 if ratio == INDEXED else 1
    return replace(shape, parts=parts, biased=True, rounding=_row_rounding(config))


def key_shape(config: DeepseekV4Config) -> CompressorShape:
    """The indexer's keys, made as entries are."""
    shape = shapes.compressor_shape(config, "index", config.index_head_dim, INDEXED)
    rounding = shapes.index_rounding(config)
    return replace(shape, parts=2, biased=True, rounding=rounding, evened=True)


def indexer_shape(config: DeepseekV4Config) -> EntryIndexerShape:
    return replace(shapes.indexer_shape(config, INDEXED), evened=True)


def moe_shape(config: DeepseekV4Config, *, named: bool) -> MoeShape:
    shape = shapes.moe_shape(config, config.n_shared_experts)
    return replace(shape, limit_shared=False, vocabulary=config.vocab_size if named else 0)


def workspace_shape(config: DeepseekV4Config, shard: Shard, *, drafts: bool) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    own = attention_shape(config).own(shard)
    ratios = sorted(set(config.compress_ratios) - {0})
    entries = [row for ratio in ratios for row in entry_shape(config, ratio).rows]
    indexed = (*key_shape(config).rows, *indexer_shape(config).rows) if INDEXED in ratios else ()
    shared = config.moe_intermediate_size * config.n_shared_experts
    extra = (*own.rows, *hyper_shape(config).rows, *entries, *indexed)
    return WorkspaceShape(
        hidden=config.hidden_size,
        attended=own.attended,
        intermediate=shared // shard.world,
        partial=config.hidden_size if shard.world > 1 else 0,
        experts_per_token=config.num_experts_per_tok,
        selected=config.index_topk if INDEXED in ratios else 0,
        streams=config.hc_mult,
        extra=(*extra, *dspark_shape(config).rows) if drafts else extra,
    )


class DeepseekV4Layer(StageLayer):
    """Layer `index`, or a draft stage where it is beyond the last. `tap` sees what a layer leaves
    on the streams."""

    def __init__(
        self, config: DeepseekV4Config, source: WeightSource, index: int, prefix: str
    ) -> None:
        self.index, self.ratio = index, config.compress_ratios[index]
        name, hyper = f"{prefix}.attn", hyper_shape(config)
        shape = attention_shape(config)
        self.attention = SharedKeyAttention(
            source, name, f"{prefix}.attn_norm", shape, FP8_E8M0_128
        )
        self.entries: Compressor | None = None
        self.keys: Compressor | None = None
        if self.ratio:
            self.entries = Compressor(source, f"{name}.compressor", entry_shape(config, self.ratio))
        if self.ratio == INDEXED:
            self.indexer = EntryIndexer(
                source, f"{name}.indexer", indexer_shape(config), FP8_E8M0_128
            )
            self.keys = Compressor(source, f"{name}.indexer.compressor", key_shape(config))
        experts = moe_shape(config, named=index < config.num_hash_layers)
        self._mlp = RoutedMoe(source, prefix, index, experts, MXFP4_I8, FP8_E8M0_128, DEEPSEEK)
        self._mix, self._spread = (
            HyperConnection(source, f"{prefix}.hc_{site}", hyper, F32_BARE)
            for site in ("attn", "ffn")
        )
        self.tap: DSpark | None = None

    def paged(self, name: str) -> list[PagedRows]:
        return [made.shape.entries(name) for made in (self.entries, self.keys) if made]

    def rings(self, name: str) -> list[Ring]:
        made = [made.shape.ring(name) for made in (self.entries, self.keys) if made]
        return [self.attention.shape.ring(name), *made]

    def prepare(
        self, ops: Backend, angles: Tensor, paged: Sequence[object], rings: Sequence[object]
    ) -> None:
        """Give the layer its rotary table and its state, as declared, once."""
        self.attention.prepare(ops, angles, rings[0])
        self._paged = paged
        for made, ring in zip((self.entries, self.keys), rings[1:], strict=False):
            assert made is not None, "a ring for each compressor"
            made.prepare(extended(ops), angles, ring)
        if self.keys is not None:
            self.indexer.prepare(extended(ops), angles)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self._mix.before(ops, rows, work)
        self.attention.project(rows, work)
        self.attention.attend(rows, work, self._compress(rows, work, observer))
        self._feed(ops, rows, work, observer)
        if self.tap is not None:
            self.tap.tap(self.index, rows, work)

    def _feed(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self._mix.after(ops, rows, work)
        self._spread.before(ops, rows, work)
        self._mlp.forward(ops, rows, work, observer)
        self._spread.after(ops, rows, work)

    def _compress(self, rows: Rows, work: Workspace, observer: Observer | None) -> Entries | None:
        """Keep the entries that the rows complete; what the rows attend to beside the window."""
        if self.entries is None:
            return None
        entries = self.entries.forward(rows, work, work.normed)
        self.entries.keep(rows, entries, self._paged[0])
        if self.keys is None:
            return Entries(self._paged[0], self.ratio)
        self.keys.keep(rows, self.keys.forward(rows, work, work.normed), self._paged[1])
        ranked, norm = self.attention.ranked(work), self.attention.query_norm
        self.indexer.forward(rows, work, work.normed, ranked, norm, self._paged[1], work.selection)
        if observer is not None:
            observer.selected(self.index, rows, work.selection)
        return Entries(self._paged[0], self.ratio, work.selection)


class DeepseekV4Model(Decoder):
    """`drafts` loads the draft stages beside the layers."""

    def __init__(self, config: DeepseekV4Config, source: WeightSource, *, drafts: bool) -> None:
        super().__init__(source, ends(config))
        self._config = config
        self.streams = GatedStreams(source, "hc_head", hyper_shape(config), F32_BARE)
        layer_of, drafter_of = partial(DeepseekV4Layer, config), partial(_drafter, config)
        self.layers = layers = [
            layer_of(source, index, f"layers.{index}") for index in range(config.num_hidden_layers)
        ]
        stages = draft_stages(config, source, config.stages, layer_of, drafter_of, drafts=drafts)
        self.drafts, self.drafter = [], stages.drafter
        for layer in layers:
            layer.tap = self.drafter
        self._all = [*layers, *stages.layers]
        self.state = declaration(self._all)
        self.workspace = workspace_shape(config, source.shard, drafts=self.drafter is not None)
        self.rotary = 2 * config.qk_rope_head_dim

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        table_of = rotary_tables(self._config, backend, positions)
        for layer, paged, rings in kept(self._all, pools):
            layer.prepare(backend, table_of(layer), paged, rings)
        if self.drafter is not None:
            self.drafter.prepare(backend, self.work)

    def forward(self, rows: Rows, observer: Observer | None = None) -> None:
        super().forward(rows, observer)
        if self.drafter is not None:
            self.drafter.extend(rows)


def _drafter(
    config: DeepseekV4Config, source: WeightSource, stages: Sequence[DeepseekV4Layer]
) -> DSpark:
    last = f"mtp.{len(stages) - 1}"
    streams = GatedStreams(source, f"{last}.hc_head", hyper_shape(config), F32_BARE)
    return dspark_drafter(config, source, stages, streams, FP8_E8M0_128, ("markov_w1", "markov_w2"))
