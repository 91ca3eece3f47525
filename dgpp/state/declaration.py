"""What a family keeps per request: declared by the model, served by pools that know no family."""

from __future__ import annotations

import enum
import math

import msgspec

from dgpp.errors import ConfigError
from kernels_numba.gpu.source import HEAD_STEP
from kernels_numba.packed_rows import FP4_GROUP, PackedRow, RowCode
from kernels_numba.weights import VECTOR

WIDE_BYTES = 4
"""A value of state that keeps sums: float32 on every backend."""


class Kept(enum.Enum):
    """What paged rows are, which decides how `kv_dtype` packs them: not at all, as latents by its
    own name, as index keys in FP8."""

    PLAIN = "plain"
    LATENT = "latent"
    INDEX = "index"


_CODES = {
    Kept.LATENT: {"fp8": RowCode.FP8, "fp4": RowCode.FP4},
    Kept.INDEX: {"fp8": RowCode.FP8, "fp4": RowCode.FP8},
    Kept.PLAIN: {},
}


class CacheForm(msgspec.Struct, frozen=True):
    """How a backend keeps cached rows: bytes of a value, and what rows are padded to; `kv_dtype`
    packs what is paged."""

    value_bytes: int
    padding: int
    kv_dtype: str = "bf16"

    def packed_bytes(self, row: PackedRow) -> int:
        """Bytes of a paged row."""
        return self.row_bytes(row.width) if row.code is RowCode.FLOAT else row.bytes

    def row_bytes(self, width: int, *, wide: bool = False) -> int:
        """Bytes of a row of `width` values; rows are padded to what kernels read at once."""
        padded = -(-width // self.padding) * self.padding
        return padded * (WIDE_BYTES if wide else self.value_bytes)


CPU_CACHE = CacheForm(4, VECTOR)
"""float32 rows, whatever `kv_dtype` says."""
CUDA_CACHE = CacheForm(2, HEAD_STEP)


class PagedPlane(msgspec.Struct, frozen=True):
    """Keys and values per token of one layer, in blocks; `value_dim` 0: as many as keys."""

    name: str
    kv_heads: int
    head_dim: int
    value_dim: int = 0

    def code(self, kv_dtype: str) -> RowCode:
        """How a head's row is packed."""
        return RowCode.FP8 if kv_dtype == "fp8" else RowCode.FLOAT

    def block_bytes(self, form: CacheForm, block_tokens: int) -> int:
        code = self.code(form.kv_dtype)
        heads = sum(
            form.packed_bytes(PackedRow(code, width))
            for width in (self.head_dim, self.value_dim or self.head_dim)
        )
        return self.kv_heads * block_tokens * heads


class PagedRows(msgspec.Struct, frozen=True):
    """One row of `width` values per `every` tokens, in blocks: latents, index keys.

    `every` divides the tokens of a block, so that a block holds whole rows. Of a packed row the
    last `plain` values stay in bf16.
    """

    name: str
    width: int
    every: int = 1
    kept: Kept = Kept.PLAIN
    plain: int = 0

    def code(self, kv_dtype: str) -> RowCode:
        """How a row is packed."""
        return _CODES[self.kept].get(kv_dtype, RowCode.FLOAT)

    def rows(self, block_tokens: int) -> int:
        """Rows per block."""
        return block_tokens // self.every

    def block_bytes(self, form: CacheForm, block_tokens: int) -> int:
        row = PackedRow(self.code(form.kv_dtype), self.width, self.plain)
        return self.rows(block_tokens) * form.packed_bytes(row)


class Ring(msgspec.Struct, frozen=True):
    """The rows of a request's last `rows` positions, position p in row p mod `rows`.

    A window that speculation may overrun declares that many rows more.
    """

    name: str
    rows: int
    width: int
    wide: bool = False

    def entry_bytes(self, form: CacheForm) -> int:
        return self.rows * form.row_bytes(self.width, wide=self.wide)


class FixedState(msgspec.Struct, frozen=True):
    """`rows` rows of `width` values per request: recurrent and convolution state. Zero at first."""

    name: str
    rows: int
    width: int
    wide: bool = True

    def entry_bytes(self, form: CacheForm) -> int:
        return self.rows * form.row_bytes(self.width, wide=self.wide)


class StateDeclaration(msgspec.Struct, frozen=True):
    """All state of a model.

    What is paged lies in blocks that requests share; a snapshot of it is a reference. Rings and
    fixed state belong to one request; a snapshot of them is a copy of `snapshot_bytes`.
    """

    planes: tuple[PagedPlane, ...]
    paged: tuple[PagedRows, ...] = ()
    rings: tuple[Ring, ...] = ()
    fixed: tuple[FixedState, ...] = ()

    @property
    def paged_only(self) -> bool:
        """Whether blocks are all there is, so that any cut of a prefix can be shared."""
        return not (self.rings or self.fixed)

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """What `kv_dtype` may be: fp8 packs latents and heads, fp4 latents."""
        latents = [rows for rows in self.paged if rows.kept is Kept.LATENT]
        if not latents and not self.planes:
            return ("bf16",)
        whole = all((rows.width - rows.plain) % FP4_GROUP == 0 for rows in latents)
        return ("bf16", "fp8", "fp4") if latents and whole and not self.planes else ("bf16", "fp8")

    def require_kv_dtype(self, kv_dtype: str, model: str) -> None:
        """Raises ConfigError where the model's state is not kept so."""
        if kv_dtype not in self.kv_dtypes:
            raise ConfigError(
                f"engine.kv_dtype: {kv_dtype} does not apply to {model}, whose context is kept in "
                + " or ".join(self.kv_dtypes)
            )

    def block_tokens(self, least: int) -> int:
        """Tokens of a block of whole rows: `least`, or the next multiple of it that holds some."""
        return math.lcm(least, *(rows.every for rows in self.paged))

    def block_bytes(self, form: CacheForm, block_tokens: int) -> int:
        """Bytes of one block over all layers."""
        parts: tuple[PagedPlane | PagedRows, ...] = (*self.planes, *self.paged)
        return sum(part.block_bytes(form, block_tokens) for part in parts)

    def snapshot_bytes(self, form: CacheForm) -> int:
        """Bytes per request of what is not paged, which are also those of a snapshot."""
        parts: tuple[Ring | FixedState, ...] = (*self.rings, *self.fixed)
        return sum(part.entry_bytes(form) for part in parts)
