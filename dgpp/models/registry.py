"""The families that can be served, by config.json's model_type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dgpp.errors import CheckpointError
from dgpp.models.deepseek.config import exact
from dgpp.models.deepseek_v4 import config as v4_config
from dgpp.models.deepseek_v41 import config as v41_config
from dgpp.models.dflash2.config import is_drafter
from dgpp.models.forms import AS_STORED, BARE, FamilyForms, ModelForms
from dgpp.models.glm4_moe import config as glm4_moe_config
from dgpp.models.glm5_next import config as glm5_next_config
from dgpp.models.glm_moe_dsa import config as glm_dsa_config
from dgpp.models.layers.rope import stretched_context
from dgpp.models.mimo_v2 import config as mimo_config
from dgpp.models.qwen3_5 import config as qwen35_config
from dgpp.models.qwen4_exp import config as qwen4_config

if TYPE_CHECKING:
    from dgpp.models.layers.dspark import DraftedBlock, DSpark
    from dgpp.models.layers.embedding import Embedding
    from dgpp.models.layers.workspace import Workspace, WorkspaceShape
    from dgpp.models.observer import Observer
    from dgpp.net.collective import Collective
    from dgpp.state.declaration import StateDeclaration
    from dgpp.state.pools import StatePools
    from kernels_numba.backend import Backend, F32Array, Logits, Matrix, Rows, Tensor
    from kernels_numba.gpu.device import Device
    from kernels_numba.gpu.limits import KernelLimits


class FamilyConfig(Protocol):
    """The sizes that every family's configuration has."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...


class Draft(Protocol):
    """A draft level; `hidden` is what a next level continues from."""

    hidden: Tensor


class Model(Protocol):
    """A family's forward pass. Built from a source of weights, then prepared on a backend."""

    state: StateDeclaration
    embedding: Embedding
    vocabulary: range
    """The ids whose logits this rank computes."""
    head: Matrix
    """What makes logits of normed hidden states."""
    workspace: WorkspaceShape
    work: Workspace
    rotary: int
    """Values of the rotary tables per position."""
    hidden: int
    """Values of a row that the head takes."""
    tail: int
    """Tokens at a prompt's end that bounded prefill gives to all layers; 0: it has no effect."""

    @property
    def residual(self) -> Tensor:
        """What layers add to, of one stream or several."""

    @property
    def drafts(self) -> Sequence[Draft]:
        """The draft levels that were loaded."""

    def limit_drafts(self, ids: Sequence[int]) -> None:
        """Score only `ids` in drafts; all others are −∞ there. Before `prepare`."""

    @property
    def drafter(self) -> DSpark | None:
        """What drafts blocks at once, where it was loaded."""

    def prepare(
        self,
        backend: Backend,
        pools: StatePools,
        positions: int,
        collective: Collective | None = None,
    ) -> None:
        """Allocate activations and tables; `pools` holds what `state` declares. `collective` sums
        what ranks computed; None where there is one."""

    def forward(self, rows: Rows, observer: Observer | None = None) -> None:
        """Run the rows of a step."""

    def forward_layer(self, index: int, rows: Rows, observer: Observer | None = None) -> None:
        """Run one layer alone on what `work.x` holds."""

    def forward_draft(
        self, level: int, rows: Rows, hidden: Tensor, observer: Observer | None = None
    ) -> None:
        """Draft row q from `hidden` of position q and `rows.tokens`, the tokens at q + 1."""

    def draft_logits(self, level: int, index: Sequence[int], out: Logits) -> None:
        """Logits [len(index), |vocabulary|] of rows of the level's last forward."""

    def draft_block(
        self,
        rows: Rows,
        slot: int,
        position: int,
        token: int,
        whole: Callable[[Logits, int], F32Array],
    ) -> DraftedBlock:
        """The block that `drafter` drafts after `token` at `position`. Overwrites `rows`."""

    def final_hidden(self, rows: Rows, out: Tensor) -> None:
        """The last forward's rows after the final norm."""

    @property
    def draft_width(self) -> int:
        """Values of a row that drafts continue from."""

    def draft_hidden(self, rows: Rows, out: Tensor) -> None:
        """What the first draft level continues from, of the last forward's rows."""

    def logits(self, index: Sequence[int], out: Logits) -> None:
        """Logits [len(index), |vocabulary|] of rows of the last forward."""


