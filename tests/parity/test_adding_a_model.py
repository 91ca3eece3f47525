"""docs/adding_a_model.md is true: the family that it writes is built from its text, and serves."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

import dgpp.models
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.cli.check import app
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.inspection import inspect_checkpoint
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.registry import FAMILIES, Family, later

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_model.md"
PACKAGE = "dgpp/models/toy_lm/"
CONFIG = {
    "architectures": ["ToyForCausalLM"],
    "model_type": "toy_lm",
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
PROMPT, ANSWER = 20, 4
# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)


class Toy(NamedTuple):
    """The family of the page, a checkpoint of it, and the values of the page's oracle."""

    family: Family
    directory: Path
    model: ModuleType


def code_of_the_page() -> dict[str, str]:
    """The Python of the page by the file that it is said to be."""
    blocks = re.findall(r"^`([\w/.]+\.py)`:\n\n```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(dict(blocks)) == len(blocks)
    return dict(blocks)


def write_weights(directory: Path) -> dict[str, np.ndarray]:
    """A checkpoint of noise in bf16; the values as they are written."""
    heads, kv_heads, dim = 4, 2, 16
    hidden, inner, vocab = 32, 64, 128
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (heads * dim, hidden),
            f"{at}.self_attn.k_proj.weight": (kv_heads * dim, hidden),
            f"{at}.self_attn.v_proj.weight": (kv_heads * dim, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, heads * dim),
            f"{at}.mlp.gate_proj.weight": (inner, hidden),
            f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
        }
    shapes["model.norm.weight"] = (hidden,)
    shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = (dim // 2,)
    rng = np.random.default_rng(11)
    table, blobs, values, end = {}, [], {}, 0
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape) * 0.1 + (1.0 if name.endswith("norm.weight") else 0.0)
        bits = (noise.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
        values[name] = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + bits.nbytes]}
        blobs.append(bits.tobytes())
        end += bits.nbytes
    text = json.dumps(table).encode()
    content = len(text).to_bytes(8, "little") + text + b"".join(blobs)
    (directory / "model.safetensors").write_bytes(content)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return values


def write_expected(directory: Path, oracle: ModuleType, weights: dict[str, np.ndarray]) -> None:
    """What the page's oracle says of a prompt and of the answer that it leads to."""
    ids = np.random.default_rng(12).integers(0, 128, PROMPT).tolist()
    whole = list(ids)
    for _ in range(ANSWER):
        whole.append(int(oracle.forward(CONFIG, weights, whole)[2][-1].argmax()))
    hidden, final, logits = oracle.forward(CONFIG, weights, whole[:-1])
    answered = logits[PROMPT - 1 :]
    best = np.sort(answered, axis=1)
    np.savez(
        directory / "expected.npz",
        ids=np.array(ids, np.int32),
        logits=logits[:PROMPT].astype(np.float32),
        hidden=hidden[:, :PROMPT].astype(np.float16),
        final_norm=final[:PROMPT].astype(np.float32),
        greedy=np.array(whole[PROMPT:], np.int32),
        greedy_margin=(best[:, -1] - best[:, -2]).astype(np.float32),
        greedy_logits=answered.astype(np.float32),
    )


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    """The page followed to the end of its step 4."""
    root = tmp_path_factory.mktemp("page")
    (root / "toy_lm").mkdir()
    code = code_of_the_page()
    for path, text in code.items():
        (root / path.replace(PACKAGE, "toy_lm/")).write_text(text)
    (root / "toy_lm" / "__init__.py").write_text("")
    dgpp.models.__path__.append(str(root))
    config = importlib.import_module("dgpp.models.toy_lm.config")
    model = importlib.import_module("dgpp.models.toy_lm.model")
    spec = importlib.util.spec_from_file_location("toy_lm_oracle", root / "oracle.py")
    assert spec is not None
    assert spec.loader is not None
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    line = (
        '"toy_lm": Family("toy-lm", toy_config.parse, later("dgpp.models.toy_lm.model:ToyModel")),'
    )
    assert f"    {line}\n" in PAGE.read_text()
    FAMILIES["toy_lm"] = Family("toy-lm", config.parse, later("dgpp.models.toy_lm.model:ToyModel"))
    directory = root / "checkpoint"
    directory.mkdir()
    write_expected(directory, oracle, write_weights(directory))
    yield Toy(FAMILIES["toy_lm"], directory, model)
    del FAMILIES["toy_lm"]
    dgpp.models.__path__.remove(str(root))
    for name in [name for name in sys.modules if name.startswith("dgpp.models.toy_lm")]:
        del sys.modules[name]


def test_the_page_writes_these_files() -> None:
    assert set(code_of_the_page()) == {f"{PACKAGE}config.py", f"{PACKAGE}model.py", "oracle.py"}


@pytest.mark.parametrize("extra", [["--per-layer"], ["--world", "2"]])
def test_the_family_computes_what_the_oracle_does(toy: Toy, extra: list[str]) -> None:
    expected = ["--expected", str(toy.directory / "expected.npz"), "--tolerance", "0.003"]
    arguments = ["forward", "--checkpoint", str(toy.directory), *expected, "--threads", "1"]
    result = CliRunner().invoke(app, [*arguments, *extra, "--json"])
    report = json.loads(result.stdout)
    assert report["failures"] == []
    assert (report["family"], report["greedy_equal"], len(report["layers"])) == ("toy-lm", 4, 3)
    assert report["not_compared"] == {}
    assert report["logits_max_abs"] < 1e-4


def test_the_family_is_inspected_and_planned(toy: Toy) -> None:
    found = inspect_checkpoint(Checkpoint(toy.directory))
    assert (found.family, found.tensors) == ("toy-lm", 22)
    assert [share.name for share in found.formats] == ["bf16"]
    assert [share.name for share in found.ignored] == [
        "model.layers.N.self_attn.rotary_emb.inv_freq"
    ]
    plan = plan_memory(CONFIG, MemorySettings(slots=1, kv_capacity=64))
    # Two layers of two heads of sixteen keys and as many values in float32.
    assert plan.token_bytes == 2 * 2 * 2 * 16 * 4
    with pytest.raises(ConfigError, match=r"3 does not divide config.json's num_attention_heads"):
        plan_memory(CONFIG, MemorySettings(), 3)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rope_scaling", {"factor": 2}, "rope_scaling is not known for toy_lm"),
        ("hidden_act", "gelu", "hidden_act is 'gelu', not 'silu'"),
        ("num_key_value_heads", 3, "num_attention_heads is not a multiple"),
        ("quantization_config", {"quant_method": "awq"}, "quant_method is 'awq', not 'fp8'"),
    ],
)
def test_what_the_family_does_not_know_is_named(toy: Toy, field, value, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        toy.family.parse({**CONFIG, field: value})
