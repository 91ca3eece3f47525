"""How checkpoints store a matrix: which tensors it takes, and the parts that they make.

What the parts mean, how they are cut for a rank and what they cost is said once, with the forms
(`kernels_numba.weights`). Here is only where each release puts codes and scales. N and K are a
matrix's rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.errors import CheckpointError
from kernels_numba.weights import Form, Part

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a matrix: what follows the matrix's name (if anything), its shape and its
    allowed dtypes."""

    suffix: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]

    def name_of(self, matrix: str) -> str:
        """The tensor's name."""
        return f"{matrix}.{self.suffix}" if self.suffix else matrix


@dataclass(frozen=True, slots=True)
class Format:
    """`tensors(rows, columns)` of a matrix; `parts(name, arrays)` of them, raising CheckpointError
    where a value contradicts the format; `ignored`: suffixes that have no use here."""

    name: str
    form: Form
    tensors: Callable[[int, int], tuple[Stored, ...]]
    parts: Callable[[str, Sequence[Array]], list[Part]]
    ignored: tuple[str, ...] = ()


def _blocks(extent: int, block: int) -> int:
    return -(-extent // block)


def _plain(form: Form, dtype: str, suffix: str = "weight") -> Format:
    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (Stored(suffix, (rows, columns), (dtype,)),)

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        return [Part(form, arrays[0])]

    return Format(dtype.lower(), form, tensors, parts)


def to_float32(bits: Array) -> npt.NDArray[np.float32]:
    """float32 from float32, or from bf16 or e8m0 held as unsigned integers."""
    if bits.dtype == np.float32:
        return bits
    if bits.dtype == np.uint16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    powers = np.append(np.ldexp(np.float32(1.0), np.arange(255) - 127), np.float32(np.nan))
    return powers.astype(np.float32)[bits]


def fp8_block(chunks: int = 1) -> Format:
    """e4m3 codes, `weight_scale_inv` per 128 × 128 values, which multiplies in spite of its name.

    A fused matrix of several `chunks` of equal rows has a grid of its own over each.
    """
    return _fp8_grid("FP8 block-128", "weight_scale_inv", ("F32", "BF16"), 128, chunks)


def _fp8_grid(
    name: str, suffix: str, dtypes: tuple[str, ...], block: int, chunks: int = 1
) -> Format:
    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        grid = (chunks * _blocks(rows // chunks, block), _blocks(columns, block))
        return (
            Stored("weight", (rows, columns), ("F8_E4M3",)),
            Stored(suffix, grid, dtypes),
        )

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        codes, grid = np.split(arrays[0], chunks), np.split(arrays[1], chunks)
        return [
            Part(Form.FP8_BLOCK, data, to_float32(scale), block=(block, block))
            for data, scale in zip(codes, grid, strict=True)
        ]

    return Format(name, Form.FP8_BLOCK, tensors, parts)


def _fp8_channel() -> Format:
    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (
            Stored("weight", (rows, columns), ("F8_E4M3",)),
            Stored("weight_scale", (rows, 1), ("BF16",)),
        )

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        return [Part(Form.FP8_CHANNEL, arrays[0], to_float32(arrays[1]))]

    return Format("FP8 per channel", Form.FP8_CHANNEL, tensors, parts)


def _fp8_tensor() -> Format:
    """e4m3 codes without scales of their own: whoever has the one for all puts it in."""

    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (Stored("weight", (rows, columns), ("F8_E4M3",)),)

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        one = np.broadcast_to(np.float32(1.0), (len(arrays[0]), 1))
        return [Part(Form.FP8_CHANNEL, arrays[0], one)]

    return Format("FP8, one scale", Form.FP8_CHANNEL, tensors, parts)


def _mxfp4(codes: str, scale: str, dtype: str) -> Format:
    """Codes of e2m1, two a byte; scales of e8m0 per 32 values."""

    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (
            Stored("weight", (rows, columns // 2), (codes,)),
            Stored(scale, (rows, columns // 32), (dtype,)),
        )

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        return [Part(Form.MXFP4, arrays[0].view(np.uint8), arrays[1])]

    return Format(f"MXFP4 ({codes})", Form.MXFP4, tensors, parts)


def _mxfp8() -> Format:
    """Codes of e4m3; scales of e8m0 per 32 values of a row."""

    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (
            Stored("weight", (rows, columns), ("F8_E4M3",)),
            Stored("scale", (rows, columns // 32), ("F8_E8M0",)),
        )

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        return [Part(Form.MXFP8, arrays[0], arrays[1])]

    return Format("MXFP8", Form.MXFP8, tensors, parts)


def _nvfp4_modelopt() -> Format:
    """The tensor's own factor multiplies."""

    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (
            Stored("weight", (rows, columns // 2), ("U8",)),
            Stored("weight_scale", (rows, columns // 16), ("F8_E4M3",)),
            Stored("weight_scale_2", (), ("F32",)),
        )

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        factor = float(arrays[2])
        if not (math.isfinite(factor) and factor >= 0):
            raise CheckpointError(f"tensor {name}.weight_scale_2 is {factor}, not a number from 0")
        return [Part(Form.NVFP4, arrays[0], arrays[1], factor)]

    return Format("NVFP4 (modelopt)", Form.NVFP4, tensors, parts, ("input_scale",))


def _nvfp4_compressed() -> Format:
    """The tensor's own factor divides; what is kept is its reciprocal in float32."""

    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (
            Stored("weight_packed", (rows, columns // 2), ("U8",)),
            Stored("weight_scale", (rows, columns // 16), ("F8_E4M3",)),
            Stored("weight_global_scale", (1,), ("F32",)),
        )

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        divisor = float(arrays[2][0])
        if not (math.isfinite(divisor) and divisor > 0):
            raise CheckpointError(f"tensor {name}.weight_global_scale is {divisor}, not above 0")
        return [Part(Form.NVFP4, arrays[0], arrays[1], float(np.float32(1.0 / divisor)))]

    return Format("NVFP4 (compressed-tensors)", Form.NVFP4, tensors, parts, ("input_global_scale",))


def _pack_quantized(bits: int) -> Format:
    """Codes along K in words of 32 bits, the first in the lowest bits: bytes in order."""
    form = Form.INT4_G64 if bits == 4 else Form.INT8_G64

    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (
            Stored("weight_packed", (rows, columns * bits // 32), ("I32",)),
            Stored("weight_scale", (rows, columns // 64), ("BF16",)),
            Stored("weight_shape", (2,), ("I64",)),
        )

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        part = Part(form, arrays[0].view(np.uint8), arrays[1])
        said = [int(extent) for extent in arrays[2]]
        if said != [part.rows, part.columns]:
            found = [part.rows, part.columns]
            raise CheckpointError(f"tensor {name}.weight_shape says {said}, the codes {found}")
        return [part]

    return Format(f"int{bits} g64 (pack-quantized)", form, tensors, parts)


def _gptq(bits: int) -> Format:
    """Codes along K in words of 32 bits, as columns: bytes are gathered into rows once."""
    form = Form.INT4_G128 if bits == 4 else Form.INT8_G128
    zero = 0x77777777 if bits == 4 else 0x7F7F7F7F

    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (
            Stored("qweight", (columns * bits // 32, rows), ("I32",)),
            Stored("scales", (columns // 128, rows), ("F16",)),
            Stored("qzeros", (columns // 128, rows * bits // 32), ("I32",)),
        )

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        words, scales, zeros = arrays
        if (zeros.view(np.uint32) != zero).any():
            raise CheckpointError(f"tensor {name}.qzeros is not {zero:#x} throughout")
        high, rows = words.shape
        octets = words.view(np.uint8).reshape(high, rows, 4).transpose(1, 0, 2)
        return [Part(form, octets.reshape(rows, 4 * high), scales.T)]

    return Format(f"int{bits} g128 (GPTQ)", form, tensors, parts)


def bf16_stack(count: int) -> Format:
    """bf16 [count, N, K] under the stack's own name: `count` matrices of equal rows."""

    def tensors(rows: int, columns: int) -> tuple[Stored, ...]:
        return (Stored("", (count, rows // count, columns), ("BF16",)),)

    def parts(name: str, arrays: Sequence[Array]) -> list[Part]:
        return [Part(Form.BF16, arrays[0].reshape(-1, arrays[0].shape[-1]))]

    return Format("bf16", Form.BF16, tensors, parts)


BF16 = _plain(Form.BF16, "BF16")
BF16_BARE = _plain(Form.BF16, "BF16", "")
"""bf16 under the matrix's own name."""
F32 = _plain(Form.F32, "F32")
F32_BARE = _plain(Form.F32, "F32", "")
"""float32 under the matrix's own name."""
FP8_BLOCK = fp8_block()
FP8_CHANNEL = _fp8_channel()
FP8_TENSOR = _fp8_tensor()
FP8_E8M0_128 = _fp8_grid("FP8, E8M0 per 128 × 128", "scale", ("F8_E8M0",), 128)
FP8_E8M0_32 = _fp8_grid("FP8, E8M0 per 32 × 32", "scale", ("F8_E8M0",), 32)
MXFP8 = _mxfp8()
MXFP4_I8 = _mxfp4("I8", "scale", "F8_E8M0")
MXFP4_U8 = _mxfp4("U8", "weight_scale", "U8")
NVFP4_MODELOPT = _nvfp4_modelopt()
NVFP4_COMPRESSED = _nvfp4_compressed()
INT4_PACKED = _pack_quantized(4)
INT8_PACKED = _pack_quantized(8)
INT4_GPTQ = _gptq(4)
INT8_GPTQ = _gptq(8)
