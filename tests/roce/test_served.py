"""A whole world of two ranks over the bus: it says what the same one over shared memory says."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from ends import FIRST, either
from said import ENGINE, READY_S, answers, make_model, over_shared_memory
from serving import Starter

pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def serve(tmp_path):
    starter = Starter(tmp_path)
    yield starter
    starter.close()


@pytest.fixture
def wanted(serve, tmp_path):
    """From the host of an emulated machine, else from here."""
    told = os.environ.get("DGPP_TEST_ROCE_SAID")
    if told:
        return json.loads(Path(told).read_text())
    return over_shared_memory(serve, make_model(tmp_path / "reference"))


@pytest.fixture
def alone(package, monkeypatch) -> str:
    """The package that a process finds first."""
    if package != FIRST:
        found = importlib.util.find_spec(FIRST)
        folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        hidden = str(Path(found.origin).parents[1]) if found and found.origin else ""
        if hidden not in folders:
            pytest.skip(f"{FIRST} is among this Python's own packages")
        folders.remove(hidden)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    return package


@either
def test_two_ranks_say_over_the_bus_what_they_say_over_shared_memory(
    devices, gid_index, serve, tmp_path, wanted, alone
):
    nodes = [
        {"DGPP_ROCE_DEVICES": name, "DGPP_ROCE_GID_INDICES": str(gid_index)} for name in devices
    ]
    flags = ("--set", 'nodes=["localhost","localhost"]', "--set", f"node_env={json.dumps(nodes)}")
    server = serve(
        make_model(tmp_path / "model"), ready=False, world_size=2, flags=flags,
        collective="verbs", **ENGINE,
    )  # fmt: skip
    # An emulated processor that asks all the time does little else.
    server.wait_ready(READY_S, 2.0)
    if os.environ.get("DGPP_TEST_ROCE_SAID"):
        assert "compiling CPU kernels" not in server.log
    for rank in (0, 1):
        assert (
            f"collective verbs: rank {rank} of 2 over 1 lanes, the host's sum of 20 KiB takes"
            in server.log
        )
    assert answers(server) == wanted
    status, text = server.get("/metrics/prometheus")
    assert status == 200
    (line,) = [line for line in text.decode().splitlines() if 'path="verbs"' in line]
    assert float(line.split()[-1]) > 100
    assert server.stop() == 0
    assert "op streams of 2 ranks: identical" in server.log
    assert server.operations(0) == server.operations(1) != b""
