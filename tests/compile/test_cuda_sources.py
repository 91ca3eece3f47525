"""Every CUDA source compiles to machine code for the GPUs it is meant for; no GPU is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernels_numba.gpu.picker import KEY_BYTES
from kernels_numba.gpu.source import FOLDER, PICK, SMALL, STEP, Unit, all_units, source

nvrtc = pytest.importorskip(
    "cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install 'dgpp[dev]'"
)
# The "a" targets catch instructions that the plain ones would leave to the driver.
ARCHITECTURES = ("sm_90a", "sm_121a")
AS_BUILT = "-ftz=true"
MOST_SPILLED = 32
"""Bytes; a few loop counters, never sums."""


def compiled(unit: Unit, *options: str) -> tuple[bool, str, int]:
    """(compiles, the compiler's log, bytes of machine code)."""
    made, program = nvrtc.nvrtcCreateProgram(
        unit.text.encode(), f"{unit.name}.cu".encode(), 0, [], []
    )
    assert made == nvrtc.nvrtcResult.NVRTC_SUCCESS
    flags = [option.encode() for option in (*unit.options(), *options)]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    good = result == nvrtc.nvrtcResult.NVRTC_SUCCESS
    code = nvrtc.nvrtcGetCUBINSize(program)[1] if good else 0
    nvrtc.nvrtcDestroyProgram(program)
    return good, log.decode().strip("\0 \n"), code


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}; pip install 'dgpp[dev]'")


def chosen() -> list[tuple[Unit, str]]:
    """Every source for every architecture, every unit for one: of a source's units each second one,
    and of the next source's the others, so that each form of weights meets each too."""
    by_source: dict[str, list[dict[str, Unit]]] = {}
    for units in MADE:
        by_source.setdefault(units[ARCHITECTURES[0]].name, []).append(units)
    pairs = []
    for number, made in enumerate(by_source.values()):
        if len(made) == 1:
            pairs += [(unit, architecture) for architecture, unit in made[0].items()]
        else:
            turns = [ARCHITECTURES[(number + n) % 2] for n in range(len(made))]
            pairs += [(units[turn], turn) for units, turn in zip(made, turns, strict=True)]
    return pairs


MADE = [
    dict(zip(ARCHITECTURES, units, strict=True))
    for units in zip(all_units(), all_units(rings=SMALL), strict=True)
    if not units[0].architecture
]
"""Each unit as each architecture compiles it: GB10's rings are small."""
CHOSEN = chosen()
REST = [
    (unit, architecture)
    for units in MADE
    for architecture, unit in units.items()
    if (unit, architecture) not in CHOSEN
]


@pytest.mark.parametrize(
    ("unit", "architecture"),
    [*CHOSEN, *(pytest.param(*pair, marks=pytest.mark.long) for pair in REST)],
    ids=str,
)
def test_compiles_without_a_word(unit: Unit, architecture: str) -> None:
    good, log, code = compiled(
        unit, f"--gpu-architecture={architecture}", AS_BUILT, "-diag-suppress=177"
    )
    assert good, log
    assert code > 1000
    assert not log


@pytest.mark.parametrize("unit", [u for u in all_units() if u.architecture], ids=str)
def test_an_architecture_s_own_kernels_compile_and_keep_their_sums_in_registers(unit: Unit) -> None:
    assert unit.architecture in ARCHITECTURES
    options = (f"--gpu-architecture={unit.architecture}", AS_BUILT, "--ptxas-options=-v")
    good, log, code = compiled(unit, *options, "-diag-suppress=177")
    assert good, log
    assert code > 1000
    assert "warning" not in log
    # Where registers run out, the compiler waits for each matrix instruction and says so.
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    assert spilled
    assert max(spilled) <= MOST_SPILLED
    assert "wgmma" not in log


def test_the_pick_finds_the_shared_memory_of_a_block_on_every_gpu() -> None:
    """GB10, the least of them, has 99 KiB."""
    _, log, _ = compiled(PICK, "--gpu-architecture=sm_121a", AS_BUILT, "--ptxas-options=-v")
    used = re.search(r"Compiling entry function 'finish_rows'.*?(\d+) bytes smem", log, re.DOTALL)
    assert used, log
    assert int(used[1]) + KEY_BYTES <= 99 << 10


def test_the_draw_fuses_and_flushes_nothing() -> None:
    made, program = nvrtc.nvrtcCreateProgram(STEP.text.encode(), b"step.cu", 0, [], [])
    flags = [*STEP.options(), AS_BUILT, "--gpu-architecture=compute_90"]
    encoded = [flag.encode() for flag in flags]
    assert nvrtc.nvrtcCompileProgram(program, len(flags), encoded)[0] == made
    text = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    operations = text.decode()
    assert "mul.rn.f64" in operations
    assert "fma" not in operations
    assert "ftz" not in operations


def test_each_source_and_each_form_meets_each_architecture() -> None:
    met = {unit for unit, _ in CHOSEN}
    assert all(met & set(units.values()) for units in MADE)
    both = set(ARCHITECTURES)
    made = {unit for units in MADE for unit in units.values()}
    forms = {unit.defines[:-1] for unit in made if unit.name == "tile"}
    assert len(forms) == 4
    for name in {unit.name for unit in made}:
        assert {a for unit, a in CHOSEN if unit.name == name} == both, name
    for form in forms:
        assert {a for unit, a in CHOSEN if set(form) <= set(unit.defines)} == both, form


def test_an_error_is_found() -> None:
    bad = Unit("linear", (("FORMAT", 9),))
    good, log, _ = compiled(bad, "--gpu-architecture=sm_90a", AS_BUILT)
    assert not good
    assert "FORMAT is 1 (bf16), 2 (nvfp4) or 3 (fp8 blocks)" in log


def test_every_file_belongs_to_a_unit() -> None:
    assert {path.stem for path in FOLDER.glob("*.cu")} == {unit.name for unit in all_units()}
    for path in FOLDER.glob("*.cuh"):
        users = [file for file in FOLDER.glob("*.cu*") if f'"{path.name}"' in file.read_text()]
        assert users, f"{path.name} is not included anywhere"


def test_sources_stand_alone() -> None:
    for path in sorted(Path(FOLDER).glob("*.cu")):
        assert "#include" not in source(path.stem)