KINDS = (AttributeError, KeyError, IndexError, TypeError, ArithmeticError, MemoryError, ValueError)
"""What reading a value of another kind than expected comes to."""
MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Family:
    """`parse` reads config.json, `build` makes the model from its result and a WeightSource.
    `takes` says which forms it can be held in beside the checkpoint's own.

    `exact` makes of a configuration that of the same model which keeps cached rows as they were
    computed; None where a family rounds none. `backends` are those whose kernels compute it;
    `beyond` says which sizes the GPU's do not take, of a parsed configuration, ranks and limits.
    """

    name: str
    parse: Callable[[dict[str, Any]], Any]
    build: Callable[..., Any]
    takes: FamilyForms = BARE
    exact: Callable[[Any], Any] | None = None
    backends: tuple[str, ...] = ("cpu",)
    beyond: Callable[[Any, int, KernelLimits], Iterable[str]] | None = None

    def lacks(
        self, config: dict[str, Any], world: int = 1, device: Device | None = None
    ) -> tuple[str, ...]:
        """Why GPUs do not compute the model of this config.json on `world` ranks, each on a device
        like `device` (None: whatever some device takes); nothing where they do. Raises
        CheckpointError naming a field that is wrong by itself."""
        if "cuda" not in self.backends:
            return (f"cuda does not compute {self.name} yet",)
        if self.beyond is None:
            return ()
        from kernels_numba.gpu.limits import limits_of

        place = "" if device is None else f" on {device.name}"
        found = self.beyond(self.settle(config), world, limits_of(device))
        return tuple(f"cuda{place} takes {said}" for said in found)

    def missing(
        self,
        backend: str,
        config: dict[str, Any],
        world: int = 1,
        device: Device | None = None,
    ) -> tuple[str, ...]:
        """What is said where `backend` does not compute the model, as `lacks` has it."""
        said = self.lacks(config, world, device) if backend == "cuda" else ()
        return tuple(f"engine.backend: {why}; set it to cpu" for why in said)

    def settle(self, config: dict[str, Any], forms: ModelForms = AS_STORED) -> Any:
        """What `parse` makes of a config.json, in the forms asked for. Raises CheckpointError
        naming a field, ConfigError naming a key that does not apply."""
        try:
            parsed = self.parse(config)
        except KINDS as error:
            # What is deep inside may be of any kind: the fields that matter are checked by name.
            raise CheckpointError(
                f"config.json: a value of another kind than {self.name} has there "
                f"({type(error).__name__}: {str(error)[:100]})"
            ) from error
        if parsed.num_hidden_layers > MOST_LAYERS:
            raise CheckpointError(
                f"config.json: num_hidden_layers: {parsed.num_hidden_layers}, at most {MOST_LAYERS}"
            )
        self.takes.require(self.name, forms)
        if forms.rope_scaling is not None:
            parsed = stretched_context(parsed, forms.rope_scaling)
        if forms.mtp_expert_format != AS_STORED.mtp_expert_format:
            parsed = msgspec.structs.replace(parsed, mtp_experts=forms.mtp_expert_format)
        if not forms.rounded_rows and self.exact is not None:
            parsed = self.exact(parsed)
        return parsed


def later(place: str) -> Callable[..., Any]:
    """The model class or function "module:name", imported when it is called: a server has one
    family, and no use for the others' layers."""
    module, _, name = place.partition(":")

    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **keywords)

    return call


FAMILIES = {
    "deepseek_v4": Family(
        "deepseek-v4-flash",
        v4_config.parse,
        later("dgpp.models.deepseek_v4.model:DeepseekV4Model"),
        exact=exact,
    ),
    "deepseek_v41": Family(
        "deepseek-v4.1-flash",
        v41_config.parse,
        later("dgpp.models.deepseek_v41.model:DeepseekV41Model"),
        exact=exact,
    ),
    "glm4_moe": Family(
        "glm-4.7",
        glm4_moe_config.parse,
        later("dgpp.models.glm4_moe.model:Glm4MoeModel"),
        backends=("cpu", "cuda"),
        beyond=later("dgpp.models.glm4_moe.limits:beyond"),
    ),
    "glm5_next": Family(
        "glm-5.3-flash", glm5_next_config.parse, later("dgpp.models.glm5_next.model:Glm5NextModel")
    ),
    "glm_moe_dsa": Family(
        "glm-5.3", glm_dsa_config.parse, later("dgpp.models.glm_moe_dsa.model:GlmDsaModel")
    ),
    "qwen3_5": Family(
        "qwen3.8-27b",
        qwen35_config.parse,
        later("dgpp.models.qwen3_5.model:Qwen35Model"),
        FamilyForms(dense_fp8=True, yarn=True),
    ),
    "qwen4_exp": Family(
        "qwen3.8-flash-next",
        qwen4_config.parse,
        later("dgpp.models.qwen4_exp.model:Qwen4ExpModel"),
        FamilyForms(dense_fp8=True, yarn=True, mtp_experts=("fp8", "bf16_fused")),
    ),
    "mimo_v2": Family("mimo", mimo_config.parse, later("dgpp.models.mimo_v2.model:MimoModel")),
}


def family_of(config: dict[str, Any]) -> Family:
    """The family of a parsed config.json. Raises CheckpointError naming its model_type."""
    if is_drafter(config):
        message = "config.json: a DFlash2 drafter: engine.dflash_model names it, beside its target"
        raise CheckpointError(message)
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        message = f"config.json: model_type {kind!r} is not served; known: {known}"
        raise CheckpointError(message)
    return family
