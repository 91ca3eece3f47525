"""Taps into a forward pass, for checks; a served model has none."""

from __future__ import annotations

from typing import Protocol

from kernels_numba.backend import Routes, Rows, Tensor
from kernels_numba.extended import Selection
from kernels_numba.tables import Ngrams


class Observer(Protocol):
    """Called during a forward pass with the backend's own tensors; copy what is to be kept."""

    def hidden(self, index: int, rows: Rows, x: Tensor) -> None:
        """The residual after the embedding (index 0) and after layer `index` − 1."""

    def selected(self, layer: int, rows: Rows, selection: Selection) -> None:
        """What the rows of a sparse layer attend to."""

    def routed(self, layer: int, rows: Rows, routes: Routes) -> None:
        """The expert choices of an MoE layer."""

    def looked_up(self, rows: Rows, ngrams: Ngrams) -> None:
        """Which rows of a table the rows' tokens name."""


class Unconcerned:
    """An observer that looks at nothing, for those that look at one thing to derive from."""

    def hidden(self, index: int, rows: Rows, x: Tensor) -> None:
        """Not looked at."""

    def selected(self, layer: int, rows: Rows, selection: Selection) -> None:
        """Not looked at."""

    def routed(self, layer: int, rows: Rows, routes: Routes) -> None:
        """Not looked at."""

    def looked_up(self, rows: Rows, ngrams: Ngrams) -> None:
        """Not looked at."""
