"""CUDA sources: compiled once and told of; what a kernel was allowed stays allowed."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels_numba.gpu import build, kernels
from kernels_numba.gpu.build import Compiler
from kernels_numba.gpu.errors import CudaError, FolderError
from kernels_numba.gpu.limits import limits_of
from kernels_numba.gpu.source import MOE, ROWS, Unit, source


class _Nvrtc:
    """Compiles anything to its options."""

    NVRTCError = RuntimeError

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def getVersion(self) -> tuple[int, int]:
        return 13, 0

    def createProgram(self, *source: object) -> dict[str, object]:
        return {"name": source[1]}

    def compileProgram(self, program: dict[str, object], flags: tuple[str, ...]) -> None:
        self.compiled.append(f"{program['name']} {flags[-1]}")
        program["code"] = " ".join(flags).encode()

    def getCUBIN(self, program: dict[str, object]) -> object:
        return program["code"]

    def destroyProgram(self, program: object) -> None:
        pass


def fake_cupy(nvrtc: _Nvrtc, raw_module: Callable[[str], object]) -> SimpleNamespace:
    cuda = SimpleNamespace(
        nvrtc=nvrtc,
        Device=lambda: SimpleNamespace(compute_capability="90"),
        driver=SimpleNamespace(CUDADriverError=OSError),
    )
    return SimpleNamespace(cuda=cuda, RawModule=raw_module)


@pytest.fixture
def faked(tmp_path, monkeypatch):
    """Kernels on a CuPy whose modules come from `modules(path)`."""

    def make(nvrtc: _Nvrtc, modules: Callable[[str], object]) -> type[kernels.Kernels]:
        monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
        cupy = fake_cupy(nvrtc, modules)
        monkeypatch.setattr(kernels, "load_cupy", lambda: cupy)
        monkeypatch.setattr("kernels_numba.gpu.build.load_cupy", lambda: cupy)
        monkeypatch.setattr(kernels, "Launcher", SimpleNamespace)
        return kernels.Kernels

    return make


def test_a_kernel_keeps_the_most_shared_memory_that_it_was_allowed(faked) -> None:
    attributes = SimpleNamespace(max_dynamic_shared_size_bytes=0, shared_size_bytes=0)
    module = SimpleNamespace(compile=lambda: None, get_function=lambda _name: attributes)
    held = faked(_Nvrtc(), lambda path: module)()
    # All of one kernel's function objects stand for one kernel of the driver's.
    for asked, allowed in ((100, 0), (60_000, 60_000), (50_000, 60_000), (90_000, 90_000)):
        held.function(ROWS, "norm_rows", asked)
        assert attributes.max_dynamic_shared_size_bytes == allowed


def test_what_a_kernel_declares_counts_with_what_it_is_launched_with(faked) -> None:
    attributes = SimpleNamespace(max_dynamic_shared_size_bytes=0, shared_size_bytes=8 << 10)
    module = SimpleNamespace(compile=lambda: None, get_function=lambda _name: attributes)
    held = faked(_Nvrtc(), lambda path: module)()
    for asked, allowed in ((40 << 10, 0), (48 << 10, 48 << 10)):
        held.function(ROWS, "norm_rows", asked)
        assert attributes.max_dynamic_shared_size_bytes == allowed


def test_kernels_of_a_rank_that_shares_its_device_start_in_turn(faked) -> None:
    module = SimpleNamespace(
        compile=lambda: None,
        get_function=lambda _name: SimpleNamespace(
            shared_size_bytes=0, kernel=SimpleNamespace(ptr=1)
        ),
    )
    held = faked(_Nvrtc(), lambda path: module)()
    held._cupy.cuda.get_current_stream = lambda: SimpleNamespace(ptr=2)
    started: list[bool] = []
    held._launcher.launch = lambda *_, early: started.append(early)
    held.launch(ROWS, "norm_rows", (1,), 32, (), early=True)
    held.share_device()
    held.launch(ROWS, "norm_rows", (1,), 32, (), early=True)
    assert started == [True, False]


def test_cuda_sources_are_counted_and_compiled_once(faked, caplog) -> None:
    nvrtc, loaded = _Nvrtc(), []

    def raw_module(path: str) -> SimpleNamespace:
        loaded.append(path)
        return SimpleNamespace(compile=lambda: None)

    make = faked(nvrtc, raw_module)
    hopper, other = (Unit("rows", architecture=name) for name in ("sm_90a", "sm_121a"))
    units = [ROWS, MOE, hopper, other]
    for _ in range(2):
        with caplog.at_level(logging.INFO, "dgpp.engine"):
            make().prepare(units)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("compiling 3 CUDA sources for sm_90a: the first start")
    assert lines[1].startswith("3 CUDA sources compiled in")
    assert len(lines) == 2
    assert sorted(nvrtc.compiled) == [
        "moe.cu --gpu-architecture=sm_90",
        "rows.cu --gpu-architecture=sm_90",
        "rows.cu --gpu-architecture=sm_90a",
    ]
    compiler = Compiler("sm_90a")
    assert loaded == [str(compiler.path(unit)) for unit in units[:3]] * 2
    assert all(compiler.path(unit).exists() for unit in units[:3])


def cannot_be_kept(folder: Path, why: str) -> str:
    return (
        f"compiled kernels cannot be kept: {folder}: {why}; let CUPY_CACHE_DIR name a "
        "folder that can be written"
    )


def test_a_folder_that_keeps_no_kernels_is_named_with_the_variable(faked, tmp_path, monkeypatch):
    make = faked(_Nvrtc(), lambda path: None)
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "kernels"
    monkeypatch.setenv("CUPY_CACHE_DIR", str(place))
    with pytest.raises(CudaError) as caught:
        make().prepare([ROWS])
    assert str(caught.value) == cannot_be_kept(place, "Not a directory")


class _FullDisk:
    def __enter__(self) -> _FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, _code: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_and_nothing_is_left_there(faked, tmp_path, monkeypatch):
    make = faked(_Nvrtc(), lambda path: None)
    monkeypatch.setattr(build.os, "fdopen", lambda *_: _FullDisk())
    with pytest.raises(CudaError) as caught:
        make().prepare([ROWS])
    assert str(caught.value) == cannot_be_kept(tmp_path, "No space left on device")
    assert [path.suffix for path in Path(tmp_path).iterdir()] == [".lock"]


def refusing(error: int) -> Callable[..., object]:
    """A call that fails with `error` and names a file that no user knows."""

    def refuse(*_: object, **__: object) -> object:
        raise OSError(error, os.strerror(error), "/cache/tmpx1")

    return refuse


@pytest.mark.parametrize("step", ["mkstemp", "write", "replace", "unlink"])
def test_a_folder_that_takes_no_more_after_the_start_check_is_named(
    faked, tmp_path, monkeypatch, step: str
) -> None:
    """Whichever step of keeping a kernel finds it: its folder and the variable are said."""
    make, cache = faked(_Nvrtc(), lambda path: None), tmp_path / "cache"
    monkeypatch.setenv("CUPY_CACHE_DIR", str(cache))
    held = make()
    if step == "mkstemp":
        monkeypatch.setattr(build.tempfile, "mkstemp", refusing(errno.EROFS))
    elif step == "write":
        monkeypatch.setattr(build.os, "fdopen", refusing(errno.EROFS))
    else:
        monkeypatch.setattr(build.Path, "replace", refusing(errno.EROFS))
    if step == "unlink":
        monkeypatch.setattr(build.Path, "unlink", refusing(errno.EACCES))
    with pytest.raises(FolderError) as caught:
        held.prepare([ROWS])
    assert str(caught.value) == cannot_be_kept(cache, "Read-only file system")
    left = [path.suffix for path in cache.iterdir()]
    assert sorted(left) == (["", ".lock"] if step == "unlink" else [".lock"])


def test_limits_are_those_of_the_sources():
    """What is refused before weights are read is what the kernels were made for."""
    limits = limits_of(None)

    def stated(text: str, name: str) -> int:
        found = re.search(rf"constexpr int {name} = (\d+);", source(text))
        assert found is not None
        return int(found[1])

    assert limits.experts == stated("moe", "MOST_EXPERTS") == 1024
    assert limits.top == stated("moe", "MOST_TOP") == 32
    assert limits.ids == stated("pick", "MOST_CHUNKS") * stated("pick", "CHUNK") == 1 << 21
    assert limits.rows == 65535 * stated("tile", "BM") == 65535 * 128
