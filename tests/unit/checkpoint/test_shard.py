"""Safetensors headers that lie are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgpp.checkpoint.shard import Shard
from dgpp.errors import CheckpointError


def write(path: Path, header: object, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    values = np.arange(6, dtype="<f4")
    header = {"__metadata__": {"x": "y"}, "a": entry("F32", [2, 3], 0, 24)}
    header["b"] = entry("BF16", [1], 24, 26)
    header["c"] = entry("F32", [], 26, 30)
    data = values.tobytes() + b"\x80\x3f" + np.float32(7).tobytes()
    shard = Shard(write(tmp_path / "x.safetensors", header, data))
    np.testing.assert_array_equal(shard.read("a"), values.reshape(2, 3))
    assert shard.read("b").tolist() == [0x3F80]
    assert float(shard.read("c")) == 7.0
    shard.release()
    np.testing.assert_array_equal(shard.read("a"), values.reshape(2, 3))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry("F32", [2], 0, 4)}, "tensor a: F32 .2. needs 8 bytes, not 4"),
        ({"a": entry("F32", [9], 0, 36)}, "truncated: tensor a ends at byte 36"),
        ({"a": entry("F32", [1], 4, 0)}, "tensor a: offsets .4, 0. are not a range"),
        ({"a": entry("F32", [-1], 0, 4)}, "tensor a: negative extent"),
        ({"a": entry("F7", [1], 0, 4)}, "tensor a: unknown dtype 'F7'"),
        ({"a": {"dtype": "F32"}}, "tensor a: malformed"),
        ({"a": 3}, "tensor a: malformed"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, "b overlaps"),
        ([1], "not a JSON object"),
        (b"{nonsense", "header is not valid"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
    ],
)
def test_a_header_that_lies_is_named(tmp_path: Path, header: object, message: str) -> None:
    path = write(tmp_path / "x.safetensors", header, bytes(16))
    with pytest.raises(CheckpointError, match=message) as caught:
        Shard(path)
    assert str(path) in str(caught.value)


def test_short_and_oversized_headers(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for content, message in (
        (b"", "truncated: 0 bytes"),
        (b"abc", "truncated: 3 bytes"),
        ((1 << 40).to_bytes(8, "little"), "over the limit"),
        ((99).to_bytes(8, "little") + b"{}", "truncated: header needs 107 bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            Shard(path)
    with pytest.raises(CheckpointError, match="No such file"):
        Shard(tmp_path / "absent.safetensors")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 200), flip=st.integers(0, 199), bit=st.integers(0, 7))
def test_damage_is_refused_or_harmless(tmp_path: Path, cut: int, flip: int, bit: int) -> None:
    header = {"a": entry("F32", [4], 0, 16), "b": entry("U8", [3], 16, 19)}
    path = write(tmp_path / "x.safetensors", header, bytes(range(19)))
    content = bytearray(path.read_bytes()[:cut])
    if flip < len(content):
        content[flip] ^= 1 << bit
    path.write_bytes(content)
    try:
        shard = Shard(path)
    except CheckpointError:
        return
    for name in shard.entries:
        shard.read(name)
