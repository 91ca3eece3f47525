"""Shapes of the layers that Qwen families share, from fields that their configurations have."""

from __future__ import annotations

from dgpp.models.layers.attention import AttentionShape
from dgpp.models.layers.delta import DeltaShape
from dgpp.models.qwen.config import HybridConfig


def gated_attention(
    config: HybridConfig, *, normed: bool = True, shared_kv: bool = False
) -> AttentionShape:
    """Attention with head norms and an output gate; `normed` and `shared_kv` as in the shape."""
    return AttentionShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rotated=config.rotated,
        eps=config.rms_norm_eps,
        qk_norm=True,
        gated=True,
        centred=True,
        normed=normed,
        shared_kv=shared_kv,
    )


def gated_delta(config: HybridConfig, *, silu: bool) -> DeltaShape:
    """A delta net whose output is gated by silu, or else by a sigmoid."""
    return DeltaShape(
        hidden=config.hidden_size,
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        taps=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
        silu=silu,
    )
