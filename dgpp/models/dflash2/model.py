"""DFlash2: drafts a block of tokens at once from what layers of the target left on its residual.

Context: after every target step, the residuals behind the tapped layers become keys and values of
each drafter layer. Block: [anchor, mask × n] at positions P …, whose rows see the context within a
window and one another both ways; two-tap convolutions with coefficients of their own stand around
attention and MLP. Embedding and head are the target's.
"""

from __future__ import annotations

from collections.abc import Sequence

from dgpp.checkpoint.formats import BF16
from dgpp.models.dflash2.config import DFlash2Config
from dgpp.models.dflash2.selector import Selector
from dgpp.models.layers.attention import AttentionShape
from dgpp.models.layers.embedding import Embedding
from dgpp.models.layers.extended import extended
from dgpp.models.layers.mlp import GatedMlp
from dgpp.models.layers.projections import separate
from dgpp.models.layers.rope import rotary_angles
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.shard import Shard, Split
from dgpp.models.sources import Linear, WeightSource
from dgpp.net.collective import Collective
from dgpp.state.declaration import StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Attention, Backend, Logits, Matrix, Norm, Rows, Tensor
from kernels_numba.extended import BlockConvolution, ExtendedBackend


def attention_shape(config: DFlash2Config) -> AttentionShape:
    return AttentionShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rotated=config.head_dim,
        eps=config.rms_norm_eps,
        qk_norm=True,
        window=config.sliding_window,
    )


