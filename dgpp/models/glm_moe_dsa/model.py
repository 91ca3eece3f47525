"""GLM-5.3: latent attention over selected positions, then a dense MLP or a mixture of experts.

Every layer: x += o_proj(attention(norm x)); x += mlp(norm x). Full layers select positions by an
indexer; shared layers attend to what the last full one selected.
"""

from __future__ import annotations

from dgpp.models.decoder import Decoder, Ends
from dgpp.models.glm_moe_dsa.config import RANK_EPS, GlmDsaConfig
from dgpp.models.glm_moe_dsa.draft import draft_level
from dgpp.models.layers.indexer import IndexerShape, TokenIndexer
from dgpp.models.layers.mla import MlaAttention, MlaShape
from dgpp.models.layers.mlp import DenseMlp
from dgpp.models.layers.moe import MoeShape, RoutedMoe
from dgpp.models.layers.rope import rotary_angles
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.shard import Shard
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import PagedRows, StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows


def mla_shape(config: GlmDsaConfig) -> MlaShape:
    return MlaShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        q_rank=config.q_lora_rank,
        kv_rank=config.kv_lora_rank,
        nope=config.qk_nope_head_dim,
        rope=config.qk_rope_head_dim,
        values=config.v_head_dim,
        eps=config.rms_norm_eps,
        rank_eps=RANK_EPS,
    )


def indexer_shape(config: GlmDsaConfig) -> IndexerShape:
    return IndexerShape(
        hidden=config.hidden_size,
        rank=config.q_lora_rank,
        heads=config.index_n_heads,
        dim=config.index_head_dim,
        rotated=config.qk_rope_head_dim,
        top=config.index_topk,
    )


def moe_shape(config: GlmDsaConfig) -> MoeShape:
    return MoeShape(
        hidden=config.hidden_size,
        experts=config.n_routed_experts,
        top=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        shared=config.n_shared_experts,
        normalise=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        eps=config.rms_norm_eps,
    )


def workspace_shape(config: GlmDsaConfig, shard: Shard) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    own = mla_shape(config).own(shard)
    shared = config.moe_intermediate_size * max(1, config.n_shared_experts)
    return WorkspaceShape(
        hidden=config.hidden_size,
        attended=own.heads * own.values,
        intermediate=max(config.intermediate_size, shared) // shard.world,
        partial=config.hidden_size if shard.world > 1 else 0,
        experts_per_token=config.num_experts_per_tok,
        selected=config.index_topk,
        extra=(*own.rows, *indexer_shape(config).rows),
    )


class GlmDsaLayer:
    """Latent attention, then an MLP or experts."""

    def __init__(self, config: GlmDsaConfig, source: WeightSource, index: int) -> None:
        prefix = f"model.layers.{index}"
        name = f"{prefix}.self_attn"
        self._index = index
        indexer = None
        if config.selects(index):
            indexer = TokenIndexer(source, f"{name}.indexer", indexer_shape(config))
        shape, norm = mla_shape(config), f"{prefix}.input_layernorm"
        self.attention = MlaAttention(source, name, norm, shape, config.format, indexer)
        mlp = f"{prefix}.mlp"
        self._mlp: DenseMlp | RoutedMoe
        if config.dense(index):
            sizes = (config.hidden_size, config.intermediate_size, config.rms_norm_eps)
            self._mlp = DenseMlp(source, prefix, *sizes, config.format(f"{mlp}.gate_proj"))
            return
        stored = config.format(f"{mlp}.experts.0.gate_proj")
        shared = config.format(f"{mlp}.shared_experts.gate_proj")
        self._mlp = RoutedMoe(source, prefix, index, moe_shape(config), stored, shared)

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
        first = config.num_hidden_layers
        layers = [GlmDsaLayer(config, source, index) for index in range(first)]
        extra = source if drafts else source.unloaded()
        levels = range(first, first + config.num_nextn_predict_layers)
        draft_layers = [GlmDsaLayer(config, extra, index) for index in levels]
        built = [
            draft_level(config, extra, index, layer)
            for index, layer in zip(levels, draft_layers, strict=True)
        ]
        self.layers, self.drafts = layers, built if drafts else []
        self._all = [*layers, *(draft_layers if drafts else [])]
        self.state = StateDeclaration(planes=(), paged=self._paged())
        self.workspace = workspace_shape(config, source.shard)
        self.rotary = config.qk_rope_head_dim

    def _paged(self) -> tuple[PagedRows, ...]:
        """Per layer its latents, and where it selects its index keys, whole on every rank."""
        rows = []
        mla, indexer = mla_shape(self._config), indexer_shape(self._config)
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
