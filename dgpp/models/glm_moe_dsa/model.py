"""GLM-5.3: latent attention over selected positions, then a dense MLP or a mixture of experts.

Every layer: x += o_proj(attention(norm x)); x += mlp(norm x). Full layers select positions by an
indexer; shared layers attend to what the last full one selected.
"""

from __future__ import annotations

from functools import partial

from dgpp.models.decoder import Decoder, Ends
from dgpp.models.glm.layers import feed_forward, stack
from dgpp.models.glm.shapes import indexer_shape, mla_shape, shared_width
from dgpp.models.glm_moe_dsa.config import RANK_EPS, GlmDsaConfig
from dgpp.models.layers.indexer import IndexerShape, TokenIndexer
from dgpp.models.layers.mla import MlaAttention, MlaShape
from dgpp.models.layers.rope import rotary_angles
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.shard import Shard
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import PagedRows, StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows


def attention_shape(config: GlmDsaConfig) -> MlaShape:
    return mla_shape(config, config.qk_rope_head_dim, RANK_EPS)


def index_shape(config: GlmDsaConfig) -> IndexerShape:
    return indexer_shape(config, config.qk_rope_head_dim)


def workspace_shape(config: GlmDsaConfig, shard: Shard) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    own = attention_shape(config).own(shard)
    return WorkspaceShape(
        hidden=config.hidden_size,
        attended=own.heads * own.values,
        intermediate=max(config.intermediate_size, shared_width(config)) // shard.world,
        partial=config.hidden_size if shard.world > 1 else 0,
        experts_per_token=config.num_experts_per_tok,
        selected=config.index_topk,
        extra=(*own.rows, *index_shape(config).rows),
    )


class GlmDsaLayer:
    """Latent attention, then an MLP or experts."""

    def __init__(self, config: GlmDsaConfig, source: WeightSource, index: int) -> None:
        prefix = f"model.layers.{index}"
        name = f"{prefix}.self_attn"
        self._index = index
        indexer = None
        if config.selects(index):
            indexer = TokenIndexer(source, f"{name}.indexer", index_shape(config))
        shape, norm = attention_shape(config), f"{prefix}.input_layernorm"
        self.attention = MlaAttention(source, name, norm, shape, config.format, indexer)
        self._mlp = feed_forward(config, source, prefix, index)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self.attention.forward(rows, work, work.selection)
        if observer is not None:
            observer.selected(self._index, rows, work.selection)
        self._mlp.forward(ops, rows, work, observer)


class GlmDsaModel(Decoder):
    """`drafts` loads the draft layers beside the others."""

    def __init__(self, config: GlmDsaConfig, source: WeightSource, *, drafts: bool) -> None:
        ends = Ends(
            config.vocab_size,
            config.hidden_size,
            config.rms_norm_eps,
            head_format=config.format("lm_head"),
        )
        super().__init__(source, ends)
        self._config = config
        self.layers, self.drafts, self._all = stack(
            config, source, "model.layers", partial(GlmDsaLayer, config), drafts=drafts
        )
        self.state = StateDeclaration(planes=(), paged=self._paged())
        self.workspace = workspace_shape(config, source.shard)
        self.rotary = config.qk_rope_head_dim

    def _paged(self) -> tuple[PagedRows, ...]:
        """Per layer its latents, and where it selects its index keys, whole on every rank."""
        rows = []
        mla, indexer = attention_shape(self._config), index_shape(self._config)
        for index, layer in enumerate(self._all):
            rows.append(mla.latents(f"layer {index}"))
            if layer.attention.indexer is not None:
                rows.append(indexer.keys(f"layer {index}"))
        return tuple(rows)

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        config = self._config
        angles = rotary_angles(positions, config.qk_rope_head_dim, config.rope_theta)
        table, stores = backend.rotary_table(angles), iter(pools.paged)
        for layer in self._all:
            latents = next(stores)
            keys = next(stores) if layer.attention.indexer is not None else None
            layer.attention.prepare(backend, table, latents, keys)
