"""Each format written and decoded from its description alone: bytes in, float values out.

A case draws codes and scales, or finds them for given values as releases do (`encode`), and stores
them: the tensors of one matrix as a release would have them, by suffix, and the values that they
stand for. Nothing of the loader or the kernels computes any of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dgpp.checkpoint import formats
from dgpp.checkpoint.formats import Format

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
Coded = tuple[np.ndarray, np.ndarray]
"""Codes [rows, columns], and stored scales [blocks of rows, blocks of columns]."""
E2M1 = np.array(
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0],
    np.float32,
)


def e4m3(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3 = np.array([e4m3(code) for code in range(256)], np.float32)
"""The last code of either sign is NaN, and not used."""
FINITE = slice(0, 127)


def bf16_codes(values: np.ndarray) -> np.ndarray:
    """The nearest bf16, of two as near the even one."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2")


def widened(codes: np.ndarray) -> np.ndarray:
    return (codes.astype("<u4") << 16).view("<f4")


def nearest(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The code of the nearest of ascending `table`, of two as near the even one."""
    high = np.searchsorted(table, values).clip(1, table.size - 1)
    below, above = values - table[high - 1], table[high] - values
    up = (above < below) | ((above == below) & (high % 2 == 0))
    return np.where(up, high, high - 1).astype(np.uint8)


def signed(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    sign = 0x80 if table.size == 127 else 8
    return nearest(table, np.abs(values)) | np.where(values < 0, sign, 0).astype(np.uint8)


def tensor(dtype: str, values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return dtype, values.shape, values.tobytes()


def pack_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """int32 words along the last axis, the first code in the lowest bits."""
    each = 32 // bits
    grouped = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, each)
    shifts = np.arange(each, dtype=np.uint32) * bits
    return (grouped << shifts).sum(axis=-1, dtype=np.uint32).view(np.int32)


def nibbles(codes: np.ndarray) -> np.ndarray:
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


class Kind(NamedTuple):
    """How numbers are written: drawn at random in a shape, found for float values, read back.

    Of values before their scale: the largest magnitude is `top`; what is found is no farther off
    than `near` of the value, and `near_zero`.
    """

    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
    of: Callable[[np.ndarray], np.ndarray]
    read: Callable[[np.ndarray], np.ndarray]
    top: float = 1.0
    near: float = 0.0
    near_zero: float = 0.0


def _small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (2.0 ** rng.uniform(-12, -8, shape)).astype(np.float32)


def _bytes(most: int) -> Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]:
    return lambda rng, shape: rng.integers(0, most, shape).astype(np.uint8)


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _either_sign(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _bytes(127)(rng, shape) | _bytes(2)(rng, shape) << 7


def _integers(bits: int) -> Kind:
    zero = 1 << bits - 1
    return Kind(
        _bytes(2 * zero),
        lambda values: (np.rint(values) + zero).clip(0, 2 * zero - 1).astype(np.uint8),
        lambda codes: codes.astype(np.float32) - zero,
        zero - 1,
        near_zero=0.5,
    )


CODES = {
    "f32": Kind(_noise, np.float32, np.float32),
    "bf16": Kind(lambda *of: bf16_codes(_noise(*of)), bf16_codes, widened, near=2.0**-8),
    "e4m3": Kind(
        _either_sign,
        lambda values: signed(E4M3[FINITE], values),
        lambda codes: E4M3[codes],
        448,
        1 / 16,
        2.0**-10,
    ),
    "e2m1": Kind(
        _bytes(16),
        lambda values: signed(E2M1[:8], values),
        lambda codes: E2M1[codes],
        6,
        1 / 5,
        0.25,
    ),
    "int4": _integers(4),
    "int8": _integers(8),
}
SCALES = {
    "none": Kind(lambda rng, shape: np.ones(shape), np.ones_like, np.float32),
    "f32": Kind(_small, np.float32, np.float32),
    "bf16": Kind(lambda *of: bf16_codes(_small(*of)), bf16_codes, widened),
    "f16": Kind(lambda *of: _small(*of).astype(np.float16), np.float16, np.float32),
    "e4m3": Kind(
        _bytes(127), lambda wanted: nearest(E4M3[FINITE], wanted), lambda codes: E4M3[codes]
    ),
    "e8m0": Kind(
        _bytes(245),
        lambda wanted: (np.ceil(np.log2(wanted)) + 127).astype(np.uint8),
        lambda codes: (2.0 ** (codes.astype(float) - 127)).astype(np.float32),
    ),
}


class Case(NamedTuple):
    """A format and the extents of a matrix. `block`: rows and columns that share a scale (0: all
    columns). Scales are multiplied by `factor` and divided by `divisor`. `pack` makes tensors of
    codes and stored scales; rows lie in `chunks` whose blocks begin anew."""

    format: Format
    extents: tuple[int, int]
    code: str
    scale: str
    block: tuple[int, int]
    pack: Callable[[np.ndarray, np.ndarray], Tensors]
    chunks: int = 1
    factor: float = 1.0
    divisor: float = 1.0

    def _starts(self) -> tuple[list[int], list[int]]:
        """First row and first column of each block."""
        rows, columns = self.extents[0] // self.chunks, self.extents[1]
        inner = range(0, rows, self.block[0])
        high = [chunk * rows + n for chunk in range(self.chunks) for n in inner]
        return high, list(range(0, columns, self.block[1] or columns))

    def draw(self, rng: np.random.Generator) -> Coded:
        high, wide = self._starts()
        codes = CODES[self.code].draw(rng, self.extents)
        return codes, SCALES[self.scale].draw(rng, (len(high), len(wide)))

    def scales(self, stored: np.ndarray) -> np.ndarray:
        """Each value's own: what its code is multiplied by."""
        high, wide = self._starts()
        read = SCALES[self.scale].read(stored) * np.float32(self.factor) / np.float32(self.divisor)
        tall = read.repeat(np.diff([*high, self.extents[0]]), axis=0)
        return tall.repeat(np.diff([*wide, self.extents[1]]), axis=1)

    def encode(self, values: np.ndarray) -> Coded:
        """A block's scale takes its largest magnitude to the largest code."""
        high, wide = self._starts()
        most = np.maximum.reduceat(np.maximum.reduceat(np.abs(values), high, 0), wide, 1)
        wanted = most / CODES[self.code].top / self.factor * self.divisor
        stored = SCALES[self.scale].of(wanted.astype(np.float32))
        return CODES[self.code].of(values / self.scales(stored)), stored

    def store(self, coded: Coded) -> tuple[Tensors, np.ndarray]:
        return self.pack(*coded), CODES[self.code].read(coded[0]) * self.scales(coded[1])


def _plain(dtype: str) -> Callable[[np.ndarray, np.ndarray], Tensors]:
    return lambda codes, _: {"weight": tensor(dtype, codes)}


def _fp8(suffix: str, dtype: str) -> Callable[[np.ndarray, np.ndarray], Tensors]:
    return lambda codes, scale: {
        "weight": tensor("F8_E4M3", codes),
        suffix: tensor(dtype, scale),
    }


def _fp4(
    weight: str, dtype: str, suffix: str, scale_dtype: str, factor: Tensors | None = None
) -> Callable[[np.ndarray, np.ndarray], Tensors]:
    return lambda codes, scale: {
        weight: tensor(dtype, nibbles(codes)),
        suffix: tensor(scale_dtype, scale),
        **(factor or {}),
    }


def _packed(bits: int) -> Callable[[np.ndarray, np.ndarray], Tensors]:
    return lambda codes, scale: {
        "weight_packed": tensor("I32", pack_words(codes, bits)),
        "weight_scale": tensor("BF16", scale),
        "weight_shape": tensor("I64", np.array(codes.shape, np.int64)),
    }


def _gptq(bits: int) -> Callable[[np.ndarray, np.ndarray], Tensors]:
    def pack(codes: np.ndarray, scale: np.ndarray) -> Tensors:
        zeros = np.full(scale.T.shape, (1 << bits - 1) - 1)
        return {
            "qweight": tensor("I32", np.ascontiguousarray(pack_words(codes, bits).T)),
            "scales": tensor("F16", np.ascontiguousarray(scale.T)),
            "qzeros": tensor("I32", pack_words(zeros, bits)),
        }

    return pack


MODELOPT, COMPRESSED = 0.00081, 1234.5
FACTOR = {"weight_scale_2": tensor("F32", np.array(MODELOPT, np.float32))}
DIVISOR = {"weight_global_scale": tensor("F32", np.array([COMPRESSED], np.float32))}
SQUARE, ROW, WORDS = (128, 128), (1, 0), (40, 192)
GRID = (300, 176)

CASES: dict[str, Case] = {
    "bf16": Case(formats.BF16, (48, 40), "bf16", "none", ROW, _plain("BF16")),
    "f32": Case(formats.F32, (48, 40), "f32", "none", ROW, _plain("F32")),
    "fp8-block-f32": Case(
        formats.FP8_BLOCK, GRID, "e4m3", "f32", SQUARE, _fp8("weight_scale_inv", "F32")
    ),
    "fp8-block-bf16": Case(
        formats.FP8_BLOCK, GRID, "e4m3", "bf16", SQUARE, _fp8("weight_scale_inv", "BF16")
    ),
    "fp8-block-chunks": Case(
        formats.fp8_block(4), (4 * 136, 96), "e4m3", "f32", SQUARE,
        _fp8("weight_scale_inv", "F32"), chunks=4,
    ),
    "fp8-channel": Case(
        formats.FP8_CHANNEL, (40, 80), "e4m3", "bf16", ROW, _fp8("weight_scale", "BF16")
    ),
    "fp8-e8m0-128": Case(
        formats.FP8_E8M0_128, GRID, "e4m3", "e8m0", SQUARE, _fp8("scale", "F8_E8M0")
    ),
    "fp8-e8m0-32": Case(
        formats.FP8_E8M0_32, (80, 176), "e4m3", "e8m0", (32, 32), _fp8("scale", "F8_E8M0")
    ),
    "mxfp8": Case(
        formats.MXFP8, (40, 96), "e4m3", "e8m0", (1, 32), _fp8("scale", "F8_E8M0")
    ),
    "mxfp4-i8": Case(
        formats.MXFP4_I8, (40, 96), "e2m1", "e8m0", (1, 32),
        _fp4("weight", "I8", "scale", "F8_E8M0"),
    ),
    "mxfp4-u8": Case(
        formats.MXFP4_U8, (40, 96), "e2m1", "e8m0", (1, 32),
        _fp4("weight", "U8", "weight_scale", "U8"),
    ),
    "nvfp4-modelopt": Case(
        formats.NVFP4_MODELOPT, (40, 96), "e2m1", "e4m3", (1, 16),
        _fp4("weight", "U8", "weight_scale", "F8_E4M3", FACTOR), factor=MODELOPT,
    ),
    "nvfp4-compressed": Case(
        formats.NVFP4_COMPRESSED, (40, 96), "e2m1", "e4m3", (1, 16),
        _fp4("weight_packed", "U8", "weight_scale", "F8_E4M3", DIVISOR), divisor=COMPRESSED,
    ),
    "int4-g64": Case(formats.INT4_PACKED, WORDS, "int4", "bf16", (1, 64), _packed(4)),
    "int8-g64": Case(formats.INT8_PACKED, WORDS, "int8", "bf16", (1, 64), _packed(8)),
    "int4-g128": Case(formats.INT4_GPTQ, (40, 384), "int4", "f16", (1, 128), _gptq(4)),
    "int8-g128": Case(formats.INT8_GPTQ, (40, 384), "int8", "f16", (1, 128), _gptq(8)),
}  # fmt: skip


def write_checkpoint(directory: Path, tensors: Tensors) -> Path:
    """A checkpoint of nothing but `tensors`, by their whole names."""
    table, at = {}, 0
    for name, (dtype, shape, blob) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(blob)]}
        at += len(blob)
    text = json.dumps(table).encode()
    blobs = b"".join(blob for _, _, blob in tensors.values())
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + blobs)
    (directory / "config.json").write_text("{}")
    return directory