def workspace_shape(config: DFlash2Config, shard: Shard) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    own, hidden = attention_shape(config).own(shard), config.hidden_size
    block = config.dflash_config
    return WorkspaceShape(
        hidden=hidden,
        qkv=own.qkv,
        queries=own.queries,
        attended=own.attended,
        kv=own.row,
        intermediate=shard.part(config.intermediate_size, "config.json's intermediate_size"),
        partial=hidden if shard.world > 1 else 0,
        experts_per_token=0,
        extra=(
            ("taps", len(block.target_layer_ids) * hidden),
            ("context", hidden),
            ("coefficients", 4 * hidden // block.conv_group_size),
            ("convolved", hidden),
            ("mixed", hidden),
            ("projected", block.selector_rank),
        ),
    )


class _Wrap:
    """The convolutions around a sublayer: x += conv₁(sublayer(conv₀(norm x))), both with the same
    coefficients, projected from norm x."""

    def __init__(self, source: WeightSource, config: DFlash2Config, name: str, norm: str) -> None:
        hidden, group = config.hidden_size, config.dflash_config.conv_group_size
        weight = source.vector("norms", f"{norm}.weight", hidden)
        self._norm = Norm(weight, config.rms_norm_eps)
        projection = Linear(f"{name}.kernel_projection", 4 * hidden // group, hidden)
        self._projection = source.matrix("convolutions", [projection])
        base = source.vector("convolutions", f"{name}.base_kernel", (2, 2, hidden))
        self._convolution = BlockConvolution(base, hidden, group)

    def before(self, ops: ExtendedBackend, rows: Rows, work: Workspace) -> Tensor:
        """The sublayer's input."""
        coefficients, out = work.extra["coefficients"], work.extra["convolved"]
        ops.norm(rows, work.x, self._norm, work.normed)
        ops.linear(rows, work.normed, self._projection, coefficients)
        ops.block_conv(rows, work.normed, coefficients, self._convolution, 0, out, add=False)
        return out

    def after(self, ops: ExtendedBackend, rows: Rows, work: Workspace, mixed: Tensor) -> None:
        """Add the sublayer's output to the residual."""
        coefficients = work.extra["coefficients"]
        work.fold.total(rows, mixed)
        ops.block_conv(rows, mixed, coefficients, self._convolution, 1, work.x, add=True)


class _Layer:
    """Attention over context and block, then an MLP."""

    def __init__(self, config: DFlash2Config, source: WeightSource, index: int) -> None:
        prefix = f"layers.{index}"
        name, shape = f"{prefix}.self_attn", attention_shape(config)
        self.shape = own = shape.own(source.shard)
        self._attention_wrap = _Wrap(
            source, config, f"{prefix}.attention_conv", f"{prefix}.input_layernorm"
        )
        self._mlp_wrap = _Wrap(
            source, config, f"{prefix}.mlp_conv", f"{prefix}.post_attention_layernorm"
        )
        self._qkv = source.matrix("attention", separate(name, shape.sizes, BF16))
        self._queries = own.heads * own.head_dim
        o_proj = Linear(f"{name}.o_proj", shape.hidden, shape.attended, BF16, split=Split.COLUMNS)
        self._output = source.matrix("attention", [o_proj])
        self._q_norm, self._k_norm = (
            Norm(source.vector("norms", f"{name}.{p}_norm.weight", shape.head_dim), shape.eps)
            for p in ("q", "k")
        )
        sizes = (config.hidden_size, config.intermediate_size)
        self._mlp = GatedMlp(source, "mlp", f"{prefix}.mlp", *sizes, BF16)

    def prepare(self, ops: ExtendedBackend, angles: Tensor, ring: object) -> None:
        own = self.shape
        self._ring = ring
        self._key_values = ops.cut(self._qkv, self._queries, own.qkv - self._queries)

        def attention(heads: int) -> Attention:
            return Attention(
                heads,
                own.kv_heads,
                own.head_dim,
                own.head_dim**-0.5,
                angles,
                q_norm=self._q_norm,
                k_norm=self._k_norm,
                window=own.window,
                both_ways=True,
            )

        self._attention, self._context = attention(own.heads), attention(0)

    def extend(self, ops: ExtendedBackend, rows: Rows, work: Workspace) -> None:
        """Keys and values of context rows; they have no norm of their own and no convolution."""
        ops.linear(rows, work.extra["context"], self._key_values, work.qkv)
        ops.split_rows(rows, work.qkv, self._context, work.queries, work.kv)
        ops.ring_write(rows, work.kv, self._ring)

    def forward(self, ops: ExtendedBackend, rows: Rows, work: Workspace) -> None:
        """The block's rows, whose keys and values are not kept."""
        mixed = work.extra["mixed"]
        source = self._attention_wrap.before(ops, rows, work)
        ops.linear(rows, source, self._qkv, work.qkv)
        ops.split_rows(rows, work.qkv, self._attention, work.queries, work.kv)
        ops.attend_window(rows, work.queries, self._attention, work.kv, self._ring, work.attended)
        ops.linear(rows, work.attended, self._output, work.fold.share_of(mixed))
        self._attention_wrap.after(ops, rows, work, mixed)
        source = self._mlp_wrap.before(ops, rows, work)
        share = work.fold.share_of(mixed)
        self._mlp.forward(ops, rows, work, source, share, norm=None, add=False)
        self._mlp_wrap.after(ops, rows, work, mixed)


class DFlash2:
    """A drafter beside its target. Rows of context and of a block have the target's slots."""

    def __init__(self, config: DFlash2Config, source: WeightSource) -> None:
        self.config = config
        hidden, block = config.hidden_size, config.dflash_config
        self.taps = block.target_layer_ids
        fc = Linear("fc", hidden, len(self.taps) * hidden)
        self._merge = source.matrix("drafter", [fc])
        self._context_norm, self._norm = (
            Norm(source.vector("norms", f"{name}.weight", hidden), config.rms_norm_eps)
            for name in ("hidden_norm", "norm")
        )
        self._layers = [_Layer(config, source, index) for index in range(config.num_hidden_layers)]
        self.selector = Selector(config, source)
        own = attention_shape(config).own(source.shard)
        self.state = StateDeclaration(
            planes=(),
            rings=tuple(own.ring(f"drafter layer {i}") for i in range(len(self._layers))),
        )
        self.workspace = workspace_shape(config, source.shard)

    def prepare(
        self,
        backend: Backend,
        pools: StatePools,
        positions: int,
        collective: Collective | None = None,
    ) -> None:
        """Allocate activations and tables; `pools` holds what `state` declares. Block rows reach
        beyond the last of `positions`."""
        self._ops = ops = extended(backend)
        config = self.config
        self.work = Workspace(backend, self.workspace, collective)
        reach = positions + config.dflash_config.block_size
        angles = ops.rotary_table(rotary_angles(reach, config.head_dim, config.rope_theta))
        for layer, ring in zip(self._layers, pools.rings, strict=True):
            layer.prepare(ops, angles, ring)
        self.selector.prepare(ops)

    def tap(self, layer: int, rows: Rows, x: Tensor) -> None:
        """Take in the target's residual after `layer`, where it is one of `taps`."""
        if layer in self.taps:
            at = self.taps.index(layer) * self.config.hidden_size
            self._ops.copy(rows, x, self.work.extra["taps"], at=at)

    def extend(self, rows: Rows) -> None:
        """The target's rows, all tapped, become context."""
        ops, work = self._ops, self.work
        ops.linear(rows, work.extra["taps"], self._merge, work.normed)
        ops.norm(rows, work.normed, self._context_norm, work.extra["context"])
        for layer in self._layers:
            layer.extend(ops, rows, work)

    def forward(self, rows: Rows, embedding: Embedding) -> None:
        """Run blocks: each slot's rows are [anchor, mask …] at the positions after its context."""
        ops, work = self._ops, self.work
        embedding.forward(ops, rows, work, work.x)
        for layer in self._layers:
            layer.forward(ops, rows, work)

    def final_hidden(self, rows: Rows, out: Tensor) -> None:
        """out[r] = the last blocks' row r after the final norm."""
        self._ops.norm(rows, self.work.x, self._norm, out)

    def logits(self, index: Sequence[int], head: Matrix, out: Logits) -> None:
        """Logits [len(index), ids of this rank] of rows `index` of the last blocks."""
        self._ops.head(self.work.x, index, self._norm, head, out)
