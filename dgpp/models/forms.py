"""In which form a model is held, where that is not as the checkpoint has it: what keys ask for."""

from __future__ import annotations

import msgspec

from dgpp.config.engine_settings import EngineSettings, RopeScaling
from dgpp.errors import ConfigError
from kernels_numba.weights import Form

DENSE = frozenset({"attention", "mlp", "shared experts", "head"})
"""Items of the plan whose bf16 matrices `dense_weights: fp8` encodes."""
STREAMED = DENSE | {"experts", "indexer", "delta gates", "gated residual", "compressor"}
"""Items of the plan that a step reads whole, which `bf16_weights: bf12` packs."""


class ModelForms(msgspec.Struct, frozen=True, kw_only=True):
    """The engine keys of these names. `draft_vocab` is the path of its file.

    `rounded_rows` is no key: cached rows are rounded where a family's release rounds them, but for
    comparisons with references that do not.
    """

    dense_weights: str = "checkpoint"
    bf16_weights: str = "checkpoint"
    fp8_head: str = "gemv"
    mtp_expert_format: str = "fp8"
    kv_dtype: str = "bf16"
    draft_vocab: str = ""
    rope_scaling: RopeScaling | None = None
    rounded_rows: bool = True

    def held(self, item: str, stored: Form) -> Form:
        """The form of a matrix that is part of `item` in the plan and `stored` in that form."""
        if stored is not Form.BF16:
            return stored
        if self.dense_weights == "fp8" and item in DENSE:
            return Form.FP8_BLOCK
        if self.bf16_weights != "checkpoint" and item in STREAMED:
            return Form.BF12
        return stored

    def unread(self, backend: str) -> dict[str, str]:
        """What is asked for that the backend's kernels do not read: values by key."""
        if backend != "cuda":
            return {}
        asked = (
            ("bf16_weights", self.bf16_weights, "checkpoint"),
            ("kv_dtype", self.kv_dtype, "bf16"),
            ("draft_vocab", self.draft_vocab, ""),
        )
        return {key: value for key, value, default in asked if value != default}

    def missing(self, backend: str) -> tuple[str, ...]:
        """`unread` in words, with what to do about each."""
        remedy = "leave it out, or set engine.backend to cpu"
        return tuple(
            f"engine.{key}: {value} is not on the {backend} backend yet; {remedy}"
            for key, value in self.unread(backend).items()
        )


AS_STORED = ModelForms()


def model_forms(engine: EngineSettings) -> ModelForms:
    """What the `engine` section asks for."""
    return ModelForms(
        dense_weights=engine.dense_weights,
        bf16_weights=engine.bf16_weights,
        fp8_head=engine.fp8_head,
        mtp_expert_format=engine.mtp_expert_format,
        kv_dtype=engine.kv_dtype,
        draft_vocab=engine.draft_vocab,
        rope_scaling=engine.rope_scaling,
    )


class FamilyForms(msgspec.Struct, frozen=True, kw_only=True):
    """What a family takes beside its checkpoint's own forms: FP8 of dense bf16 matrices, rotary
    frequencies stretched over a longer context (its config has `yarn`), and how its releases store
    the MTP layer's experts."""

    dense_fp8: bool = False
    yarn: bool = False
    mtp_experts: tuple[str, ...] = ("fp8",)

    def require(self, family: str, forms: ModelForms) -> None:
        """Raises ConfigError naming the first key that asks for what the family does not take."""
        asked = (
            ("dense_weights: fp8", forms.dense_weights == "fp8", self.dense_fp8),
            (f"fp8_head: {forms.fp8_head}", forms.fp8_head != "gemv", self.dense_fp8),
            ("rope_scaling", forms.rope_scaling is not None, self.yarn),
            (
                f"mtp_expert_format: {forms.mtp_expert_format}",
                True,
                forms.mtp_expert_format in self.mtp_experts,
            ),
        )
        for key, wanted, taken in asked:
            if wanted and not taken:
                raise ConfigError(f"engine.{key} does not apply to {family}")


BARE = FamilyForms()
