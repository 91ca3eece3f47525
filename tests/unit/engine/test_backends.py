"""Which backend is chosen, and by which names a GPU that cannot be used is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dgpp.engine.backends import choose_backend, make_backend
from dgpp.errors import ConfigError
from kernels_numba.gpu import device as devices
from kernels_numba.gpu import kernels, probe
from kernels_numba.gpu.device import Device, open_device
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.source import ROWS

GPU = Device(0, "NVIDIA H200", (9, 0), 132, 9 << 30, 10 << 30, 13000, unified=False)


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "installed", lambda: False)
    monkeypatch.setattr("dgpp.engine.backends.installed", lambda: False)


def test_what_is_named_is_taken() -> None:
    assert choose_backend("cpu") == ("cpu", None)
    assert choose_backend("scripted") == ("scripted", None)


def test_auto_without_cupy_is_the_cpu(no_cupy: None) -> None:
    assert choose_backend("auto") == ("cpu", None)


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (True, r"engine.backend cuda: CuPy is not installed: pip install 'dgpp\[cuda\]'"),
        # Nothing to install CuPy for.
        (False, "engine.backend cuda: no NVIDIA driver is installed: install 580 or newer"),
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


def answering(monkeypatch: pytest.MonkeyPatch, stdout: bytes, stderr: bytes = b"") -> None:
    """Let the probing process end with this output."""
    ended = SimpleNamespace(stdout=stdout, stderr=stderr, returncode=1)
    monkeypatch.setattr(devices, "installed", lambda: True)
    monkeypatch.setattr("dgpp.engine.backends.installed", lambda: True)
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: ended)


def test_auto_takes_the_device_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {name: getattr(GPU, name) for name in Device.__slots__}
    answering(monkeypatch, b"a library says hello\n" + json.dumps(fields).encode() + b"\n")
    assert choose_backend("auto") == ("cuda", GPU)
    assert choose_backend("cuda", 1) == ("cuda", GPU)


@pytest.mark.parametrize(
    ("stdout", "stderr", "said"),
    [
        (b'{"error": "no NVIDIA driver is installed: install 580 or newer"}', b"", "install 580"),
        (b"", b"Traceback\nSystemError: broken\n", "probe failed: SystemError: broken"),
        (b"", b"", "probe failed: exit status 1"),
    ],
)
def test_a_probe_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, stdout: bytes, stderr: bytes, said: str
) -> None:
    answering(monkeypatch, stdout, stderr)
    with pytest.raises(ConfigError, match=said):
        choose_backend("cuda")
    assert choose_backend("auto") == ("cpu", None)


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
    with pytest.raises(ConfigError, match="driver did not answer within 60 s"):
        choose_backend("cuda")


class FakeRuntimeError(RuntimeError):
    pass


def fake_cupy(driver: int = 13000, devices_found: int = 1, capability: int = 9) -> SimpleNamespace:
    properties = {"major": capability, "minor": 0, "name": b"Toy", "multiProcessorCount": 4}
    runtime = SimpleNamespace(
        CUDARuntimeError=FakeRuntimeError,
        driverGetVersion=lambda: driver,
        getDeviceCount=lambda: devices_found,
        getDeviceProperties=lambda _: properties,
        memGetInfo=lambda: (1 << 30, 2 << 30),
    )

    def no_compiler(**_: object) -> None:
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    compiler = SimpleNamespace(CompileException=FakeRuntimeError)
    cuda = SimpleNamespace(
        runtime=runtime, compiler=compiler, Device=lambda _: SimpleNamespace(use=lambda: None)
    )
    return SimpleNamespace(cuda=cuda, RawModule=no_compiler)


@pytest.mark.parametrize(
    ("cupy", "said"),
    [
        (fake_cupy(driver=0), "no NVIDIA driver is installed: install 580 or newer"),
        (fake_cupy(driver=12040), "serves CUDA 12.4, 13.0 is needed: install driver 580"),
        (fake_cupy(devices_found=0), "device 0 does not exist: this machine has 0"),
        (fake_cupy(capability=7), "Toy has compute capability 7.0, 8.0 is least"),
        (fake_cupy(), "cannot be compiled here: libnvrtc.so.13: cannot open"),
    ],
)
def test_each_thing_that_is_missing_has_a_name(
    monkeypatch: pytest.MonkeyPatch, cupy: SimpleNamespace, said: str
) -> None:
    monkeypatch.setattr(devices, "load_cupy", lambda: cupy)
    with pytest.raises(CudaError, match=said):
        open_device()


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
    compiler = SimpleNamespace(compiled=compiled, path=lambda _unit: tmp_path / "rows.cubin")
    monkeypatch.setattr(kernels, "load_cupy", lambda: cupy)
    monkeypatch.setattr(kernels, "Launcher", SimpleNamespace)
    monkeypatch.setattr(kernels, "Compiler", lambda _architecture: compiler)
    with pytest.raises(CudaError, match=said):
        kernels.Kernels().prepare([ROWS])
