"""Fixture checkpoints, and copies of them with one thing changed."""

from __future__ import annotations

import json
from pathlib import Path

from dgpp.checkpoint.checkpoint import Checkpoint

FIXTURES = Path(__file__).parents[2] / "fixtures"
FACTS = Path(__file__).parents[3] / "deploy" / "facts"


def config_of(variant: str) -> dict[str, object]:
    return json.loads((FIXTURES / f"glm-4.7-{variant}" / "config.json").read_text())


def release(name: str) -> dict[str, object]:
    """The config.json of a published model, as far as its arithmetic depends on it."""
    return json.loads((FACTS / f"{name}.json").read_text())


def rewrite(source: Path, target: Path, change) -> None:
    """Copy a safetensors file after `change(tensors)` on {name: [dtype, shape, bytes]}."""
    content = source.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length :]
    tensors = {
        name: [entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]]
        for name, entry in header.items()
    }
    change(tensors)
    _write(target, tensors)


def _write(target: Path, tensors) -> None:
    """{name: [dtype, shape, bytes]} as a safetensors file."""
    table, blobs, at = {}, [], 0
    for name, (dtype, shape, blob) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(table).encode()
    target.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_checkpoint(directory: Path, arrays, config: object = None) -> Checkpoint:
    """A checkpoint of {name: (dtype as the file names it, array)}."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config or {}))
    tensors = {
        name: [dtype, list(array.shape), array.tobytes()] for name, (dtype, array) in arrays.items()
    }
    _write(directory / "model.safetensors", tensors)
    return Checkpoint(directory)
