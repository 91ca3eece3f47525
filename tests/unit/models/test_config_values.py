"""No value of a config.json, whatever it is, comes further than the error that names its field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_fixtures import FACTS, FIXTURES, release

from dgpp.bench.cut import cut_layers
from dgpp.bench.setup import cut_model
from dgpp.config.resolve import resolve
from dgpp.config.site import parse_site
from dgpp.errors import CheckpointError, DgppError
from dgpp.models.config_fields import SILENT
from dgpp.models.dflash2.config import is_drafter
from dgpp.models.dflash2.config import parse as parse_drafter
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.registry import FAMILIES, family_of

MODELS = sorted(
    path.parent.name
    for path in FIXTURES.glob("*/config.json")
    if "num_hidden_layers" in path.read_text()
)
RELEASES = sorted(path.stem for path in FACTS.glob("*.json") if path.stem != "index")
ABSURD = (0, -1, 10**13, 1 << 62, 10**31)
UNUSED = {
    "ep_size", "pretraining_tp", "index_topk_freq", "index_skip_topk_offset", "mrope_section",
    "image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id",
    "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "kv_cache_scheme", "input_activations",
}  # fmt: skip
"""Fields that no computation takes up, or says nothing new; those of images."""
SAID_TWICE = {
    "glm_moe_dsa": {"head_dim", "num_key_value_heads"},
    "glm5_next": {"head_dim", "num_key_value_heads"},
    "deepseek_v4": {"num_nextn_predict_layers"},
}
NONE = {
    "num_nextn_predict_layers", "mtp_num_hidden_layers", "first_k_dense_replace",
    "num_hash_layers", "max_window_layers", "qk_rope_head_dim", "eos_token_id", "seed",
    "engram_pad_token_id", "dspark_noise_token_id", "mask_token_id",
}  # fmt: skip
"""Counts of which a model may have none, ids that may be the first."""
LARGE = {"rope_theta", "compress_rope_theta", "swa_rope_theta"}
"""Bases that are no sizes; they end where float32 does."""


def config_of(model: str) -> dict[str, Any]:
    return json.loads((FIXTURES / model / "config.json").read_text())


def integers(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a config.json has an integer, of lists where the first is."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from integers(value, (*at, key))
    elif isinstance(node, list):
        for value in node[:1]:
            yield from integers(value, (*at, 0))
    elif isinstance(node, int) and not isinstance(node, bool):
        yield at


def changed(config: dict[str, Any], at: tuple[Any, ...], value: object) -> dict[str, Any]:
    copy = msgspec.json.decode(msgspec.json.encode(config))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return copy


def read(config: dict[str, Any]) -> None:
    if is_drafter(config):
        parse_drafter(config)
    else:
        family_of(config).settle(config)


def plan(config: dict[str, Any]) -> None:
    read(config)
    if not is_drafter(config):
        plan_memory(config, MemorySettings(drafts=True))


def refusal(config: dict[str, Any], use: Callable[[dict[str, Any]], None] = read) -> str:
    """What is said of the configuration by `use`, "" where nothing is."""
    try:
        use(config)
    except DgppError as error:
        return str(error)
    return ""


def taken(model_type: str, at: tuple[Any, ...], value: int) -> bool:
    """Whether `value` may stand there."""
    names = set(at)
    if names & (UNUSED | SAID_TWICE.get(model_type, set())) or names & SILENT - {"eos_token_id"}:
        return True
    if "eos_token_id" in names and model_type != "qwen4_exp":
        return True
    if names & LARGE:
        return 1 < value <= 10**30
    return value == 0 and bool(names & NONE or isinstance(at[-1], int))


PLACES = [
    pytest.param(model, at, id=f"{model}-{'.'.join(map(str, at))}")
    for model in MODELS
    for at in integers(config_of(model))
    if "vision_config" not in at
]


@pytest.mark.parametrize(("model", "at"), PLACES)
def test_an_absurd_integer_is_refused_by_name(model: str, at: tuple[Any, ...]) -> None:
    config = config_of(model)
    for value in ABSURD:
        said = refusal(changed(config, at, value), plan)
        if said:
            assert re.match(r"config\.json: [a-z_]+[\w.]* ", said), said
            assert "another kind" not in said
        else:
            assert taken(str(config.get("model_type")), at, value), value


@settings(max_examples=300, deadline=None)
@given(
    place=st.sampled_from([parameter.values for parameter in PLACES]),
    value=st.one_of(st.integers(-5, 200), st.integers(), st.integers(1 << 14, 1 << 26)),
)
@example(place=("glm-4.7-bf16", ("moe_intermediate_size",)), value=0)
@example(place=("glm-4.7-bf16", ("n_shared_experts",)), value=10**12)
@example(place=("glm-4.7-bf16", ("num_nextn_predict_layers",)), value=-1)
@example(place=("glm-4.7-bf16", ("first_k_dense_replace",)), value=-1)
def test_any_integer_is_planned_with_or_refused_by_name(place: Any, value: int) -> None:
    model, at = place
    assert "another kind" not in refusal(changed(config_of(model), at, value), plan)


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("moe_intermediate_size", 1, 1 << 24),
        ("n_routed_experts", 1, 1 << 14),
        ("n_shared_experts", 1, 1 << 14),
        # The fixture has five layers.
        ("first_k_dense_replace", 0, 5),
        ("num_nextn_predict_layers", 0, 16),
    ],
)
def test_the_range_is_said(field: str, low: int, high: int) -> None:
    parse = family_of(config_of("glm-4.7-bf16")).settle
    for value in (low, high):
        if (field, value) == ("n_routed_experts", 1):
            # A token has two of them.
            continue
        assert getattr(parse({**config_of("glm-4.7-bf16"), field: value}), field) == value
    for value in (low - 1, high + 1, 10**12):
        with pytest.raises(CheckpointError) as caught:
            parse({**config_of("glm-4.7-bf16"), field: value})
        assert str(caught.value) == f"config.json: {field} is {value}, not within {low}..{high}"


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a config.json has a value, of lists the first."""
    if at:
        yield at
    if isinstance(node, dict):
        for key, value in node.items():
            yield from places(value, (*at, key))
    elif isinstance(node, list):
        for value in node[:1]:
            yield from places(value, (*at, 0))


