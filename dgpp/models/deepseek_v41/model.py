"""DeepSeek-V4.1-Flash: heads of one shared row, a window beside entries that layers share, streams.

A layer of the encoder half may first let the rows that its tokens' n-grams name join the streams.
The streams collapse by the mixes of the sublayer before; attention of their norm, whose output
expands over them; the same around a mixture of experts. Some layers keep compressed entries and
keys of them, some select entries by the latest keys; the others read what the last such layer left.
The first decoder layer also leaves blocks of entries, within which later ones select. What comes
out is collapsed by the last mixes. Where a prompt's end alone goes through the decoder half, its
first layer still keeps entries of all rows. Draft stages see a window only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dgpp.checkpoint.formats import F32_BARE, FP8_E8M0_32, MXFP4_I8
from dgpp.models.decoder import Decoder
from dgpp.models.deepseek.shapes import hyper_shape, indexer_shape
from dgpp.models.deepseek.stages import (
    StageLayer,
    declaration,
    draft_stages,
    dspark_drafter,
    ends,
    kept,
    rotary_tables,
)
from dgpp.models.deepseek_v41.config import DeepseekV41Config
from dgpp.models.deepseek_v41.engram import Engram, classes_of, engram_shapes
from dgpp.models.deepseek_v41.entries import KeptEntries
from dgpp.models.deepseek_v41.shapes import (
    attention_shape,
    engram_sizes,
    entry_shape,
    key_shape,
    moe_shape,
    workspace_shape,
)
from dgpp.models.layers.dspark import DSpark
from dgpp.models.layers.entry_indexer import EntryIndexer
from dgpp.models.layers.extended import extended
from dgpp.models.layers.hyper import CopiedStreams, HyperShape, SinglePassConnection
from dgpp.models.layers.moe import DEEPSEEK, RoutedMoe
from dgpp.models.layers.ngram import NgramShape
from dgpp.models.layers.shared_key import SharedKeyAttention
from dgpp.models.layers.tail import Tail
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import PagedRows, Ring
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows, Tensor
from kernels_numba.extended import Candidates, Entries

OWN, NEXT = "hyper mixes", "hyper next"
"""The mixes of a layer's first site, by which its second collapses, and those of the second."""


