"""The folder of compiled kernels, with a CuPy that makes it when it is imported, like the real."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dgpp.cli import main as cli
from dgpp.engine.backends import Choice, choose_backend
from dgpp.errors import ConfigError
from kernels_numba.gpu import device as devices
from kernels_numba.gpu.errors import CudaError, FolderError

FIXTURES = Path(__file__).parents[2] / "fixtures"
CUPY = """
import os
from types import SimpleNamespace
folder = os.environ.get("CUPY_CACHE_DIR", os.path.expanduser("~/.cupy/kernel_cache"))
os.makedirs(folder, exist_ok=True)
{more}
runtime = SimpleNamespace(driverGetVersion=lambda: 0, CUDARuntimeError=RuntimeError)
cuda = SimpleNamespace(runtime=runtime)
"""
NO_DRIVER = "no NVIDIA driver is installed: install 580 or newer"
UNUSABLE = [
    ("/proc/x", "/proc/x: No such file or directory"),
    ("/proc/x/y", "/proc/x: No such file or directory"),
    ("/dev/null", "/dev/null: Not a directory"),
    ("/dev/null/x", "/dev/null/x: Not a directory"),
    ("~nosuch/x", "~nosuch/x: that home folder is not known"),
    ("/tmp/" + "x" * 300, f"/tmp/{'x' * 300}: File name too long"),
]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A CuPy for this process and the probe's, `more` run as it is imported; a home of its own."""

    def write(more: str = "") -> Path:
        place = tmp_path / "packages"
        place.mkdir()
        (place / "cupy.py").write_text(CUPY.format(more=more))
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        monkeypatch.syspath_prepend(place)
        monkeypatch.setenv("PYTHONPATH", f"{place}:{Path(__file__).parents[3]}")
        home = tmp_path / "home"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("CUPY_CACHE_DIR", "")
        monkeypatch.chdir(home)
        monkeypatch.setattr(devices, "has_driver", lambda: True)
        return home

    yield write
    sys.modules.pop("cupy", None)


def kept(said: str) -> str:
    return (
        f"compiled kernels cannot be kept: {said}; let CUPY_CACHE_DIR name a "
        "folder that can be written"
    )


@pytest.mark.parametrize(("value", "said"), UNUSABLE)
def test_a_folder_that_cannot_be_used_is_named_and_no_driver_blamed(
    fake, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    home = fake()
    monkeypatch.setenv("CUPY_CACHE_DIR", value)
    with pytest.raises(FolderError) as caught:
        devices.load_cupy()
    assert str(caught.value) == kept(said)
    with pytest.raises(ConfigError) as refused:
        choose_backend("cuda")
    assert str(refused.value) == f"engine.backend cuda: {kept(said)}; or engine.backend cpu"
    assert choose_backend("auto") == Choice("cpu", why=kept(said))
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "place"),
    [("", ".cupy/kernel_cache"), (None, ".cupy/kernel_cache"), ("~/k/l", "k/l"), ("k", "k")],
)
def test_cupy_and_the_compiler_keep_theirs_in_one_folder(
    fake, monkeypatch: pytest.MonkeyPatch, value: str | None, place: str
) -> None:
    home = fake()
    if value is None:
        monkeypatch.delenv("CUPY_CACHE_DIR")
    else:
        monkeypatch.setenv("CUPY_CACHE_DIR", value)
    # The fake's driver is what is missing next.
    with pytest.raises(ConfigError, match=NO_DRIVER):
        choose_backend("cuda")
    cupy = devices.load_cupy()
    assert Path(cupy.folder).absolute() == devices.cache_folder().absolute() == home / place
    made = [path.relative_to(home) for path in home.rglob("*")]
    assert sorted(made) == sorted([Path(place), *Path(place).parents][:-1])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            'raise PermissionError(13, "Permission denied", os.path.join(folder, "a"))',
            "compiled kernels cannot be kept: ",
        ),
        # What is not about the folder is not blamed on it.
        ('raise PermissionError(13, "Permission denied", "/lib/a")', "CuPy cannot be imported: "),
        ('raise OSError("libcudart.so.13: cannot open")', "CuPy cannot be imported: libcudart"),
        ('raise ValueError("numpy.dtype size changed")', "CuPy cannot be imported: numpy.dtype"),
        ("import no_such_module", "CuPy cannot be imported: No module named"),
    ],
)
def test_what_fails_as_cupy_is_imported_is_named(fake, more: str, said: str) -> None:
    fake(more)
    with pytest.raises(CudaError) as caught:
        devices.load_cupy()
    assert str(caught.value).startswith(said)
    with pytest.raises(ConfigError) as refused:
        choose_backend("cuda")
    assert str(caught.value) in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        "run {config} --memory-plan",
        "doctor {config}",
        "bench decode --config {config}",
        "bench decode --checkpoint {model} --backend cuda",
        "check forward --checkpoint {model} --backend cuda --expected {expected} --tolerance 1",
    ],
)
def test_every_command_names_it_before_weights_are_read(
    fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd, command: str
) -> None:
    fake()
    monkeypatch.setenv("CUPY_CACHE_DIR", "/dev/null")
    model = tmp_path / "model"
    model.mkdir()
    # A model without readable weights.
    for file in (FIXTURES / "glm-4.7-bf16").iterdir():
        whole = file.suffix in (".json", ".npz")
        (model / file.name).write_bytes(file.read_bytes() if whole else b"")
    config, expected = tmp_path / "config.json", model / "expected.npz"
    wanted = {"model": str(model), "world_size": 1, "engine": {"backend": "cuda"}}
    config.write_text(json.dumps(wanted))
    for name in ("DGPP_LOG_DIR", "DGPP_STAGE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert cli.main(command.format(model=model, config=config, expected=expected).split()) == 1
    told = capfd.readouterr()
    assert kept("/dev/null: Not a directory") in told.out + told.err
