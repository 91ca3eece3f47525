"""MiMo-V2.6-Flash: global and sliding-window attention, a dense first layer, then experts.

Every layer: x += o_proj(attention(norm x)); x += mlp(norm x). Queries and keys are wider than
values; values are kept times a constant; only windowed layers have sinks; no expert is shared.
"""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.checkpoint.formats import BF16
from dgpp.models.decoder import Decoder, Ends
from dgpp.models.layers.attention import AttentionShape, GqaAttention
from dgpp.models.layers.mlp import DenseMlp
from dgpp.models.layers.moe import MoeShape, RoutedMoe
from dgpp.models.layers.projections import fused
from dgpp.models.layers.rope import rotary_angles
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.mimo_v2.config import MimoConfig
from dgpp.models.mimo_v2.draft import draft_level
from dgpp.models.observer import Observer
from dgpp.models.shard import Shard
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows


def attention_shape(config: MimoConfig, *, window: bool) -> AttentionShape:
    """Of a global layer, or of one with a window."""
    dim = config.swa_head_dim if window else config.head_dim
    return AttentionShape(
        hidden=config.hidden_size,
        heads=config.swa_num_attention_heads if window else config.num_attention_heads,
        kv_heads=config.swa_num_key_value_heads if window else config.num_key_value_heads,
        head_dim=dim,
        rotated=int(dim * config.partial_rotary_factor),
        eps=config.layernorm_epsilon,
        value_dim=config.swa_v_head_dim if window else config.v_head_dim,
        value_scale=config.attention_value_scale,
        window=config.sliding_window if window else 0,
        sinks=window,
    )


def moe_shape(config: MimoConfig) -> MoeShape:
    return MoeShape(
        hidden=config.hidden_size,
        experts=config.n_routed_experts,
        top=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        shared=0,
        normalise=config.norm_topk_prob,
        scale=config.routed_scaling_factor or 1.0,
        eps=config.layernorm_epsilon,
    )


def workspace_shape(config: MimoConfig, shard: Shard) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    own = [attention_shape(config, window=window).own(shard) for window in (False, True)]
    widest = max(config.intermediate_size, config.moe_intermediate_size)
    return WorkspaceShape(
        hidden=config.hidden_size,
        qkv=max(shape.qkv for shape in own),
        queries=max(shape.queries for shape in own),
        attended=max(shape.attended for shape in own),
        kv=own[1].row,
        intermediate=widest // shard.world,
        partial=config.hidden_size if shard.world > 1 else 0,
        experts_per_token=config.num_experts_per_tok if any(config.moe_layer_freq) else 0,
    )


class MimoLayer:
    """Attention, then an MLP or experts. `routed` is the number of a layer with experts, None for a
    dense one, whose norm is `norm`."""

    def __init__(
        self,
        config: MimoConfig,
        source: WeightSource,
        prefix: str,
        *,
        window: bool,
        routed: int | None,
        norm: str = "post_attention_layernorm",
    ) -> None:
        shape = attention_shape(config, window=window)
        name, shard = f"{prefix}.self_attn", source.shard
        qkv = fused(name, shape.sizes, config.qkv_format, config.chunks, shard)
        self.attention = GqaAttention(source, prefix, shape, qkv, BF16)
        if routed is not None:
            shape_of_experts, stored = moe_shape(config), config.expert_format
            self._mlp: DenseMlp | RoutedMoe = RoutedMoe(
                source, prefix, routed, shape_of_experts, stored
            )
            return
        sizes = (config.hidden_size, config.intermediate_size, config.layernorm_epsilon)
        self._mlp = DenseMlp(source, prefix, *sizes, config.mlp_format, norm=norm)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self.attention.forward(ops, rows, work)
        self._mlp.forward(ops, rows, work, observer)


class MimoModel(Decoder):
    """`drafts` loads the draft levels beside the layers."""

    def __init__(self, config: MimoConfig, source: WeightSource, *, drafts: bool) -> None:
        ends = Ends(config.vocab_size, config.hidden_size, config.layernorm_epsilon)
        super().__init__(source, ends)
        self._config = config
        layers = [
            MimoLayer(
                config,
                source,
                f"model.layers.{index}",
                window=bool(config.hybrid_layer_pattern[index]),
                routed=index if config.moe_layer_freq[index] else None,
            )
            for index in range(config.num_hidden_layers)
        ]
        extra = source if drafts else source.unloaded()
        draft_layers = []
        levels = []
        for level in range(config.num_nextn_predict_layers):
            prefix = f"model.mtp.layers.{level}"
            layer = MimoLayer(
                config, extra, prefix, window=True, routed=None, norm="pre_mlp_layernorm"
            )
            draft_layers.append(layer)
            levels.append(draft_level(config, extra, prefix, layer))
        self.layers, self.drafts = layers, levels if drafts else []
        self._all = [*layers, *(draft_layers if drafts else [])]
        self.state = _state(self._all)
        self.workspace = workspace_shape(config, source.shard)
        self.rotary = sum(attention_shape(config, window=w).rotated for w in (False, True))

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        config = self._config
        tables = []
        for window, theta in ((False, config.rope_theta), (True, config.swa_rope_theta)):
            rotated = attention_shape(config, window=window).rotated
            tables.append(backend.rotary_table(rotary_angles(positions, rotated, theta)))
        planes, rings = iter(pools.planes), iter(pools.rings)
        for layer in self._all:
            window = bool(layer.attention.shape.window)
            state = next(rings if window else planes)
            layer.attention.prepare(backend, tables[window], state)


def _state(layers: Sequence[MimoLayer]) -> StateDeclaration:
    """A plane per global layer, a ring per layer with a window, both in the layers' order."""
    shapes = [(f"layer {index}", layer.attention.shape) for index, layer in enumerate(layers)]
    return StateDeclaration(
        planes=tuple(shape.plane(name) for name, shape in shapes if not shape.window),
        rings=tuple(shape.ring(name) for name, shape in shapes if shape.window),
    )
