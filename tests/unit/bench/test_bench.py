"""What a measurement runs and counts: sizes by hand, the table from the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actors import launch
from actors.planning import Elsewhere, plan_elsewhere
from dgpp.bench.cut import cut_layers
from dgpp.bench.table import aligned, share
from dgpp.cli.bench import app
from dgpp.cli.numbers import number, numbers, whole_numbers
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings
from dgpp.engine import backends
from dgpp.engine.backends import placed
from dgpp.errors import CheckpointError, ConfigError, DgppError, MemoryPlanError
from dgpp.models.deepseek_v41.config import parse
from dgpp.models.deepseek_v41.engram_tables import primes
from dgpp.models.dflash2.config import is_drafter
from dgpp.models.plan import MemoryPlan, MemorySettings, plan_memory, require_fit
from dgpp.models.registry import family_of
from kernels_numba.gpu import probe
from kernels_numba.gpu.errors import CudaError

ROOT = Path(__file__).parents[3]
FACTS = ROOT / "deploy" / "facts"
TINY = ROOT / "tests" / "fixtures" / "glm-4.7-nvfp4" / "config.json"
GLM = json.loads((FACTS / "glm-4.7.json").read_text())


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_layers_are_cut_with_every_list_that_has_one_entry_each() -> None:
    config = {"num_hidden_layers": 4, "layer_types": list("abcd"), "eos_token_id": [1, 2]}
    cut = cut_layers(config, 2)
    assert cut == {"num_hidden_layers": 2, "layer_types": ["a", "b"], "eos_token_id": [1, 2]}
    assert cut_layers({"text_config": config, "x": 1}, 3)["text_config"]["layer_types"] == [*"abc"]
    assert config["num_hidden_layers"] == 4
    ratios = {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128, 0, 0], "num_hash_layers": 3}
    assert cut_layers(ratios, 2) == {
        "num_hidden_layers": 2,
        "compress_ratios": [0, 4],
        "num_hash_layers": 2,
    }
    for layers in (0, 5):
        with pytest.raises(ConfigError, match=f"--layers: {layers}, the model has 4"):
            cut_layers(config, layers)
    with pytest.raises(ConfigError, match="the model has None"):
        cut_layers({}, 1)


@pytest.mark.parametrize(
    ("layers", "engram", "decoder"), [(3, (1,), 2), (16, (1,), 14), (40, (1, 14), 20)]
)
def test_layers_that_are_named_by_number_are_cut(layers: int, engram, decoder: int) -> None:
    facts = json.loads((FACTS / "deepseek-v4.1-flash-mxfp4-fp8.json").read_text())
    config = parse(cut_layers(facts, layers))
    assert (config.num_hidden_layers, len(config.compress_ratios)) == (layers, layers)
    assert (config.engram_layer_ids, config.decoder) == (engram, decoder)
    assert primes(config)


CUT = {
    path.stem: json.loads(path.read_text())
    for path in sorted(FACTS.glob("*.json"))
    if path.stem != "index" and not is_drafter(json.loads(path.read_text()))
}
LEAST = {
    "deepseek_v41": (3, "index_source_layer_ids"),
    "qwen4_exp": (2, "ple_layer_ids"),
}
"""Families whose every model selects positions, or takes up n-grams: the first layer that does, by
config.json, and the field that says so."""


@pytest.mark.parametrize("name", CUT)
def test_every_cut_of_a_release_is_a_model_of_its_family(name: str) -> None:
    facts = CUT[name]
    family, sizes = family_of(facts), facts.get("text_config", facts)
    whole, held = family.settle(facts), sizes["num_hidden_layers"]
    least, field = LEAST.get(facts["model_type"], (1, ""))
    for layers in range(1, least):
        said = f"--layers: {layers}, {field} has none of these: take at least {least}"
        with pytest.raises(ConfigError) as caught:
            cut_layers(facts, layers)
        assert str(caught.value) == said
    for layers in range(least, held + 1):
        config = family.settle(cut_layers(facts, layers))
        assert config.num_hidden_layers == layers
        # What the family says of each layer it says of the same layers of the whole model.
        for kind in ("dense", "full", "sparse", "selects"):
            if hasattr(whole, kind):
                kinds = [[getattr(of, kind)(n) for n in range(layers)] for of in (config, whole)]
                assert kinds[0] == kinds[1], (layers, kind)


@pytest.mark.parametrize("name", CUT)
def test_the_least_cut_of_a_release_is_planned(name: str) -> None:
    least, _ = LEAST.get(CUT[name]["model_type"], (1, ""))
    for drafts in (False, True):
        plan = plan_memory(cut_layers(CUT[name], least), MemorySettings(drafts=drafts))
        assert plan.work.fixed_bytes > 0


def test_kinds_of_layers_by_number_are_cut() -> None:
    """By hand: every fourth layer of GLM-5.3-Flash attends, the others have the delta rule."""
    told = cut_layers(CUT["glm-5.3-flash-fp8"], 6)["text_config"]["linear_attn_config"]
    assert (told["kda_layers"], told["full_attn_layers"]) == ([0, 1, 2, 4, 5], [3])
    assert told["num_heads"] == 64


def test_eight_layers_of_glm_4_7_are_three_dense_and_five_moe_ones() -> None:
    """By hand: what spec sheets of the slice say, 22.2 G parameters and 7.01 GB a step."""
    plan = plan_memory(cut_layers(GLM, 8), MemorySettings())
    work = plan.work
    attention = 5120 * (96 + 16) * 128 + 96 * 128 * 5120
    expert = 3 * 5120 * 1536
    moe = 5120 * 160 + expert + 8 * expert
    assert work.linear_parameters == 8 * attention + 3 * 3 * 5120 * 12288 + 5 * moe
    assert work.expert_bytes == 5 * 160 * 2 * expert
    assert (work.experts, work.top) == (160, 8)
    assert work.read_bytes(8) == pytest.approx(7.01e9, rel=2e-3)
    assert work.expected_experts(1) == pytest.approx(8)
    assert work.expected_experts(16) == pytest.approx(89.6, abs=0.1)
    weights = sum(item.bytes for item in plan.items if item.name.startswith("weights"))
    assert weights == pytest.approx(2 * 22.2e9, rel=5e-3)


def test_a_dense_model_with_one_table_reads_it_as_its_head() -> None:
    dense = cut_layers(GLM, 3) | {"tie_word_embeddings": True, "num_nextn_predict_layers": 0}
    work = plan_memory(dense, MemorySettings()).work
    assert (work.experts, work.expert_bytes, work.expected_experts(4)) == (0, 0, 0.0)
    assert work.fixed_bytes > 2 * 151552 * 5120
    assert work.read_bytes(0) == work.fixed_bytes


def test_numbers_and_tables() -> None:
    assert whole_numbers("--batch", "8, 1,16,8") == (1, 8, 16)
    assert whole_numbers("--batch", "999999999,007") == (7, 999999999)
    # A space is no digit and no comma: "1 2" would be 12.
    joined = ("1 2", "6 4", "1\t2", "1_2", "+1", "")
    for bad in (*joined, "1,,2", "0", "-1", "x", "1.5", "٣", "1000000000", "9" * 12, "9" * 5000):
        with pytest.raises(ConfigError) as caught:
            whole_numbers("--batch", bad)
        said = "--batch: expected integers in 1..999999999 separated by commas, got "
        assert str(caught.value) == f"{said}{bad[:24]!r}".replace("'1,,2'", "''")
    assert numbers("--devices", "3,0", 0, 999) == numbers("--devices", " 3 ,\t0 ", 0, 999) == (3, 0)
    assert number("--batch", "16", 1, 16) == 16
    for bad in ("17", "0", "1,2", "", " 1", "9" * 5000):
        with pytest.raises(ConfigError) as caught:
            number("--batch", bad, 1, 16)
        assert str(caught.value) == f"--batch: expected an integer in 1..16, got {bad[:24]!r}"
    assert whole_numbers("--batch", "16,1", 16) == (1, 16)
    with pytest.raises(ConfigError, match=r"--batch: expected integers in 1\.\.16 .* '17'"):
        whole_numbers("--batch", "1,17", 16)
    with pytest.raises(ConfigError, match=r"--devices: expected integers in 0\.\.999 .* '1000'"):
        numbers("--devices", "0,1000", 0, 999)
    assert aligned(["a", "bb"], [["100", "2"]]) == ["  a  bb", "100   2"]
    assert (share(0.755), share(None)) == ("75.5 %", "-")


def test_a_config_under_another_name_is_named_by_it(tmp_path: Path) -> None:
    """Whole, and cut to fewer layers; `dgpp plan` alike."""
    odd = tmp_path / "odd.json"
    odd.write_text('{"model_type": "glm4_moe"}')
    options = ["--checkpoint", str(odd), "--load", "dummy", "--backend", "cpu"]
    for extra in ([], ["--layers", "1"]):
        error = run("decode", *options, *extra).exception
        assert isinstance(error, CheckpointError)
        assert str(error) == f"{odd}: Object missing required field `vocab_size`"
    settings = resolve({"model": str(odd)}, "f", site=SiteSettings())
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(odd))}: Object missing"):
        plan_elsewhere(settings, Elsewhere(), tmp_path)
    odd.rename(tmp_path / "config.json")
    own = resolve({"model": str(tmp_path / "config.json")}, "f", site=SiteSettings())
    with pytest.raises(CheckpointError, match=r"^config\.json: Object missing"):
        plan_elsewhere(own, Elsewhere(), tmp_path)


DUMMY = ["--checkpoint", str(TINY), "--load", "dummy", "--backend", "cpu", "--runs", "1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], r"give either --config FILE or --checkpoint"),
        (["--config", "a", "--checkpoint", "b"], r"give either"),
        (["--checkpoint", str(TINY)], r"needs engine\.load dummy"),
        (["--checkpoint", str(TINY.parent), "--layers", "1"], r"--layers: .*--load dummy"),
        (
            [*DUMMY, "--context", "5000"],
            "^--context: 5000 tokens and 5 after them, the model has 4096 positions",
        ),
        ([*DUMMY, "--context", "999999999"], "^--context: 999999999 tokens"),
        (
            [*DUMMY, "--context", "64,1000000000"],
            r"^--context: expected integers in 1\.\.999999999 .*, got '1000000000'",
        ),
        # A step is a token more, and so is the one that comes of the context.
        (
            [*DUMMY, "--context", "64,1000", "--steps", "3096"],
            "^--steps: 3096 after --context 1000 .* 4096 positions: take at most 3095, or",
        ),
        ([*DUMMY, "--steps", "100000"], "^--steps: 100000 after --context 64"),
        # The range of engine.max_concurrency, whatever part is beyond it.
        ([*DUMMY, "--batch", "1,17"], r"^--batch: expected integers in 1\.\.16 .*, got '17'$"),
        ([*DUMMY, "--batch", "1 2"], r"^--batch: expected integers in 1\.\.16 .*, got '1 2'$"),
        ([*DUMMY, "--context", "6 4, 8"], r"^--context: expected integers in .*, got '6 4'$"),
        (["--checkpoint", str(TINY), "--load", "x"], r"--load: engine\.load: expected one of"),
        (
            ["--checkpoint", str(TINY.parent), "--backend", "scripted"],
            "nothing that could be",
        ),
    ],
)
def test_what_cannot_be_measured_is_named(arguments: list[str], said: str) -> None:
    result = run("decode", *arguments)
    assert isinstance(result.exception, DgppError)
    with pytest.raises(DgppError, match=said):
        raise result.exception


@pytest.mark.parametrize(
    ("arguments", "tokens", "asked"),
    [
        (
            ["decode", "--context", "64,4000", "--batch", "1,2", "--steps", "7"],
            2 * 4032,
            "--batch 2 times --context 4000 and 7 --steps: memory plan: ",
        ),
        (["prefill", "--context", "4000"], 4032, "--batch 1 times --context 4000: memory plan: "),
    ],
)
def test_options_that_do_not_fit_into_memory_are_named(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tokens: int, asked: str
) -> None:
    """Where the model itself fits, and only there; with what would fit."""
    plans: list[MemoryPlan] = []
    short = 0

    def require(plan: MemoryPlan, *_: object) -> None:
        plans.append(plan)
        require_fit(plan, plan.total - short, headroom=0)

    monkeypatch.setattr(launch, "require_fit", require)
    for short, said in ((1, asked), (1 << 30, "memory plan: ")):
        result = run(*arguments[:1], *DUMMY, *arguments[1:])
        assert isinstance(result.exception, MemoryPlanError)
        assert str(result.exception).startswith(said)
        assert plans[-1].limits.blocks * plans[-1].limits.block_tokens == tokens
        if short == 1:
            batch = tokens // 4032
            most = tokens - 64
            remedy = f"the largest engine.kv_capacity that fits is {most}, which is {most // batch}"
            assert str(result.exception).endswith(f"{remedy} for each")


MORE = "more ranks (world_size), or a smaller model"


@pytest.mark.parametrize(
    ("layers", "short", "ends"),
    [
        (None, 1, "; --layers N with --load dummy measures the model's first N layers alone"),
        (3, 1, "; take --layers below 3"),
        # There are no fewer.
        (1, 1, f"no engine.kv_capacity fits: take {MORE}"),
        # The weights have room, what goes with them has none: fewer layers are no remedy.
        (3, 0, f"take less of engine.max_concurrency or engine.prefix_cache_gib, or {MORE}"),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_weights_that_do_not_fit_are_fewer_layers(
    monkeypatch: pytest.MonkeyPatch, layers: int | None, short: int, ends: str, backend: str
) -> None:
    def without_gpu(_index: int) -> None:
        raise CudaError("no NVIDIA driver is installed")

    def require(plan: MemoryPlan, _free: int, place: str) -> None:
        require_fit(plan, plan.weight_bytes - short, place, headroom=0)

    monkeypatch.setattr(probe, "ask_device", without_gpu)
    monkeypatch.setattr(backends, "seems_present", lambda: False)
    monkeypatch.setattr(launch, "require_fit", require)
    cut = ["--layers", str(layers)] if layers else []
    options = ["--checkpoint", str(TINY), "--load", "dummy", "--backend", backend, *cut]
    for command in ("decode", "prefill"):
        error = run(command, *options).exception
        assert isinstance(error, MemoryPlanError)
        assert str(error).endswith(ends)
        took = "that are free on this host, where engine.backend auto took the CPU; largest: "
        assert (took in str(error)) is (backend == "auto")


def test_the_cpu_is_said_where_auto_took_it() -> None:
    assert placed("auto", "cpu", "there") == "there, where engine.backend auto took the CPU"
    for wanted, backend in (("auto", "cuda"), ("cpu", "cpu"), ("cuda", "cuda")):
        assert placed(wanted, backend, "there") == "there"
