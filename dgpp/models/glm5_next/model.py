"""GLM-5.3-Flash: delta layers and sparse latent attention on a residual of four streams.

Every layer: the streams collapse, attention or delta rule of their norm, the output expands over
the streams; the same around a dense MLP or a mixture of experts. What comes out is the streams'
mean. No layer rotates by positions.
"""

from __future__ import annotations

from functools import partial

from dgpp.checkpoint.formats import BF16_BARE
from dgpp.models.decoder import Decoder, Ends
from dgpp.models.glm.layers import feed_forward, stack
from dgpp.models.glm.shapes import indexer_shape, mla_shape, shared_width
from dgpp.models.glm5_next.config import Glm5NextConfig
from dgpp.models.layers.hyper import HyperConnection, HyperShape, MeanStreams
from dgpp.models.layers.indexer import IndexerShape, PoolIndexer
from dgpp.models.layers.kda import KdaShape, KimiDelta
from dgpp.models.layers.mla import MlaAttention, MlaShape
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.shard import Shard
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import FixedState, PagedRows, Ring, StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows

PREFIX = "model.language_model"


def kda_shape(config: Glm5NextConfig) -> KdaShape:
    told = config.linear_attn_config
    return KdaShape(
        hidden=config.hidden_size,
        heads=told.num_heads,
        dim=told.head_dim,
        taps=told.short_conv_kernel_size,
        bound=told.gate_lower_bound,
        eps=config.rms_norm_eps,
    )


def attention_shape(config: Glm5NextConfig) -> MlaShape:
    return mla_shape(config, 0, config.rms_norm_eps)


def index_shape(config: Glm5NextConfig) -> IndexerShape:
    return indexer_shape(config, 0, config.index_kpool)


def hyper_shape(config: Glm5NextConfig) -> HyperShape:
    return HyperShape(
        streams=config.hc_mult,
        width=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        eps=config.hc_eps,
        iterations=config.hc_sinkhorn_iters,
    )


def workspace_shape(config: Glm5NextConfig, shard: Shard) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    mla, kda = attention_shape(config).own(shard), kda_shape(config).own(shard)
    indexer = index_shape(config)
    return WorkspaceShape(
        hidden=config.hidden_size,
        attended=max(mla.heads * mla.values, kda.width),
        intermediate=max(config.intermediate_size, shared_width(config)) // shard.world,
        partial=config.hidden_size if shard.world > 1 else 0,
        experts_per_token=config.num_experts_per_tok,
        selected=indexer.selected,
        streams=config.hc_mult,
        extra=(*mla.rows, *kda.rows, *indexer.rows, *hyper_shape(config).rows),
    )


class Glm5NextLayer:
    """A mixer and an MLP. Layers of the backbone have a connection to the streams around each; a
    draft layer, behind them, adds to one residual."""

    def __init__(self, config: Glm5NextConfig, source: WeightSource, index: int) -> None:
        prefix = f"{PREFIX}.layers.{index}"
        name, norm = f"{prefix}.self_attn", f"{prefix}.input_layernorm"
        self._index = index
        self.mixer: KimiDelta | MlaAttention
        if config.sparse(index):
            gate = Linear(
                f"{name}.indexer.index_kpool_compress_gate",
                config.index_head_dim,
                config.hidden_size,
                BF16_BARE,
            )
            indexer = PoolIndexer(source, f"{name}.indexer", index_shape(config), gate)
            shape = attention_shape(config)
            self.mixer = MlaAttention(source, name, norm, shape, config.format, indexer)
        else:
            self.mixer = KimiDelta(source, name, norm, kda_shape(config))
        self._mlp = feed_forward(config, source, prefix, index, config.swiglu_limit)
        self._sites: list[HyperConnection] = []
        if index < config.num_hidden_layers:
            self._sites = [
                HyperConnection(source, f"{prefix}.hc_{site}", hyper_shape(config))
                for site in ("attn", "ffn")
            ]

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        for place, site in enumerate(self._sites or [None, None]):
            if site is not None:
                site.before(ops, rows, work)
            if place == 0:
                self._mix(rows, work, observer)
            else:
                self._mlp.forward(ops, rows, work, observer)
            if site is not None:
                site.after(ops, rows, work)

    def _mix(self, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        if isinstance(self.mixer, KimiDelta):
            self.mixer.forward(rows, work)
            return
        self.mixer.forward(rows, work, work.selection)
        if observer is not None:
            observer.selected(self._index, rows, work.selection)


class Glm5NextModel(Decoder):
    """`drafts` loads the draft layers beside the others."""

    def __init__(self, config: Glm5NextConfig, source: WeightSource, *, drafts: bool) -> None:
        ends = Ends(
            config.vocab_size,
            config.hidden_size,
            config.rms_norm_eps,
            embedding=f"{PREFIX}.embed_tokens",
            norm=f"{PREFIX}.norm.weight",
            head_format=config.format("lm_head"),
        )
        super().__init__(source, ends)
        self._config = config
        source.ignore("model.visual.*")
        self.layers, self.drafts, self._all = stack(
            config, source, f"{PREFIX}.layers", partial(Glm5NextLayer, config), drafts=drafts
        )
        self.state = self._state(source.shard)
        self.workspace = workspace_shape(config, source.shard)
        self.streams = MeanStreams(hyper_shape(config))
        self.rotary = 0

    def _state(self, shard: Shard) -> StateDeclaration:
        """Of a sparse layer latents, pooled keys and the open pool; of a delta layer its
        convolution and its recurrence."""
        paged: list[PagedRows] = []
        rings: list[Ring] = []
        fixed: list[FixedState] = []
        mla, indexer = attention_shape(self._config), index_shape(self._config)
        delta = kda_shape(self._config).own(shard)
        for index, layer in enumerate(self._all):
            name = f"layer {index}"
            if isinstance(layer.mixer, KimiDelta):
                rings.append(delta.ring(name))
                fixed.append(delta.fixed(name))
            else:
                paged += [mla.latents(name), indexer.keys(name)]
                rings.append(indexer.ring(name))
        return StateDeclaration((), tuple(paged), tuple(rings), tuple(fixed))

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        paged, rings, fixed = iter(pools.paged), iter(pools.rings), iter(pools.fixed)
        for layer in self._all:
            if isinstance(layer.mixer, KimiDelta):
                layer.mixer.prepare(backend, next(rings), next(fixed))
            else:
                latents, keys = next(paged), next(paged)
                layer.mixer.prepare(backend, None, latents, (keys, next(rings)))
