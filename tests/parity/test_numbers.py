"""A model that computes no numbers is named: at start where one token shows it, else in service."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dgpp.engine.model_engine import ModelEngine
from dgpp.errors import CheckpointError, NumericError
from dgpp.sample.tables import allocate_tables
from dgpp.sched.limits import EngineLimits
from dgpp.sched.plan import Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids

FIXTURE = Path(__file__).parents[1] / "fixtures" / "glm-4.7-bf16"
LIMITS = EngineLimits(
    slots=1,
    vocab_size=512,
    position_ceiling=64,
    block_tokens=64,
    blocks=1,
    chunk_align=64,
    chunk_limit=64,
    candidates=8,
)


def damaged(folder, tensor, values):
    """A copy of the fixture in which the first bf16 values of `tensor` are NaN."""
    for file in FIXTURE.iterdir():
        shutil.copy(file, folder / file.name)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    begin, _ = json.loads(data[8 : 8 + size])[tensor]["data_offsets"]
    at = 8 + size + begin
    data[at : at + 2 * values] = b"\xc0\x7f" * values
    path.chmod(0o644)
    path.write_bytes(data)
    return folder


def read(engine, ids):
    request = Submit("r-0", pack_ids(ids), 4)
    plan = Plan(0, opens=(Open(0, request, (0,)),), prefills=(PrefillChunk(0, 0, len(ids), True),))
    engine.launch(plan, allocate_tables(1, 512))
    return engine.collect(0)


def test_nans_that_every_token_meets_are_found_at_start(tmp_path):
    engine = ModelEngine(damaged(tmp_path, "model.norm.weight", 1), LIMITS, 1)
    with pytest.raises(CheckpointError, match="no numbers"):
        engine.warm_up()


def test_nans_that_one_token_meets_fail_the_engine_when_it_comes(tmp_path):
    # The row of token 7 in the embedding: 64 values, seven rows on.
    folder = damaged(tmp_path, "model.embed_tokens.weight", 0)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    begin, _ = json.loads(data[8 : 8 + size])["model.embed_tokens.weight"]["data_offsets"]
    at = 8 + size + begin + 7 * 64 * 2
    data[at : at + 128] = b"\xc0\x7f" * 64
    path.write_bytes(data)
    engine = ModelEngine(folder, LIMITS, 1)
    engine.warm_up()
    assert np.isfinite(read(engine, [1, 2, 3]).lse).all()
    with pytest.raises(NumericError, match="no numbers") as found:
        read(engine, [1, 7, 3])
    assert found.value.exit_status == 2
