"""What operators install beside the server: its dashboard and its unit."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from itertools import combinations
from pathlib import Path

import pytest

from actors.service_manager import notify
from dgpp.serve.metrics import MetricsSnapshot, RankMetrics
from dgpp.serve.prometheus import prometheus_text

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "dgpp@.service"
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((DEPLOY / "grafana" / "dgpp.json").read_text())


def queries(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def exposed():
    """Every name with its labels, and which of them are counters."""
    ranks = [RankMetrics(0), RankMetrics(1, ticks=3)]
    found: dict[str, set[str]] = {}
    counters = set()
    for line in prometheus_text(MetricsSnapshot(ranks=ranks), "m").decode().splitlines():
        if line.startswith("# TYPE") and line.endswith(" counter"):
            counters.add(line.split()[2])
        elif not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels = set(re.findall(r"(\w+)=", rest.partition("}")[0]))
            found.setdefault(name.split(" ")[0], set()).update(labels)
    return found, counters


def test_the_dashboard_asks_only_for_what_is_there(dashboard):
    known, counters = exposed()
    asked = set()
    for title, expression in queries(dashboard):
        names = re.findall(r"\b(dgpp_\w+)(?:\{([^}]*)\})?", expression)
        assert names, title
        for name, selector in names:
            assert name in known, (title, name)
            assert set(re.findall(r"(\w+)=", selector)) <= known[name], (title, selector)
            if name in counters:
                assert re.search(rf"rate\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", expression)
            asked.add(_SUFFIX.sub("", name))
        for by in re.findall(r"by \((\w+)\)", expression):
            assert any(by in known[name] for name, _ in names), (title, by)
        assert expression.count("(") == expression.count(")")
    assert len(asked) > 25
    (model,) = [one for one in dashboard["templating"]["list"] if one["name"] == "model"]
    assert "dgpp_build_info" in known
    assert model["query"] == "label_values(dgpp_build_info, model_name)"


def test_panels_stand_beside_one_another(dashboard):
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_the_unit_is_one_and_gives_the_server_little(tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not here to verify the unit")
    unit = tmp_path / "dgpp@demo.service"
    unit.write_text(UNIT.read_text().replace("/opt/dgpp/bin/dgpp", "/bin/true"))
    done = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    # What the machine's own units say of themselves is not this one's fault.
    assert not [line for line in done.stderr.splitlines() if "dgpp@" in line], done.stderr
    assert done.returncode == 0, done.stderr
    command = [tool, "security", "--offline=true", "--threshold=25", str(unit)]
    rated = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert rated.returncode == 0, rated.stdout[-300:]


def test_a_rank_of_several_machines_is_the_same_unit_with_its_number(tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not here to verify the unit")
    units = {
        UNIT: "dgpp@world.service",
        UNIT.with_name("rank.conf"): "dgpp@world.service.d/rank.conf",
    }
    for source, name in units.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source.read_text().replace("/opt/dgpp/bin/dgpp", "/bin/true"))
    command = [tool, "verify", str(tmp_path / "dgpp@world.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not [line for line in done.stderr.splitlines() if "dgpp@" in line], done.stderr
    # It is read: what is wrong in it would be said.
    with (tmp_path / "dgpp@world.service.d/rank.conf").open("a") as out:
        out.write("ExecStart=/nowhere/dgpp\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Service has more than one ExecStart=" in done.stderr
    said = UNIT.with_name("rank.conf").read_text()
    assert "ExecStart=/opt/dgpp/bin/dgpp run /etc/dgpp/%i.json --rank ${DGPP_RANK}\n" in said


def test_the_unit_says_what_the_server_does():
    said = UNIT.read_text()
    assert "ExecStart=/opt/dgpp/bin/dgpp run /etc/dgpp/%i.json\n" in said
    for line in ("Type=notify", "RestartPreventExitStatus=1", "NoNewPrivileges=yes", "User=dgpp"):
        assert f"\n{line}\n" in said
    # The drain (30 s) and the server's own force (30 s later) come before systemd's.
    assert int(re.search(r"TimeoutStopSec=(\d+)", said)[1]) > 60


def test_a_rank_of_several_machines_tries_until_the_others_are_back():
    said = UNIT.with_name("rank.conf").read_text()
    for line in ("StartLimitIntervalSec=0", "RestartPreventExitStatus="):
        assert f"\n{line}\n" in said


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_that_the_server_is_ready(tmp_path, monkeypatch, abstract):
    path = f"@dgpp-test-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path[1:] if abstract else path)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        notify("READY=1")
        assert manager.recv(100) == b"READY=1"
    notify("READY=1")  # nobody listens
    monkeypatch.setenv("NOTIFY_SOCKET", "nonsense")
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")
