"""Qwen3.8-27B: gated delta nets, every few layers gated attention over all positions, dense MLPs.

Every layer: x += mix(norm x); x += mlp(norm x). All norms but the delta nets' are stored less one.
"""

from __future__ import annotations

from dgpp.models.decoder import Decoder, Ends
from dgpp.models.layers.attention import AttentionShape, GqaAttention
from dgpp.models.layers.delta import DeltaShape, GatedDeltaNet
from dgpp.models.layers.mlp import DenseMlp
from dgpp.models.layers.projections import gated
from dgpp.models.layers.rope import rotary_table
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.qwen.shapes import gated_attention, gated_delta
from dgpp.models.qwen3_5.config import Qwen35Config
from dgpp.models.qwen3_5.draft import draft_level
from dgpp.models.shard import Shard
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Norm, Rows


def attention_shape(config: Qwen35Config) -> AttentionShape:
    return gated_attention(config)


def delta_shape(config: Qwen35Config) -> DeltaShape:
    return gated_delta(config, silu=True)


def workspace_shape(config: Qwen35Config, shard: Shard) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    attention, delta = attention_shape(config).own(shard), delta_shape(config).own(shard)
    return WorkspaceShape(
        hidden=config.hidden_size,
        qkv=attention.qkv,
        queries=attention.queries,
        attended=max(attention.attended, delta.values),
        intermediate=shard.part(config.intermediate_size, "config.json's intermediate_size"),
        partial=config.hidden_size if shard.world > 1 else 0,
        experts_per_token=0,
        extra=delta.rows,
    )


class DeltaBlock:
    """x += delta_net(norm(x))."""

    def __init__(self, config: Qwen35Config, source: WeightSource, prefix: str) -> None:
        name = f"{prefix}.input_layernorm.weight"
        weight = source.vector("norms", name, config.hidden_size, plus=1.0)
        self._norm = Norm(weight, config.rms_norm_eps)
        shape = delta_shape(config)
        self.net = GatedDeltaNet(source, f"{prefix}.linear_attn", shape, config.format)

    def forward(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        fold = work.fold
        self.net.forward(rows, work, work.x, fold.target, norm=self._norm, add=fold.add)
        fold.finish(rows)


class Qwen35Layer:
    """A delta net or attention, then an MLP."""

    def __init__(
        self, config: Qwen35Config, source: WeightSource, prefix: str, *, full: bool
    ) -> None:
        self.mixer: GqaAttention | DeltaBlock
        if full:
            name, shape = f"{prefix}.self_attn", attention_shape(config)
            qkv = gated(name, shape.sizes, config.format(f"{name}.q_proj"), source.shard)
            output = config.format(f"{name}.o_proj")
            self.mixer = GqaAttention(source, prefix, shape, qkv, output)
        else:
            self.mixer = DeltaBlock(config, source, prefix)
        self._mlp = DenseMlp(
            source,
            prefix,
            config.hidden_size,
            config.intermediate_size,
            config.rms_norm_eps,
            config.format(f"{prefix}.mlp.gate_proj"),
            plus=1.0,
        )

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self.mixer.forward(ops, rows, work)
        self._mlp.forward(ops, rows, work, observer)


class Qwen35Model(Decoder):
    """`drafts` loads the draft level beside the layers."""

    def __init__(self, config: Qwen35Config, source: WeightSource, *, drafts: bool) -> None:
        ends = Ends(
            config.vocab_size,
            config.hidden_size,
            config.rms_norm_eps,
            embedding="model.language_model.embed_tokens",
            norm="model.language_model.norm.weight",
            head_format=config.format("lm_head"),
            plus=1.0,
        )
        super().__init__(source, ends)
        self._config = config
        layers = [
            Qwen35Layer(
                config, source, f"model.language_model.layers.{index}", full=config.full(index)
            )
            for index in range(config.num_hidden_layers)
        ]
        source.ignore("model.visual.*")
        extra = source if drafts else source.unloaded()
        draft_layers = [
            Qwen35Layer(config, extra, f"mtp.layers.{level}", full=True)
            for level in range(config.mtp_num_hidden_layers)
        ]
        levels = [draft_level(config, extra, layer) for layer in draft_layers]
        self.layers, self.drafts = layers, levels if drafts else []
        self._all = [*layers, *(draft_layers if drafts else [])]
        own = attention_shape(config).own(source.shard)
        delta = delta_shape(config).own(source.shard)
        names = [
            (f"layer {index}", isinstance(layer.mixer, GqaAttention))
            for index, layer in enumerate(self._all)
        ]
        self.state = StateDeclaration(
            planes=tuple(own.plane(name) for name, full in names if full),
            rings=tuple(delta.ring(name) for name, full in names if not full),
            fixed=tuple(delta.fixed(name) for name, full in names if not full),
        )
        self.workspace = workspace_shape(config, source.shard)
        self.rotary = config.rotated

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        config = self._config
        angles = rotary_table(backend, positions, config.rotated, config.rope_theta, config.yarn)
        planes, recurrent = iter(pools.planes), zip(pools.rings, pools.fixed, strict=True)
        for layer in self._all:
            if isinstance(layer.mixer, GqaAttention):
                layer.mixer.prepare(backend, angles, next(planes))
            else:
                layer.mixer.net.prepare(backend, *next(recurrent))
