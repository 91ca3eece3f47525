"""Which backend is chosen, and by which names a GPU that cannot be used is refused."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dgpp.engine.backends import Choice, choose_backend, make_backend
from dgpp.engine.loading import DummyModel
from dgpp.engine.model_engine import ModelEngine
from dgpp.errors import ConfigError
from dgpp.models.plan import MemorySettings, plan_memory
from kernels_numba.cpu.backend import CpuBackend
from kernels_numba.gpu import backend as cuda_backend
from kernels_numba.gpu import device as devices
from kernels_numba.gpu import kernels, probe
from kernels_numba.gpu.device import Device, open_device
from kernels_numba.gpu.errors import CudaError, FolderError
from kernels_numba.gpu.source import ROWS

TINY = Path(__file__).parents[2] / "fixtures" / "glm-4.7-bf16" / "config.json"
GPU = Device(0, "NVIDIA H200", (9, 0), 132, 9 << 30, 10 << 30, 13000, unified=False)


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "installed", lambda: False)


def looks_like(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, driver: bool, files: str
) -> None:
    """Let the machine have the driver's library or not, and device files of these names."""
    monkeypatch.setattr(devices, "has_driver", lambda: driver)
    for name in files.split():
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "DEV", tmp_path)


def test_what_is_named_is_taken() -> None:
    assert choose_backend("cpu") == Choice("cpu")
    assert choose_backend("scripted") == Choice("scripted")


CPU = "; or engine.backend cpu$"
CUPY = "CuPy is not installed: pip install 'dgpp[cuda]'"
DRIVER = "no NVIDIA driver is installed: install 580 or newer"


@pytest.mark.parametrize(
    ("driver", "files", "why"),
    [
        (False, "", ""),
        (False, "nvram sda", ""),
        (True, "", CUPY),
        (False, "nvidia0", DRIVER),
        (False, "nvidiactl nvidia-uvm", ""),
    ],
)
def test_auto_without_cupy_is_the_cpu(
    no_cupy: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    driver: bool,
    files: str,
    why: str,
) -> None:
    looks_like(monkeypatch, tmp_path, driver=driver, files=files)
    choice = choose_backend("auto")
    assert choice == Choice("cpu", why=why)
    assert choice.said == (f"engine.backend auto takes the CPU: {why}" if why else "")


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (True, rf"engine.backend cuda: CuPy is not installed: pip install 'dgpp\[cuda\]'{CPU}"),
        # Nothing to install CuPy for.
        (False, f"engine.backend cuda: {DRIVER}{CPU}"),
    ],
)
def test_cuda_without_cupy_names_the_remedy(
    no_cupy: None, monkeypatch: pytest.MonkeyPatch, driver: bool, message: str
) -> None:
    monkeypatch.setattr(devices, "has_driver", lambda: driver)
    with pytest.raises(ConfigError, match=message):
        choose_backend("cuda")
    with pytest.raises(ConfigError, match=message):
        make_backend("cuda", 8, 1)


def test_choosing_loads_no_library() -> None:
    code = (
        "import sys; from dgpp.engine.backends import choose_backend; choose_backend('cpu');"
        "print([m for m in ('cupy', 'numba') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stdout.strip() == b"[]"


def answering(
    monkeypatch: pytest.MonkeyPatch, stdout: bytes, stderr: bytes = b"", status: int = 1
) -> None:
    """Let the probing process end with this output."""
    ended = SimpleNamespace(stdout=stdout, stderr=stderr, returncode=status)
    monkeypatch.setattr(devices, "installed", lambda: True)
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: ended)


