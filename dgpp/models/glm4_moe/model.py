"""GLM-4.7: grouped-query attention and a mixture of experts on one residual."""

from __future__ import annotations

from functools import partial

from dgpp.models.decoder import Decoder, Ends
from dgpp.models.glm.layers import stack
from dgpp.models.glm4_moe.config import Glm4MoeConfig
from dgpp.models.glm4_moe.layer import Glm4MoeLayer, attention_shape, workspace_shape
from dgpp.models.layers.rope import rotary_angles
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend


class Glm4MoeModel(Decoder):
    """`drafts` loads the draft layers beside the others."""

    def __init__(self, config: Glm4MoeConfig, source: WeightSource, *, drafts: bool) -> None:
        head = "" if config.tie_word_embeddings else "lm_head"
        ends = Ends(
            config.vocab_size,
            config.hidden_size,
            config.rms_norm_eps,
            head=head,
            head_format=config.format("lm_head"),
        )
        super().__init__(source, ends)
        if config.tie_word_embeddings:
            source.ignore("lm_head.weight")
        self._config = config
        self.layers, self.drafts, self._all = stack(
            config, source, "model.layers", partial(Glm4MoeLayer, config), drafts=drafts
        )
        own = attention_shape(config).own(source.shard)
        self.state = StateDeclaration(
            tuple(own.plane(f"layer {layer}") for layer in range(len(self._all)))
        )
        self.workspace = workspace_shape(config, source.shard, drafts=bool(self.drafts))
        self.rotary = config.rotated

    def prepare_layers(self, backend: Backend, pools: StatePools, positions: int) -> None:
        config = self._config
        angles = backend.rotary_table(rotary_angles(positions, config.rotated, config.rope_theta))
        for layer, plane in zip(self._all, pools.planes, strict=True):
            layer.attention.prepare(backend, angles, plane)
