"""Each format written and decoded from its description alone: bytes in, float values out.

`make` gives the tensors of one matrix as a release would store them, by suffix, and the values that
they stand for, computed without anything of the loader or the kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dgpp.checkpoint import formats
from dgpp.checkpoint.formats import Format

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def e4m3(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3 = np.array([e4m3(code) for code in range(256)], np.float32)


def bf16_codes(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")


def widened(codes: np.ndarray) -> np.ndarray:
    return (codes.astype("<u4") << 16).view("<f4")


def tensor(dtype: str, values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return dtype, values.shape, values.tobytes()


def per_block(scale: np.ndarray, rows: int, columns: int, block: int) -> np.ndarray:
    return np.array(
        [[scale[n // block, k // block] for k in range(columns)] for n in range(rows)], np.float32
    )


def pack_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """int32 words along the last axis, the first code in the lowest bits."""
    each = 32 // bits
    grouped = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, each)
    shifts = np.arange(each, dtype=np.uint32) * bits
    return (grouped << shifts).sum(axis=-1, dtype=np.uint32).view(np.int32)


def nibbles(codes: np.ndarray) -> np.ndarray:
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def random_e4m3(rng, shape) -> np.ndarray:
    codes = rng.integers(0, 127, shape).astype(np.uint8)
    return codes | rng.integers(0, 2, shape).astype(np.uint8) << 7


def _plain(dtype: str):
    def make(rng, rows, columns):
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        if dtype == "F32":
            return {"weight": tensor(dtype, values)}, values
        codes = bf16_codes(values)
        return {"weight": tensor(dtype, codes)}, widened(codes)

    return make


def _fp8_block(dtype: str, chunks: int = 1):
    def make(rng, rows, columns):
        codes = random_e4m3(rng, (rows, columns))
        each = rows // chunks
        shape = (chunks * -(-each // 128), -(-columns // 128))
        scale = (2.0 ** rng.uniform(-12, -8, shape)).astype(np.float32)
        stored = scale if dtype == "F32" else bf16_codes(scale)
        scale = scale if dtype == "F32" else widened(stored)
        spread = [per_block(part, each, columns, 128) for part in np.split(scale, chunks)]
        tensors = {
            "weight": tensor("F8_E4M3", codes),
            "weight_scale_inv": tensor(dtype, stored),
        }
        return tensors, E4M3[codes] * np.concatenate(spread)

    return make


def _fp8_channel(rng, rows, columns):
    codes = random_e4m3(rng, (rows, columns))
    scale = bf16_codes(2.0 ** rng.uniform(-12, -8, (rows, 1)))
    tensors = {"weight": tensor("F8_E4M3", codes), "weight_scale": tensor("BF16", scale)}
    return tensors, E4M3[codes] * widened(scale)


def _fp8_e8m0(block: int):
    def make(rng, rows, columns):
        codes = random_e4m3(rng, (rows, columns))
        scale = rng.integers(110, 125, (-(-rows // block), -(-columns // block))).astype(np.uint8)
        powers = (2.0 ** (scale.astype(float) - 127)).astype(np.float32)
        tensors = {"weight": tensor("F8_E4M3", codes), "scale": tensor("F8_E8M0", scale)}
        return tensors, E4M3[codes] * per_block(powers, rows, columns, block)

    return make


def _mxfp4(dtype: str, suffix: str, scale_dtype: str):
    def make(rng, rows, columns):
        codes = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
        scale = rng.integers(0, 255, (rows, columns // 32)).astype(np.uint8)
        powers = (2.0 ** (scale.astype(float) - 127)).astype(np.float32)
        tensors = {
            "weight": tensor(dtype, nibbles(codes)),
            suffix: tensor(scale_dtype, scale),
        }
        return tensors, np.array(E2M1, np.float32)[codes] * powers.repeat(32, axis=1)

    return make


def _nvfp4(compressed: bool):
    def make(rng, rows, columns):
        codes = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
        scale = rng.integers(0, 127, (rows, columns // 16)).astype(np.uint8)
        magnitudes = np.array(E2M1, np.float32)[codes]
        scales = E4M3[scale].repeat(16, axis=1)
        if compressed:
            factor = np.array([1234.5], np.float32)
            tensors = {
                "weight_packed": tensor("U8", nibbles(codes)),
                "weight_scale": tensor("F8_E4M3", scale),
                "weight_global_scale": tensor("F32", factor),
            }
            return tensors, magnitudes * (scales / factor)
        factor = np.array(0.00081, np.float32)
        tensors = {
            "weight": tensor("U8", nibbles(codes)),
            "weight_scale": tensor("F8_E4M3", scale),
            "weight_scale_2": tensor("F32", factor),
        }
        return tensors, magnitudes * (scales * factor)

    return make


def _packed(bits: int):
    def make(rng, rows, columns):
        codes = rng.integers(0, 1 << bits, (rows, columns))
        scale = bf16_codes(2.0 ** rng.uniform(-10, -6, (rows, columns // 64)))
        tensors = {
            "weight_packed": tensor("I32", pack_words(codes, bits)),
            "weight_scale": tensor("BF16", scale),
            "weight_shape": tensor("I64", np.array([rows, columns], np.int64)),
        }
        centred = (codes - (1 << bits - 1)).astype(np.float32)
        return tensors, centred * widened(scale).repeat(64, axis=1)

    return make


def _gptq(bits: int):
    def make(rng, rows, columns):
        codes = rng.integers(0, 1 << bits, (columns, rows))
        scales = (2.0 ** rng.uniform(-10, -6, (columns // 128, rows))).astype(np.float16)
        zero = 7 if bits == 4 else 127
        zeros = np.full((columns // 128, rows), zero)
        tensors = {
            "qweight": tensor("I32", np.ascontiguousarray(pack_words(codes.T, bits).T)),
            "scales": tensor("F16", scales),
            "qzeros": tensor("I32", pack_words(zeros, bits)),
        }
        values = (codes - (zero + 1)).astype(np.float32) * scales.astype(np.float32).repeat(128, 0)
        return tensors, np.ascontiguousarray(values.T)

    return make


CASES: dict[str, tuple[Format, tuple[int, int], Callable[..., tuple[Tensors, np.ndarray]]]] = {
    "bf16": (formats.BF16, (48, 40), _plain("BF16")),
    "f32": (formats.F32, (48, 40), _plain("F32")),
    "fp8-block-f32": (formats.FP8_BLOCK, (200, 176), _fp8_block("F32")),
    "fp8-block-bf16": (formats.FP8_BLOCK, (200, 176), _fp8_block("BF16")),
    "fp8-block-chunks": (formats.fp8_block(4), (4 * 136, 96), _fp8_block("F32", 4)),
    "fp8-channel": (formats.FP8_CHANNEL, (40, 80), _fp8_channel),
    "fp8-e8m0-128": (formats.FP8_E8M0_128, (200, 176), _fp8_e8m0(128)),
    "fp8-e8m0-32": (formats.FP8_E8M0_32, (80, 176), _fp8_e8m0(32)),
    "mxfp4-i8": (formats.MXFP4_I8, (40, 96), _mxfp4("I8", "scale", "F8_E8M0")),
    "mxfp4-u8": (formats.MXFP4_U8, (40, 96), _mxfp4("U8", "weight_scale", "U8")),
    "nvfp4-modelopt": (formats.NVFP4_MODELOPT, (40, 96), _nvfp4(compressed=False)),
    "nvfp4-compressed": (formats.NVFP4_COMPRESSED, (40, 96), _nvfp4(compressed=True)),
    "int4-g64": (formats.INT4_PACKED, (40, 192), _packed(4)),
    "int8-g64": (formats.INT8_PACKED, (40, 192), _packed(8)),
    "int4-g128": (formats.INT4_GPTQ, (40, 384), _gptq(4)),
    "int8-g128": (formats.INT8_GPTQ, (40, 384), _gptq(8)),
}


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