FLOATS = (math.nan, math.inf, -math.inf, 1e300, 1e39, -1e300, -1.0, 0.0, 1e-300)
"""What float32 lacks, or what stands for nothing that is scaled, bounded, turned or divided."""
SAID_OF = {
    "swiglu_limit": (0.0, 1e-300),
    "gate_lower_bound": (-1.0,),
}
"""No limit, and a bound that is below zero."""


def float_fields(kind: type, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Fields of a family's configuration that are floats, also inside its objects."""
    for name, hint in get_type_hints(kind).items():
        for said in (hint, *get_args(hint)):
            if said is float:
                yield (*inside, name)
            elif isinstance(said, type) and issubclass(said, msgspec.Struct):
                yield from float_fields(said, (*inside, name))


def float_places(config: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Where floats stand in a config.json, or would."""
    parsed = parse_drafter(config) if is_drafter(config) else family_of(config).settle(config)
    for path in float_fields(type(parsed)):
        found = [at for at in places(config) if at[-len(path) :] == path]
        outer = ("text_config",) if "text_config" in config else ()
        yield from found or [(*outer, *path)]


FLOAT_PLACES = [
    pytest.param(model, at, id=f"{model}-{'.'.join(map(str, at))}")
    for model in MODELS
    for at in float_places(config_of(model))
    if "vision_config" not in at
]


@pytest.mark.parametrize(("model", "at"), FLOAT_PLACES)
def test_a_float_that_makes_no_sense_is_refused_by_name(model: str, at: tuple[Any, ...]) -> None:
    for value in FLOATS:
        said = refusal(changed(config_of(model), at, value))
        if value in SAID_OF.get(at[-1], ()):
            assert said == ""
        else:
            assert re.match(rf"config\.json: ([a-z_]+\.)?{at[-1]} (is|turns) ", said), (value, said)


def test_every_float_of_every_family_is_tried() -> None:
    tried = {(config_of(model).get("model_type"), at[-1]) for model, at in
             (parameter.values for parameter in FLOAT_PLACES)}  # fmt: skip
    assert {kind for kind, _ in tried} >= set(FAMILIES)
    for field in ("rms_norm_eps", "routed_scaling_factor", "hc_eps", "gate_lower_bound", "factor",
                  "beta_fast", "attention_value_scale", "swa_rope_theta"):  # fmt: skip
        assert any(field == name for _, name in tried), field


@pytest.mark.parametrize(
    ("field", "good", "bad", "said"),
    [
        ("routed_scaling_factor", (1e-6, 1e6), (9e-7, 1.1e6, 1e300), "within 1e-06..1000000.0"),
        ("rms_norm_eps", (1e-30, 0.999), (9e-31, 1.0), "at least 1e-30 and below 1"),
        ("rope_theta", (1.5, 1e30), (1.0, 1.1e30), "above 1 and at most 1e+30"),
    ],
)
def test_the_range_of_a_float_is_said(
    field: str, good: tuple[float, ...], bad: tuple[float, ...], said: str
) -> None:
    parse = family_of(config_of("glm-4.7-bf16")).settle
    for value in good:
        assert getattr(parse({**config_of("glm-4.7-bf16"), field: value}), field) == value
    for value in bad:
        with pytest.raises(CheckpointError) as caught:
            parse({**config_of("glm-4.7-bf16"), field: value})
        assert str(caught.value) == f"config.json: {field} is {value}, not {said}"


KINDS = ("x", "", 5, True, -1.5, 1e308, None, [], ["x"], [[]], [None], {}, {"x": 1}, {"x": "y"})


def of_another_kind(config: dict[str, Any], within: str = "") -> Iterator[str]:
    for at in places(config):
        if "vision_config" in at or within not in ("", at[0]):
            continue
        for value in KINDS:
            if (said := refusal(changed(config, at, value))) and at[0] != "architectures":
                yield f"{at} {value!r}: {said}"


@pytest.mark.parametrize("model", MODELS)
def test_a_value_of_another_kind_is_refused_by_its_field(model: str) -> None:
    for said in of_another_kind(config_of(model)):
        assert re.search(r": config\.json: .*[a-z_]+", said), said
        assert "another kind" not in said


@pytest.mark.parametrize("name", RELEASES)
def test_a_quantisation_of_another_kind_is_refused_by_its_field(name: str) -> None:
    for said in of_another_kind(release(name), "quantization_config"):
        assert re.search(r": config\.json: quantization_config", said), said
        assert "another kind" not in said


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("value", ["x", 5, [1]])
def test_a_quantisation_that_is_no_object_is_said_to_be_none(name: str, value: object) -> None:
    config = release(name)
    if "quantization_config" in config:
        said = refusal({**config, "quantization_config": value})
        assert said == f"config.json: quantization_config is {value!r}, not an object"


@pytest.mark.parametrize("layers", [4, "x", None])
def test_a_cut_model_is_refused_as_a_whole_one(tmp_path: Path, layers: object) -> None:
    config = {**release("deepseek-v4.1-flash-mxfp4-fp8")}
    config["text_config"] = {**config["text_config"], "engram_layer_ids": layers}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    document = {"model": str(path), "world_size": 1, "engine": {"load": "dummy"}}
    settings = resolve(document, "f", site=parse_site({}, ""))
    with pytest.raises(CheckpointError, match="engram_layer_ids"), cut_model(settings, 3):
        pass


@pytest.mark.parametrize("name", RELEASES)
def test_releases_are_within_range(name: str) -> None:
    plan(release(name))


@pytest.mark.parametrize("name", ["glm-4.7", "glm-4.7-nvfp4", "glm-5.3-int4-int8"])
def test_a_model_cut_within_its_dense_layers_is_dense(name: str) -> None:
    config = cut_layers(release(name), 1)
    assert family_of(config).settle(config).first_k_dense_replace == 1