class DeepseekV41Layer(StageLayer):
    """Layer `index`, or a draft stage where it is beyond the last. `source_of` is the layer whose
    entries it reads, itself or one before it; `tap` sees the streams that its attention reads."""

    engram: Engram | None = None
    kept: KeptEntries | None = None
    indexer: EntryIndexer | None = None
    source_of: KeptEntries | None = None
    tap: DSpark | None = None

    def __init__(
        self, config: DeepseekV41Config, source: WeightSource, index: int, prefix: str
    ) -> None:
        count, name = config.num_hidden_layers, f"{prefix}.attn"
        self.index, self.ratio = index, config.compress_ratios[index]
        shape = attention_shape(config, floored=index >= config.decoder)
        norm = f"{prefix}.attn_norm"
        self.attention = SharedKeyAttention(source, name, norm, shape, FP8_E8M0_32)
        if index in config.kv_source_layer_ids:
            entries = entry_shape(config, self.ratio)
            self.kept = KeptEntries(source, name, entries, key_shape(config))
        if index in config.index_source_layer_ids:
            indexing = indexer_shape(config, self.ratio)
            self.indexer = EntryIndexer(source, f"{name}.indexer", indexing, FP8_E8M0_32)
        experts = moe_shape(config, draft=index >= count)
        self._mlp = RoutedMoe(source, prefix, index, experts, MXFP4_I8, FP8_E8M0_32, DEEPSEEK)
        source.ignore(f"{prefix}.ffn.gate.bias_vl")
        hyper, first = hyper_shape(config), index in (0, count)
        self._mix = SinglePassConnection(
            source, f"{prefix}.hc_attn", hyper, F32_BARE, own=OWN, by=None if first else NEXT
        )
        self.spread = SinglePassConnection(
            source, f"{prefix}.hc_ffn", hyper, F32_BARE, own=NEXT, by=OWN
        )

    def paged(self, name: str) -> list[PagedRows]:
        return [] if self.kept is None else self.kept.paged(name)

    def rings(self, name: str) -> list[Ring]:
        kept = [] if self.kept is None else self.kept.rings(name)
        tokens = [] if self.engram is None else [self.engram.shape.ring(name)]
        return [self.attention.shape.ring(name), *tokens, *kept]

    def prepare(
        self,
        ops: Backend,
        work: Workspace,
        angles: Tensor,
        paged: Sequence[object],
        rings: Sequence[object],
        candidates: Candidates | None,
    ) -> None:
        """Give the layer its rotary table and its state, as declared, once. `candidates` are the
        blocks that it leaves or selects within."""
        self._candidates = candidates
        window, *rest = rings
        self.attention.prepare(ops, angles, window)
        if self.engram is not None:
            tokens, *rest = rest
            self.engram.prepare(ops, work, tokens)
        if self.kept is not None:
            self.kept.prepare(extended(ops), angles, paged, rest)
        if self.indexer is not None:
            self.indexer.prepare(extended(ops), angles)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self.begin(ops, rows, work, observer)
        self.finish(ops, rows, work, observer)

    def begin(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        """What a layer does with every row that it keeps something of."""
        if self.engram is not None:
            self.engram.forward(ops, rows, work, observer)
        if self.tap is not None:
            self.tap.tap(self.index, rows, work)
        self._mix.before(ops, rows, work)
        if self.kept is not None:
            ops.norm(rows, work.x, self.attention.norm, work.normed)
            self.kept.forward(rows, work, work.normed)

    def finish(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        """The sublayers, of rows that `begin` has seen."""
        self.attention.project(rows, work)
        self.attention.attend(rows, work, self._select(rows, work, observer))
        self._feed(ops, rows, work, observer)

    def _feed(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self._mix.after(ops, rows, work)
        self.spread.before(ops, rows, work)
        self._mlp.forward(ops, rows, work, observer)
        self.spread.after(ops, rows, work)

    def _select(self, rows: Rows, work: Workspace, observer: Observer | None) -> Entries | None:
        """What the rows attend to beside the window."""
        if self.source_of is None:
            return None
        if self.indexer is not None:
            ranked, norm = self.attention.ranked(work), self.attention.query_norm
            self.indexer.forward(
                rows,
                work,
                work.normed,
                ranked,
                norm,
                self.source_of.keys,
                work.selection,
                self._candidates,
            )
            if observer is not None:
                observer.selected(self.index, rows, work.selection)
        return Entries(self.source_of.entries, self.ratio, work.selection)


class LastMixStreams(CopiedStreams):
    """What comes out is collapsed by the mixes of the last site."""

    def __init__(self, shape: HyperShape, last: SinglePassConnection) -> None:
        super().__init__(shape)
        self._last = last

    def leave(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        self._last.collapse(ops, rows, work)


class DeepseekV41Model(Decoder):
    """`drafts` loads the draft stages beside the layers."""

    layers: Sequence[DeepseekV41Layer]
    streams: LastMixStreams

    def __init__(self, config: DeepseekV41Config, source: WeightSource, *, drafts: bool) -> None:
        super().__init__(source, ends(config))
        self._config, self.tail = config, config.sliding_window
        shapes = engram_shapes(config, classes_of(config, source))
        self.layers = layers = self._layers(source, shapes)
        layer_of, drafter_of = partial(DeepseekV41Layer, config), partial(_drafter, config)
        count = config.num_nextn_predict_layers
        stages = draft_stages(config, source, count, layer_of, drafter_of, drafts=drafts)
        self.drafts, self.drafter = [], stages.drafter
        for layer in layers:
            layer.tap = self.drafter
        self._all = [*layers, *stages.layers]
        self.streams = LastMixStreams(hyper_shape(config), layers[-1].spread)
        self.state = declaration(self._all)
        self.workspace = workspace_shape(
            config,
            source.shard,
            next(iter(shapes.values()), None),
            drafts=self.drafter is not None,
        )
        self.rotary = 2 * config.qk_rope_head_dim

    def _layers(
        self, source: WeightSource, shapes: dict[int, NgramShape]
    ) -> list[DeepseekV41Layer]:
        config, found = self._config, list[DeepseekV41Layer]()
        for index in range(config.num_hidden_layers):
            layer = DeepseekV41Layer(config, source, index, f"layers.{index}")
            if index in shapes:
                name, sizes = f"layers.{index}.engram", engram_sizes(config)
                layer.engram = Engram(source, name, shapes[index], sizes)
            found.append(layer)
            if layer.ratio:
                layer.source_of = found[config.kv_source(index)].kept
        return found

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        config = self._config
        table_of = rotary_tables(config, backend, positions)
        blocks = extended(backend).selection(config.candidate_topk_blocks)
        for layer, paged, rings in kept(self._all, pools):
            candidates = None
            if layer.indexer is not None and layer.index >= config.decoder:
                size, given = config.candidate_block_size, layer.index > config.decoder
                candidates = Candidates(blocks, size, given)
            layer.prepare(backend, self.work, table_of(layer), paged, rings, candidates)
        self._tail = Tail(backend)
        if self.drafter is not None:
            top = config.dspark_num_experts_per_tok
            self.drafter.prepare(backend, self.work.routed(backend, top))

    def forward(self, rows: Rows, observer: Observer | None = None) -> None:
        ops, work, first = self.ops, self.work, self._config.decoder
        self.embedding.forward(ops, rows, work, work.x)
        self.streams.enter(ops, rows, work)
        if observer is not None:
            observer.hidden(0, rows, work.streams)
        for layer in self.layers[:first]:
            layer.forward(ops, rows, work, observer)
            if observer is not None:
                observer.hidden(layer.index + 1, rows, work.streams)
        self.layers[first].begin(ops, rows, work, observer)
        tail = self._tail.of(rows)
        self._tail.pack([work.x, work.streams, work.extra[OWN]])
        if tail.count:
            self._decode(tail, observer)
        self._tail.restore(work.x)

    def _decode(self, rows: Rows, observer: Observer | None) -> None:
        """The decoder half, whose first layer has begun; work.x = what the final norm takes."""
        ops, work = self.ops, self.work
        for layer in self.layers[self._config.decoder :]:
            if layer.index > self._config.decoder:
                layer.begin(ops, rows, work, observer)
            layer.finish(ops, rows, work, observer)
            if observer is not None:
                observer.hidden(layer.index + 1, rows, work.streams)
        if self.drafter is not None:
            self.drafter.extend(rows)
        self.streams.leave(ops, rows, work)


def _drafter(
    config: DeepseekV41Config, source: WeightSource, stages: Sequence[DeepseekV41Layer]
) -> DSpark:
    streams = LastMixStreams(hyper_shape(config), stages[-1].spread)
    return dspark_drafter(config, source, stages, streams, FP8_E8M0_32, ("embed", "head"))
