"""Qwen3.8-Flash-Next: gated delta nets and attention over selected blocks, on branches.

Every layer: a site mixes the branches, a delta net or gated attention reads the mix, the site adds
its output to the branches; the same around a mixture of experts. Before one layer the rows of a
table that the last tokens name join the branches. A last mixer makes what the head reads; there is
no final norm. No sublayer has a norm of its own, all norms are stored less one.
"""

from __future__ import annotations

from dgpp.models.decoder import Decoder, Ends
from dgpp.models.layers.attention import AttentionShape, GqaAttention
from dgpp.models.layers.block_indexer import BlockIndexer, BlockIndexShape
from dgpp.models.layers.branches import BranchMixer, BranchShape, BranchSite
from dgpp.models.layers.delta import DeltaShape, GatedDeltaNet
from dgpp.models.layers.moe import MoeShape
from dgpp.models.layers.projections import gated
from dgpp.models.layers.rope import rotary_table
from dgpp.models.layers.softmax_moe import SoftmaxMoe
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.qwen.shapes import gated_attention, gated_delta
from dgpp.models.qwen4_exp.config import Qwen4ExpConfig
from dgpp.models.qwen4_exp.draft import BranchLevel
from dgpp.models.qwen4_exp.memory import NgramMemory, memory_shape
from dgpp.models.shard import Shard
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import FixedState, PagedPlane, PagedRows, Ring, StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows

PREFIX = "model.language_model"


def attention_shape(config: Qwen4ExpConfig) -> AttentionShape:
    return gated_attention(config, normed=False, shared_kv=True)


def index_shape(config: Qwen4ExpConfig) -> BlockIndexShape:
    return BlockIndexShape(
        hidden=config.hidden_size,
        rank=config.hidden_size,
        heads=config.indexer_n_heads,
        dim=config.indexer_head_dim,
        rotated=config.rotated,
        top=config.indexer_budget,
        every=config.indexer_compress_ratio,
        eps=config.rms_norm_eps,
    )


def delta_shape(config: Qwen4ExpConfig) -> DeltaShape:
    return gated_delta(config, silu=False)


def branch_shape(config: Qwen4ExpConfig) -> BranchShape:
    return BranchShape(
        branches=config.hc_count,
        width=config.hidden_size,
        rank=config.hc_lowrank,
        eps=config.rms_norm_eps,
    )


def moe_shape(config: Qwen4ExpConfig) -> MoeShape:
    return MoeShape(
        hidden=config.hidden_size,
        experts=config.num_experts,
        top=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        shared=1,
        normalise=True,
        scale=1.0,
        eps=config.rms_norm_eps,
    )


def workspace_shape(config: Qwen4ExpConfig, shard: Shard) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    attention, delta = attention_shape(config).own(shard), delta_shape(config).own(shard)
    index, branches = index_shape(config), branch_shape(config)
    widest = max(config.moe_intermediate_size, config.shared_expert_intermediate_size)
    return WorkspaceShape(
        hidden=config.hidden_size,
        qkv=attention.qkv,
        queries=attention.queries,
        attended=max(attention.attended, delta.values),
        intermediate=shard.part(widest, "config.json's shared_expert_intermediate_size"),
        partial=config.hidden_size + config.ple_embed_dim if shard.world > 1 else 0,
        experts_per_token=config.num_experts_per_tok,
        selected=index.selected,
        streams=config.hc_count,
        extra=(
            *delta.rows,
            *index.rows,
            *branches.rows,
            *memory_shape(config, branches).rows,
            ("shared gate", 1),
        ),
    )


