"""How a model comes into memory: from its files, from an image of what was held, or at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.models.account import Account
from dgpp.models.dummy_weights import DummyWeights
from dgpp.models.forms import ModelForms
from dgpp.models.progress import FollowedWeights
from dgpp.models.registry import Model, family_of
from dgpp.models.resident_image import ResidentImage, image_facts, image_path
from dgpp.models.shard import Shard
from dgpp.models.sources import CheckedWeights, LoadedWeights, PlannedWeights, WeightSource
from dgpp.models.tables import Tables
from kernels_numba.backend import Backend
from kernels_numba.images import ImageBackend


@dataclass(frozen=True, slots=True)
class DummyModel:
    """A model of which only config.json is there; its weights are random."""

    config: dict[str, Any]


@dataclass(slots=True)
class Loading:
    """How a model comes into memory; `notes` say it."""

    checkpoint: Checkpoint | DummyModel
    backend: Backend
    shard: Shard
    forms: ModelForms
    tables: Tables
    drafts: bool
    notes: list[str] = field(default_factory=list)

    def run(self, images: Path | None) -> tuple[Model, Account]:
        """The model, and what was read for it; with a directory of `images` from there where it
        can be. Every tensor is bound before one is read: CheckpointError names what does not fit.
        """
        checkpoint, forms = self.checkpoint, self.forms
        family = family_of(checkpoint.config)
        config = family.settle(checkpoint.config, forms)
        build = partial(family.build, config, drafts=self.drafts)
        if isinstance(checkpoint, DummyModel):
            source = DummyWeights(self.backend, self.shard, self.tables, forms=forms)
            return self._followed(build, "random weights made")(source), Account()
        trial = Binding(checkpoint)
        build(CheckedWeights(trial, self.shard, self.tables))
        trial.finish()
        followed = self._followed(build, "weights loaded")
        model, account = self._from_files(checkpoint, followed, images)
        for read in (checkpoint, self.tables.checkpoint):
            if read is not None:
                read.release()
        return model, account

    def _followed(
        self, build: Callable[[WeightSource], Model], doing: str
    ) -> Callable[[WeightSource], Model]:
        """`build` with a line in the log now and then, which begins with `doing`."""
        planned = PlannedWeights(self.shard, self.tables, self.forms)
        build(planned)
        total = sum(planned.items.values())
        return lambda source: build(FollowedWeights(source, self.forms, total, doing))

    def _from_files(
        self, checkpoint: Checkpoint, build: Callable[[WeightSource], Model], images: Path | None
    ) -> tuple[Model, Account]:
        def source(kind: type[LoadedWeights], *more: Any) -> LoadedWeights:
            return kind(
                Binding(checkpoint), self.backend, self.shard, self.tables, self.forms, *more
            )

        name = self.backend.name
        if images is None or not isinstance(self.backend, ImageBackend):
            if images is not None:
                self.notes.append(f"resident image: none, the {name} backend keeps none yet")
            loaded = source(LoadedWeights)
            return build(loaded), loaded.account
        facts = image_facts(checkpoint, self.shard, self.forms, name, drafts=self.drafts)
        path = image_path(images, checkpoint.directory, facts)
        image = ResidentImage(path, facts)
        found = image.load(build, source, self.backend)
        self.notes += image.notes
        return found
