"""What a checkpoint holds: its family, its formats, what is ignored, what each rank would load."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy.typing as npt

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.errors import ConfigError
from dgpp.models.dflash2.config import is_drafter
from dgpp.models.dflash2.config import parse as parse_drafter
from dgpp.models.dflash2.model import DFlash2
from dgpp.models.dflash2.plan import drafter_bytes
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.registry import family_of
from dgpp.models.sources import CheckedWeights, Linear, WeightSource
from dgpp.models.table_binding import bind_constants, bind_table, holds_some
from dgpp.models.tables import Table
from kernels_numba.backend import Matrix

WORLDS = (1, 2, 4)


class Share(msgspec.Struct, frozen=True):
    """Tensors of one kind: `name`, how many matrices (or vectors), tensors, and bytes on disk."""

    name: str
    parts: int
    tensors: int
    bytes: int


class RankShare(msgspec.Struct, frozen=True):
    """Bytes of weights in a rank's memory, and what draft layers add; `reason` why not."""

    world: int
    bytes: int
    draft_bytes: int
    reason: str = ""


class Inspection(msgspec.Struct, frozen=True):
    """`formats` are those of the matrices, the largest first; `ignored` tensors are grouped by
    their names with numbers left out; `notes` say what is elsewhere. `kind`: a model to be served
    is a target."""

    directory: str
    family: str
    model_type: str
    files: int
    tensors: int
    bytes: int
    formats: tuple[Share, ...]
    vectors: Share
    draft: Share
    ignored: tuple[Share, ...]
    ranks: tuple[RankShare, ...]
    notes: tuple[str, ...] = ()
    kind: Literal["target", "drafter"] = "target"


class _Tally(CheckedWeights):
    """Binds, and counts what each format takes on disk; draft layers that are not loaded apart."""

    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        self.formats: dict[str, Counter[str]] = {}
        self.vectors: Counter[str] = Counter()
        self.draft: _Tally | None = None
        self.notes: list[str] = []

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        for linear in linears:
            counts = self.formats.setdefault(linear.format.name, Counter())
            counts += _counted(self._arrays(linear))

    def _values(self, name: str, shape: tuple[int, ...], dtypes: Sequence[str]) -> npt.NDArray[Any]:
        values = super()._values(name, shape, dtypes)
        self.vectors += _counted([values])
        return values

    def table(self, item: str, table: Table) -> Any:
        if not holds_some(self._binding, table):
            self.vectors += _counted(bind_constants(self._binding, table))
            self.notes.append(
                f"its table of {table.rows} rows is in another checkpoint, which "
                "engine.ngram_table_model names"
            )
            return
        counts = self.formats.setdefault(f"{table.format.name}, looked up", Counter())
        bound = bind_table(self._binding, self._elsewhere, table)
        self.vectors += _counted(bound.beside)
        for shard in bound.shards:
            stored = [shard.part.data]
            if not table.scale and shard.part.scale is not None:
                stored.append(shard.part.scale)
            counts += _counted(stored)

    def unloaded(self) -> WeightSource:
        self.draft = self.draft or _Tally(self._binding)
        return self.draft

    def total(self) -> Counter[str]:
        return sum(self.formats.values(), start=self.vectors.copy())


def _counted(arrays: Sequence[npt.NDArray[Any]]) -> Counter[str]:
    size = sum(array.nbytes for array in arrays)
    return Counter(parts=1, tensors=len(arrays), bytes=size) if arrays else Counter()


def _share(name: str, counts: Counter[str]) -> Share:
    return Share(name, counts["parts"], counts["tensors"], counts["bytes"])


def inspect_checkpoint(checkpoint: Checkpoint) -> Inspection:
    """Raises CheckpointError naming the first tensor or field that the family does not know."""
    drafter = is_drafter(checkpoint.config)
    binding = Binding(checkpoint)
    tally = _Tally(binding)
    name = _bind_drafter(checkpoint, tally) if drafter else _bind_target(checkpoint, tally)
    binding.finish()
    sizes = {name: checkpoint.bytes_of(name) for name in checkpoint.names}
    formats = [_share(name, counts) for name, counts in tally.formats.items()]
    ignored: dict[str, Counter[str]] = {}
    for unused in binding.ignored:
        counts = ignored.setdefault(re.sub(r"\d+", "N", unused), Counter())
        counts += Counter(parts=1, tensors=1, bytes=sizes[unused])
    return Inspection(
        directory=str(checkpoint.directory),
        family=name,
        model_type=str(checkpoint.config["model_type"]),
        files=len(checkpoint.files),
        tensors=len(sizes),
        bytes=sum(sizes.values()),
        formats=tuple(sorted(formats, key=lambda share: -share.bytes)),
        vectors=_share("vectors", tally.vectors),
        draft=_share("draft layers", tally.draft.total() if tally.draft else Counter()),
        ignored=tuple(_share(name, counts) for name, counts in sorted(ignored.items())),
        ranks=tuple(_rank(checkpoint, world) for world in WORLDS),
        notes=tuple(tally.notes),
        kind="drafter" if drafter else "target",
    )


def _bind_target(checkpoint: Checkpoint, tally: _Tally) -> str:
    """Its family."""
    family = family_of(checkpoint.config)
    family.build(family.settle(checkpoint.config), tally, drafts=False)
    return family.name


def _bind_drafter(checkpoint: Checkpoint, tally: _Tally) -> str:
    """What drafts so."""
    config = parse_drafter(checkpoint.config)
    DFlash2(config, tally)
    block = config.dflash_config.block_size
    tally.notes.append(
        f"drafts blocks of {block} tokens for a model of {config.num_target_layers} layers and "
        f"{config.hidden_size} values a token, beside which engine.dflash_model names it"
    )
    return "dflash2"


def _rank(checkpoint: Checkpoint, world: int) -> RankShare:
    try:
        if is_drafter(checkpoint.config):
            return RankShare(world, drafter_bytes(checkpoint.config, world), 0)
        alone, drafting = (
            plan_memory(checkpoint.config, MemorySettings(drafts=drafts), world).weight_bytes
            for drafts in (False, True)
        )
    except ConfigError as error:
        return RankShare(world, 0, 0, str(error))
    return RankShare(world, alone, drafting - alone)