def test_auto_takes_the_device_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {name: getattr(GPU, name) for name in Device.__slots__}
    answering(monkeypatch, b"a library says hello\n" + json.dumps(fields).encode() + b"\n")
    assert choose_backend("auto") == Choice("cuda", GPU)
    assert choose_backend("cuda", 1) == Choice("cuda", GPU)
    # `auto` asks whether the model can be computed there; who names the GPU asks for himself.
    asked: list[Device] = []
    nothing = choose_backend("auto", 0, lambda found: asked.append(found) or ())
    assert (nothing, asked) == (Choice("cuda", GPU), [GPU])
    found = choose_backend("auto", 0, lambda _: ("cuda does not compute x yet", "more"))
    assert found == Choice("cpu", why="cuda does not compute x yet")
    assert choose_backend("cuda", 0, lambda _: ("no",)) == Choice("cuda", GPU)


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "said"),
    [
        (b'{"error": "busy: wait"}', b"", 0, "busy: wait"),
        (b"", b"Traceback\nSystemError: broken\n", 1, "the CUDA probe failed: SystemError: broken"),
        (b"", b"", 1, "the CUDA probe failed: exit status 1"),
        (b"", b"", -11, "the CUDA probe failed: it was ended by SIGSEGV"),
        (b"", b"", -99, "the CUDA probe failed: it was ended by signal 99"),
    ],
)
def test_a_probe_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stdout: bytes,
    stderr: bytes,
    status: int,
    said: str,
    present: bool,
) -> None:
    answering(monkeypatch, stdout, stderr, status)
    looks_like(monkeypatch, tmp_path, driver=False, files="nvidia3" * present)
    if "probe" in said:
        command = f"{sys.executable} -m kernels_numba.gpu.probe 1"
        said += f"; `{command}` says more; see nvidia-smi, and install driver 580 or newer and "
        said += "'dgpp[cuda]' anew"
    with pytest.raises(ConfigError) as caught:
        choose_backend("cuda", 1)
    assert str(caught.value) == f"engine.backend cuda: {said}; or engine.backend cpu"
    # `auto` says so where there seems to be a GPU, and only there.
    assert choose_backend("auto", 1) == Choice("cpu", why=said if present else "")


