"""How DeepSeek families build on their layers: state, rotary tables, and draft stages behind the
last layer, which see a window only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from dgpp.checkpoint.formats import Format
from dgpp.models.decoder import Ends
from dgpp.models.deepseek.config import SharedRowConfig
from dgpp.models.deepseek.shapes import dspark_shape
from dgpp.models.layers.dspark import DSpark, DSparkNames
from dgpp.models.layers.hyper import HyperConnection, Streams
from dgpp.models.layers.rope import rotary_angles
from dgpp.models.layers.shared_key import SharedKeyAttention
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.sources import WeightSource
from dgpp.state.declaration import PagedRows, Ring, StateDeclaration
from dgpp.state.pools import StatePools
from kernels_numba.backend import Backend, Rows, Tensor


class StageLayer(ABC):
    """Layer `index`, or a draft stage where it is beyond the last; an entry stands for `ratio`
    tokens, 0 where it has none."""

    index: int
    ratio: int
    attention: SharedKeyAttention
    _mix: HyperConnection

    @abstractmethod
    def paged(self, name: str) -> list[PagedRows]:
        """Rows that the layer keeps in pages."""

    @abstractmethod
    def rings(self, name: str) -> list[Ring]:
        """Rings of the layer."""

    @abstractmethod
    def _feed(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        """What follows the attention."""

    def extend(self, rows: Rows, work: Workspace, context: Tensor) -> None:
        """Of a draft stage: `context` rows become rows of the window."""
        self.attention.extend(rows, work, context)

    def forward_block(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        """Of a draft stage: rows of a block."""
        self._mix.before(ops, rows, work)
        self.attention.project(rows, work)
        self.attention.attend(rows, work, None, block=True)
        self._feed(ops, rows, work, None)


L = TypeVar("L", bound=StageLayer)


class Stages(NamedTuple, Generic[L]):
    """Draft stages that were loaded, and the drafter of them."""

    layers: list[L]
    drafter: DSpark | None


def draft_stages(
    config: SharedRowConfig,
    source: WeightSource,
    count: int,
    layer_of: Callable[[WeightSource, int, str], L],
    drafter_of: Callable[[WeightSource, list[L]], DSpark],
    *,
    drafts: bool,
) -> Stages[L]:
    """`count` stages, which are bound even where they are not loaded."""
    extra, first = source if drafts else source.unloaded(), config.num_hidden_layers
    layers = [layer_of(extra, first + stage, f"mtp.{stage}") for stage in range(count)]
    drafter = drafter_of(extra, layers) if layers else None
    return Stages(layers, drafter) if drafts else Stages([], None)


def dspark_drafter(
    config: SharedRowConfig,
    source: WeightSource,
    stages: Sequence[StageLayer],
    streams: Streams,
    stored: Format,
    markov: tuple[str, str],
) -> DSpark:
    """Of the stages, whose last has the modules `markov`; matrices are `stored` so."""
    first, last = "mtp.0", f"mtp.{len(stages) - 1}"
    markov_from, markov_to = (f"{last}.markov_head.{name}" for name in markov)
    names = DSparkNames(
        merge=f"{first}.main_proj",
        context_norm=f"{first}.main_norm",
        output_norm=f"{last}.norm",
        markov_from=markov_from,
        markov_to=markov_to,
        confidence=f"{last}.confidence_head.proj",
    )
    return DSpark(source, dspark_shape(config), names, stages, streams, stored)


def ends(config: SharedRowConfig) -> Ends:
    """As DeepSeek's own releases name them."""
    return Ends(
        config.vocab_size,
        config.hidden_size,
        config.rms_norm_eps,
        embedding="embed",
        norm="norm.weight",
        head="head",
    )


def declaration(layers: Sequence[StageLayer]) -> StateDeclaration:
    """What all `layers` keep."""
    named = [(layer, f"layer {layer.index}") for layer in layers]
    return StateDeclaration(
        (),
        tuple(rows for layer, name in named for rows in layer.paged(name)),
        tuple(ring for layer, name in named for ring in layer.rings(name)),
    )


def kept(layers: Sequence[L], pools: StatePools) -> Iterator[tuple[L, list[object], list[object]]]:
    """Each layer with its paged rows and rings of `pools`, which hold what `layers` declare."""
    paged, rings = iter(pools.paged), iter(pools.rings)
    for layer in layers:
        yield layer, [next(paged) for _ in layer.paged("")], [next(rings) for _ in layer.rings("")]


def rotary_tables(
    config: SharedRowConfig, backend: Backend, positions: int
) -> Callable[[StageLayer], Tensor]:
    """The table of each layer: stretched where it has entries. Blocks that are drafted reach
    beyond `positions`."""
    reach = positions + config.dspark_block_size
    plain, stretched = (
        backend.rotary_table(rotary_angles(reach, config.qk_rope_head_dim, theta, yarn))
        for theta, yarn in (
            (config.rope_theta, None),
            (config.compress_rope_theta, config.rope_scaling.yarn),
        )
    )
    return lambda layer: stretched if layer.ratio else plain
