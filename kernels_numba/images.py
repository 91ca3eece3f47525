"""What a backend holds of a model as plain arrays, and back: so that it can be kept in a file."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kernels_numba.backend import Matrix, Tensor

VECTOR_FORM = -1
"""As `HeldArrays.form`: not a matrix but a vector of parameters."""


class HeldArrays(NamedTuple):
    """A matrix [rows, columns] of a `Form`, or a vector of `columns` values, and its arrays."""

    form: int
    rows: int
    columns: int
    arrays: tuple[npt.NDArray[Any], ...]


class ArrayShape(NamedTuple):
    """An array that is not there yet."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@runtime_checkable
class ImageBackend(Protocol):
    """A backend whose matrices and vectors can be kept and taken back."""

    def held_arrays(self, tensor: Matrix | Tensor) -> HeldArrays:
        """The arrays of what `Backend.matrix` or `Backend.vector` returned, where they lie."""

    def array_shapes(self, form: int, rows: int, columns: int, lines: int) -> list[ArrayShape]:
        """The arrays that such a matrix has, `lines` being the length of its scales."""

    def room(self, wanted: ArrayShape) -> npt.NDArray[Any]:
        """Memory for an array, as the backend would allocate it."""

    def adopt(self, held: HeldArrays) -> Matrix | Tensor:
        """What `held_arrays` was of, over these arrays, which are the backend's from now on."""