def test_a_probe_that_crashes_is_a_process_that_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one, with a library that kills it."""
    monkeypatch.setattr(devices, "installed", lambda: True)
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    real = subprocess.run
    monkeypatch.setattr(
        probe.subprocess, "run", lambda command, **more: real([command[0], "-c", crash], **more)
    )
    with pytest.raises(
        ConfigError, match=r"ended by SIGSEGV; `.*probe 0` says more; see nvidia-sm"
    ):
        choose_backend("cuda")


def test_the_wanted_device_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    answering(monkeypatch, b"")
    ended = SimpleNamespace(stdout=b'{"error": "busy"}', stderr=b"", returncode=0)
    monkeypatch.setattr(
        probe.subprocess, "run", lambda command, **_: asked.append(command) or ended
    )
    with pytest.raises(ConfigError, match=r"engine\.backend cuda: busy"):
        choose_backend("cuda", 3)
    assert asked[0][1:] == ["-m", "kernels_numba.gpu.probe", "3"]


def test_a_driver_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, probe.TIMEOUT_S)

    monkeypatch.setattr(devices, "installed", lambda: True)
    monkeypatch.setattr(probe.subprocess, "run", hang)
    with pytest.raises(ConfigError, match="driver did not answer within 60 s: see nvidia-smi"):
        choose_backend("cuda")


class FakeRuntimeError(RuntimeError):
    pass


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def fake_cupy(
    driver: int = 13000,
    devices_found: int = 1,
    capability: int = 9,
    error: Exception | None = None,
    **runtime_functions: Callable[..., Any],
) -> SimpleNamespace:
    """A machine of which something is wrong; without more, NVRTC is missing."""
    properties = {"major": capability, "minor": 0, "name": b"Toy", "multiProcessorCount": 4}
    runtime = SimpleNamespace(
        CUDARuntimeError=FakeRuntimeError,
        driverGetVersion=lambda: driver,
        getDeviceCount=lambda: devices_found,
        getDeviceProperties=lambda _: properties,
        memGetInfo=lambda: (1 << 30, 2 << 30),
    )
    vars(runtime).update(runtime_functions)
    missing = RuntimeError("libnvrtc.so.13: cannot open shared object file")

    compiler = SimpleNamespace(CompileException=FakeRuntimeError)
    cuda = SimpleNamespace(
        runtime=runtime, compiler=compiler, Device=lambda _: SimpleNamespace(use=lambda: None)
    )
    return SimpleNamespace(cuda=cuda, RawModule=failing(error or missing))


HIDDEN = ", and CUDA_VISIBLE_DEVICES, which is '7'"


@pytest.mark.parametrize(
    ("cupy", "said"),
    [
        (fake_cupy(driver=0), "no NVIDIA driver is installed: install 580 or newer"),
        (fake_cupy(driver=12040), "serves CUDA 12.4, 13.0 is needed: install driver 580"),
        (
            fake_cupy(driverGetVersion=failing(FakeRuntimeError("no library"))),
            "no NVIDIA driver answers: no library; see nvidia-smi",
        ),
        (
            fake_cupy(getDeviceCount=failing(FakeRuntimeError("no device is detected"))),
            f"no CUDA device can be used: no device is detected; see nvidia-smi{HIDDEN}",
        ),
        (
            fake_cupy(devices_found=2),
            f"CUDA device 2 does not exist: this machine has 2; see engine.devices{HIDDEN}",
        ),
        (
            fake_cupy(devices_found=3, getDeviceProperties=failing(FakeRuntimeError("in use"))),
            "CUDA device 2 cannot be used: in use; see nvidia-smi",
        ),
        (
            fake_cupy(devices_found=3, capability=7),
            "Toy has compute capability 7.0, 8.0 is least: name another device in engine.devices",
        ),
        (fake_cupy(devices_found=3), "cannot be compiled here: libnvrtc.so.13: cannot open"),
        (
            fake_cupy(devices_found=3, error=OSError("libnvrtc.so.13: cannot open")),
            "compiled here: libnvrtc.so.13: cannot open; pip install 'dgpp[cuda]'",
        ),
        (
            fake_cupy(
                devices_found=3, error=PermissionError(errno.EACCES, "Permission denied", "/c")
            ),
            "compiled kernels cannot be kept: /c: Permission denied; let CUPY_CACHE_DIR name",
        ),
    ],
)
def test_each_thing_that_is_missing_has_a_name_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch, cupy: SimpleNamespace, said: str
) -> None:
    monkeypatch.setattr(devices, "load_cupy", lambda: cupy)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(CudaError, match=re.escape(said)):
        open_device(2)


def test_a_variable_that_is_not_set_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "load_cupy", lambda: fake_cupy(devices_found=1))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(CudaError, match=r"has 1; see engine\.devices, and CUDA_VISIBLE_DEVICES$"):
        open_device(1)


@pytest.mark.parametrize(
    ("compiles", "said"),
    [
        (False, r"rows\.cu does not compile for this device: no such instruction"),
        (True, r"rows\.cu cannot be loaded: no such instruction; update the driver"),
    ],
)
def test_a_kernel_that_cannot_be_built_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiles: bool, said: str
) -> None:
    driver_error = type("CUDADriverError", (Exception,), {})

    def compiled(_unit: object) -> Path:
        if not compiles:
            raise CudaError("no such instruction")
        return tmp_path / "rows.cubin"

    def load() -> None:
        raise driver_error("no such instruction")

    cuda = SimpleNamespace(
        driver=SimpleNamespace(CUDADriverError=driver_error),
        Device=lambda: SimpleNamespace(compute_capability="90"),
    )
    cupy = SimpleNamespace(cuda=cuda, RawModule=lambda **_: SimpleNamespace(compile=load))
    compiler = SimpleNamespace(compiled=compiled, keeps=lambda _unit: False)
    monkeypatch.setattr(kernels, "load_cupy", lambda: cupy)
    monkeypatch.setattr(kernels, "Launcher", SimpleNamespace)
    monkeypatch.setattr(kernels, "Compiler", lambda _architecture: compiler)
    with pytest.raises(CudaError, match=said):
        kernels.Kernels().prepare([ROWS])


@pytest.mark.parametrize("operation", ["__init__", "dummy", "plane", "rotary_table", "picker"])
def test_a_kernel_that_fails_while_a_model_is_loaded_is_named_by_the_key(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Backends compile what a model's sizes ask for when these come, so also after their start."""

    def fail(*_: object, **__: object) -> None:
        raise FolderError(OSError(errno.EROFS, "Read-only file system"), Path("/k"))

    class Gpu(CpuBackend):
        pass

    setattr(Gpu, operation, fail)
    monkeypatch.setattr(cuda_backend, "CudaBackend", lambda capacity, _device: Gpu(capacity, 1))
    config = json.loads(TINY.read_text())
    limits = plan_memory(config, MemorySettings(slots=1)).limits
    with pytest.raises(ConfigError) as caught:
        ModelEngine(DummyModel(config), limits, 1, backend="cuda")
    assert str(caught.value) == (
        "engine.backend cuda: compiled kernels cannot be kept: /k: Read-only file system; let "
        "CUPY_CACHE_DIR name a folder that can be written; or engine.backend cpu"
    )