class Qwen4ExpLayer:
    """A delta net or attention, then experts, each between the two halves of a site; where `memory`
    is given, n-grams come in first."""

    def __init__(
        self,
        config: Qwen4ExpConfig,
        source: WeightSource,
        prefix: str,
        index: int,
        memory: NgramMemory | None = None,
    ) -> None:
        self._index, self.memory = index, memory
        self.mixer: GqaAttention | GatedDeltaNet
        if config.full(index):
            name, shape = f"{prefix}.self_attn", attention_shape(config)
            qkv = gated(name, shape.sizes, config.format(f"{name}.q_proj"), source.shard)
            indexer = BlockIndexer(source, f"{name}.indexer", index_shape(config))
            output = config.format(f"{name}.o_proj")
            self.mixer = GqaAttention(source, prefix, shape, qkv, output, indexer)
        else:
            name, delta = f"{prefix}.linear_attn", delta_shape(config)
            self.mixer = GatedDeltaNet(source, name, delta, config.format)
        self._mlp = self._experts(config, source, f"{prefix}.mlp")
        self._around_mixer, self._around_mlp = (
            BranchSite(source, f"{prefix}.{site}_hyper_connection", branch_shape(config))
            for site in ("attn", "mlp")
        )

    def _experts(self, config: Qwen4ExpConfig, source: WeightSource, name: str) -> SoftmaxMoe:
        is_draft = self._index >= config.num_hidden_layers
        together = is_draft and config.mtp_experts == "bf16_fused"
        stored = None if together else config.format(f"{name}.experts.0.gate_proj")
        inner = config.shared_expert_intermediate_size
        shared = config.format(f"{name}.shared_expert.gate_proj")
        return SoftmaxMoe(source, name, self._index, moe_shape(config), stored, inner, shared)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        if self.memory is not None:
            self.memory.forward(ops, rows, work, observer)
        self._around_mixer.before(ops, rows, work)
        if isinstance(self.mixer, GatedDeltaNet):
            fold = work.fold
            self.mixer.forward(rows, work, work.x, fold.target, norm=None, add=fold.add)
            fold.finish(rows)
        else:
            self.mixer.forward(ops, rows, work)
            if observer is not None:
                observer.selected(self._index, rows, work.selection)
        self._around_mixer.after(ops, rows, work)
        self._around_mlp.before(ops, rows, work)
        self._mlp.forward(ops, rows, work, observer)
        self._around_mlp.after(ops, rows, work)


class Qwen4ExpModel(Decoder):
    """`drafts` loads the draft level beside the layers."""

    draft_streams = True

    def __init__(self, config: Qwen4ExpConfig, source: WeightSource, *, drafts: bool) -> None:
        ends = Ends(
            config.vocab_size,
            config.hidden_size,
            config.rms_norm_eps,
            embedding=f"{PREFIX}.embed_tokens",
            norm="",
            head_format=config.format("lm_head"),
        )
        super().__init__(source, ends)
        self._config = config
        source.ignore("model.visual.*")
        self.streams = BranchMixer(source, f"{PREFIX}.hyper_connection_mixer", branch_shape(config))
        # Releases number the layer that n-grams come in before from zero or from one.
        first, after = config.ngram_layer, config.ngram_layer + 1
        names = tuple(f"{PREFIX}.layers.{layer}.ple" for layer in (first, after))
        memory = NgramMemory(config, source, branch_shape(config), names)
        layers = [
            Qwen4ExpLayer(config, source, f"{PREFIX}.layers.{n}", n, memory if n == first else None)
            for n in range(config.num_hidden_layers)
        ]
        extra = source if drafts else source.unloaded()
        draft_layers = [
            Qwen4ExpLayer(config, extra, f"mtp.layers.{n}", config.num_hidden_layers + n)
            for n in range(config.mtp_num_hidden_layers)
        ]
        levels = [BranchLevel(extra, layer, branch_shape(config)) for layer in draft_layers]
        self.layers, self.drafts = layers, levels if drafts else []
        self._all = [*layers, *(draft_layers if drafts else [])]
        self.state = self._state(source.shard)
        self.workspace = workspace_shape(config, source.shard)
        self.rotary = config.rotated

    def _state(self, shard: Shard) -> StateDeclaration:
        """Of attention keys, values, blocks' keys and the open block's; of a delta net its
        convolution and its recurrence; of the n-grams the last tokens and a convolution."""
        planes: list[PagedPlane] = []
        paged: list[PagedRows] = []
        rings: list[Ring] = []
        fixed: list[FixedState] = []
        attention = attention_shape(self._config).own(shard)
        delta, index = delta_shape(self._config).own(shard), index_shape(self._config)
        for number, layer in enumerate(self._all):
            name = f"layer {number}"
            if layer.memory is not None:
                rings += layer.memory.shape.rings(name)
            if isinstance(layer.mixer, GatedDeltaNet):
                rings.append(delta.ring(name))
                fixed.append(delta.fixed(name))
            else:
                planes.append(attention.plane(name))
                paged.append(index.keys(name))
                rings.append(index.ring(name))
        return StateDeclaration(tuple(planes), tuple(paged), tuple(rings), tuple(fixed))

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        config = self._config
        angles = rotary_table(backend, positions, config.rotated, config.rope_theta, config.yarn)
        planes, paged = iter(pools.planes), iter(pools.paged)
        rings, fixed = iter(pools.rings), iter(pools.fixed)
        for layer in self._all:
            if layer.memory is not None:
                layer.memory.prepare(backend, self.work, next(rings), next(rings))
            if isinstance(layer.mixer, GatedDeltaNet):
                layer.mixer.prepare(backend, next(rings), next(fixed))
            else:
                layer.mixer.prepare(backend, angles, next(planes), (next(paged), next(rings)))
