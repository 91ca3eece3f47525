"""CUDA sources as one text each, and how they are compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels_numba.weights import Form

FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@cache
def source(name: str) -> str:
    """The text of `name`.cu with its headers in place, so that it is what a compile cache sees."""
    text = (FOLDER / f"{name}.cu").read_text("utf-8")
    return _INCLUDE.sub(lambda found: (FOLDER / found[1]).read_text("utf-8"), text)


@dataclass(frozen=True, slots=True)
class Unit:
    """One compilation: a source, the constants it is compiled for and, where it uses instructions
    of one architecture alone, which."""

    name: str
    defines: tuple[tuple[str, int], ...] = ()
    flags: tuple[str, ...] = ()
    architecture: str = ""

    @property
    def text(self) -> str:
        return source(self.name)

    def options(self) -> tuple[str, ...]:
        """NVRTC's options beside the architecture and build.py's -ftz. No fast math: bits are
        promised."""
        return ("-std=c++17", *self.flags, *(f"-D{name}={value}" for name, value in self.defines))

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.defines)
        return f"{self.name}.cu ({settings})" if settings else f"{self.name}.cu"


HEAD_STEP = 32
"""Heads in the cache are padded to whole steps of the score kernel."""


@dataclass(frozen=True, slots=True)
class Rings:
    """What blocks hold of weights on their way: bytes of a streaming block, of one of linear_few.cu
    that takes a matrix alone (what is left caches rows of x), streaming blocks that share a
    processor, chunks of a tiled block."""

    stream: int
    alone: int
    blocks: int
    stages: int


LARGE = Rings(96 << 10, 64 << 10, blocks=2, stages=4)
"""Two blocks with 96 KiB and up to 16 of sums and scales find room in the 228 KiB of a Hopper
processor."""
SMALL = Rings(64 << 10, 64 << 10, blocks=1, stages=3)
"""Where a block's shared memory has no room for LARGE: GB10 has 99 KiB, of which 64 rows of x take
32 for sums."""
LARGE_BYTES = 168 << 10
"""Shared memory of a block that LARGE needs at most, rounded up: 164 KiB are four chunks of 128
rows of NVFP4 (9 KiB) and 128 of x (32 KiB)."""


def rings_of(shared: int) -> Rings:
    """For a device whose blocks have `shared` bytes of shared memory at most."""
    return LARGE if shared >= LARGE_BYTES else SMALL


SCALE_ROOM = 4 << 10
"""What linear_few.cu needs beside its ring for FP8's scales, rounded up: 2,304 bytes are 16 for
each of a strip's two bands, in three places of three strips, for eight warps."""
FORMS = ((Form.BF16, 0), (Form.NVFP4, 0), (Form.FP8_BLOCK, 128), (Form.FP8_BLOCK, 32))
"""Forms and, for FP8, the groups of values that share a scale."""


def _format(form: Form, group: int) -> tuple[tuple[str, int], ...]:
    return (("FORMAT", int(form)), *((("GROUP", group),) if group else ()))


def linear_unit(form: Form, group: int = 0, rings: Rings = LARGE) -> Unit:
    strips = 2 if rings is LARGE else 1
    return Unit("linear", (*_format(form, group), ("RING", rings.stream), ("MOST", strips)))


SHORT = Unit("linear_short", _format(Form.BF16, 0))
"""For few weights, which are bf16: routers."""


def few_strips(form: Form) -> tuple[int, ...]:
    """Strips of an item for which linear_few.cu has kernels. The ring holds a chunk of the
    most."""
    return (2, 4 if form is Form.NVFP4 else 3)


def few_unit(form: Form, group: int = 0, rings: Rings = LARGE, *, alone: bool = False) -> Unit:
    ring = rings.alone if alone else rings.stream
    return Unit("linear_few", (*_format(form, group), ("RING", ring), ("ALONE", int(alone))))


def alone_unit(form: Form, group: int = 0, rings: Rings = LARGE) -> Unit:
    return few_unit(form, group, rings, alone=True)


def tile_unit(form: Form, group: int = 0, rings: Rings = LARGE) -> Unit:
    return Unit("tile", (*_format(form, group), ("STAGES", rings.stages)))


WIDE_FORMS = (Form.BF16, Form.NVFP4)
"""Forms that Hopper's own kernel multiplies."""
HOPPER = "sm_90a"


def wide_unit(form: Form) -> Unit:
    return Unit("tile_hopper", (("FORMAT", int(form)),), architecture=HOPPER)


WIDE_HEADS = (64, 128)
"""Widths of heads that Hopper's own attention takes."""


def attend_wide_unit(head_dim: int) -> Unit:
    return Unit("attend_hopper", (("HEAD_DIM", head_dim),), architecture=HOPPER)


def attention_unit(head_dim: int) -> Unit:
    return Unit("attention", (("HEAD_DIM", padded_head(head_dim)),))


SHARED_DIM = 128
"""Widest padded head whose values a warp of attend_shared.cu keeps in registers."""


def attend_shared_unit(head_dim: int) -> Unit:
    return Unit("attend_shared", (("HEAD_DIM", padded_head(head_dim)),))


def attention_units(head_dim: int) -> list[Unit]:
    """What heads of this width need."""
    units = [attention_unit(head_dim)]
    if padded_head(head_dim) <= SHARED_DIM:
        units.append(attend_shared_unit(head_dim))
    if head_dim in WIDE_HEADS:
        units.append(attend_wide_unit(head_dim))
    return units


def padded_head(head_dim: int) -> int:
    return -(-head_dim // HEAD_STEP) * HEAD_STEP


ROWS, MOE, PICK = Unit("rows"), Unit("moe"), Unit("pick")
RANDOM, STEP, COLLECTIVE, BUS = (
    Unit("random"),
    Unit("step"),
    Unit("collective", flags=("-device-int128",)),
    Unit("bus"),
)


def shared_units(rings: Rings = LARGE) -> list[Unit]:
    """What every model may need, whatever its heads."""
    makers = (linear_unit, few_unit, alone_unit, tile_unit)
    matrices = [unit(*form, rings) for unit in makers for form in FORMS]
    return [ROWS, MOE, PICK, STEP, SHORT, *matrices, *map(wide_unit, WIDE_FORMS)]


def all_units(
    head_dims: tuple[int, ...] = (16, 64, 96, 128, 256), rings: Rings = LARGE
) -> list[Unit]:
    """Every source in every form it is compiled in, for heads of these widths."""
    attention = [unit for dim in head_dims for unit in attention_units(dim)]
    return [*shared_units(rings), RANDOM, COLLECTIVE, BUS, *attention]
