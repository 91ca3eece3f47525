"""Engram: every n-gram that ends at a token names rows of a table, which join the residual's
streams as far as their keys fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dgpp.checkpoint.formats import FP8_E8M0_32, MXFP8
from dgpp.models.deepseek_v41.config import DeepseekV41Config
from dgpp.models.deepseek_v41.engram_tables import multipliers, primes, token_classes
from dgpp.models.layers.extended import extended
from dgpp.models.layers.ngram import NgramRows, NgramShape
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.sources import Linear, WeightSource
from dgpp.models.tables import Table
from kernels_numba.backend import Backend, Rows
from kernels_numba.streams import StreamGate
from kernels_numba.tables import NgramHash

TOKENIZER = "tokenizer.json"


def classes_of(config: DeepseekV41Config, source: WeightSource) -> npt.NDArray[np.int32]:
    """int32 [vocab]: what each token counts as, by the tokenizer beside the weights; where there
    are none, any classes will do."""
    path = source.beside(TOKENIZER)
    if path is not None:
        return token_classes(config, path)
    everyone = np.arange(config.vocab_size) % config.engram_compressed_vocab_size
    return everyone.astype(np.int32)


def engram_shapes(
    config: DeepseekV41Config, classes: npt.NDArray[np.int32]
) -> dict[int, NgramShape]:
    """By layer, how its table's rows are found. No n-gram reaches over an image."""
    pad = int(classes[config.engram_pad_token_id])
    parts = zip(config.engram_layer_ids, primes(config), config.engram_num_embeddings, strict=True)
    return {
        layer: NgramShape(
            NgramHash(multipliers(config, layer), part, pad, config.image_token_id, classes),
            config.engram_head_dim,
            total,
        )
        for layer, part, total in parts
    }


@dataclass(frozen=True, slots=True)
class EngramSizes:
    """`streams` of `hidden` values."""

    hidden: int
    streams: int
    eps: float

    @property
    def kv(self) -> int:
        """Values of a row [a key per stream | value]."""
        return (self.streams + 1) * self.hidden


class Engram:
    """streams += gate · value, by a key per stream; keys and value are projected from the rows that
    the last tokens name."""

    def __init__(
        self, source: WeightSource, name: str, shape: NgramShape, sizes: EngramSizes
    ) -> None:
        self.shape = shape
        table = Table(
            prefixes=(name,),
            matrix="embed",
            rows=shape.total,
            columns=shape.dim,
            format=MXFP8,
            held=shape.held(source.shard),
        )
        self._rows = NgramRows(source, table, shape)
        wkv = Linear(f"{name}.wkv", sizes.kv, shape.width, FP8_E8M0_32)
        self._project = source.matrix("engram", [wkv])
        query, key = (
            source.vector("engram", f"{name}.{side}_weight", (sizes.streams, sizes.hidden))
            for side in ("q", "k")
        )
        self._gate = StreamGate(query, key, sizes.streams, sizes.hidden, sizes.eps)

    def prepare(self, ops: Backend, work: Workspace, ring: object) -> None:
        """Give the layer the ring of its tokens, once."""
        self._rows.prepare(ops, work, ring)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        more, kv = extended(ops), work.extra["engram kv"]
        found = self._rows.forward(rows, work, observer)
        more.linear(rows, found, self._project, kv)
        more.gate_streams(rows, work.streams, kv, self._gate, work.streams)
