"""What `dgpp up` would refuse of the settings alone, and how `doctor` and `setup` say it before."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from serving import TINY

from dgpp.cli import main as cli
from dgpp.cli.up import FOUND_BY
from dgpp.cluster.deployment import Access, Deployment
from dgpp.config.document import Override
from dgpp.config.resolve import resolve
from dgpp.config.site import parse_site


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """`call(words..., **document)`: the exit status and what was said, of one rank here."""
    for name in [name for name in os.environ if name.startswith(("DGPP_", "HF_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "empty.env").write_text("")
    monkeypatch.setenv("DGPP_ENV_FILE", str(tmp_path / "empty.env"))
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "c.json"

    def run(*words, **document):
        engine = {"backend": "scripted"}
        config.write_text(json.dumps({"model": str(TINY), "engine": engine} | document))
        status = cli.main([words[0], str(config), *words[1:]])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


OPEN = {"http": {"bind_host": "0.0.0.0"}}
LATER = {"engine": {"backend": "scripted", "l2_prefetch_window_mib": 13}}
ABSENT = {"release": "9.9"}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (OPEN, "http.bind_host: 0.0.0.0 is reached from other machines"),
        (LATER, "not supported yet: engine.l2_prefetch_window_mib"),
        (ABSENT, "release: 9.9 is not installed in "),
    ],
)
def test_doctor_says_what_up_would_refuse_and_goes_on(call, tmp_path, document, said):
    status, found = call("up", **document)
    assert (status, found.count("\n")) == (1, 1)
    assert found.startswith(f"dgpp: error: {said}")
    status, found = call("doctor", **document)
    assert status == 1
    assert f"{tmp_path}/c.json\n  error    {said}" in found
    assert "rank 0 at localhost\n  ok  " in found


def test_a_release_that_is_absent_is_named_with_what_installs_and_what_there_is(call, tmp_path):
    releases = tmp_path / "dgpp" / "releases"
    where = f"release: 9.9 is not installed in {releases} (DGPP_RELEASE_DIR): `dgpp install` takes"
    listed = "its archive, `dgpp releases` lists what is there:"
    assert f"{where} {listed} nothing\n" in call("up", "--release", "9.9")[1]
    for version in ("1.0", "1.1"):
        (releases / version / "venv" / "bin").mkdir(parents=True)
        (releases / version / "venv" / "bin" / "dgpp").touch()
    assert f"{where} {listed} 1.0, 1.1\n" in call("up", "--release", "9.9")[1]
    # What ends ranks does not need it, and --bin is told instead of it.
    assert call("down", **ABSENT) == (0, "not running\n")
    assert "is not installed" not in call("doctor", "--bin", "/nowhere/dgpp", **ABSENT)[1]


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("paths.log_dir", "/elsewhere", "DGPP_LOG_DIR"),
        ("paths.stage_dir", "/elsewhere", "DGPP_STAGE_DIR"),
        ("nodes", '["localhost"]', "DGPP_NODES"),
        ("ssh_user", "someone", "DGPP_SSH_USER"),
    ],
)
def test_nothing_is_started_where_other_commands_would_not_look(call, tmp_path, path, value, key):
    status, said = call("up", "--skip-preflight", "--set", f"{path}={value}")
    assert status == 1
    assert said == (
        f"dgpp: error: --set: {path}: `dgpp down`, `status`, `logs` and `chat` would look "
        f"elsewhere for what this starts; move it to .env as {key} (a file of nodes may say it)\n"
    )
    assert not (tmp_path / "dgpp").exists()


def test_a_deployments_place_needs_the_keys_that_cannot_be_set_for_one_start():
    """Whatever a folder or a process of a deployment is found by is one of them."""
    site = parse_site({"DGPP_NODES": "a b"}, "")

    def deployment(*overrides: Override) -> Deployment:
        settings = resolve({"model": "m", "world_size": 2}, "f", site=site, overrides=overrides)
        return Deployment(Path("/c.json"), settings, Access())

    place = deployment().place
    for path in ("paths.log_dir", "paths.stage_dir"):
        assert deployment(Override(path, "/elsewhere", "--set")).place != place
        assert path in FOUND_BY
    # A folder of a home is another one for another login.
    for path, value in (("nodes", ["a", "c"]), ("ssh_user", "someone")):
        first, other = deployment(), deployment(Override(path, value, "--set"))
        targets = [of.nodes[1].target for of in (first, other)]
        assert targets[0] == "b" != targets[1]
        assert path in FOUND_BY
    assert set(place.__struct_fields__) == {"log_dir", "stage_dir", "deployment"}


@pytest.mark.parametrize("verb", ["up", "down", "status", "doctor", "logs", "signal", "setup"])
def test_an_ssh_config_that_is_no_file_is_named_with_what_to_do(
    call, tmp_path, monkeypatch, capsys, verb
):
    absent = tmp_path / "no such file"
    call("status")
    monkeypatch.setenv("DGPP_CLUSTER_CONFIG", str(tmp_path / "c.json"))
    words = {"signal": ["INT"], "setup": ["--yes"]}.get(verb, [])
    assert cli.main([verb, *words, "--ssh-config", str(absent)]) == 1
    told = f"no such file: {absent}; without the option ssh reads ~/.ssh/config"
    assert capsys.readouterr().err == f"dgpp: error: --ssh-config: {told}\n"
    assert (tmp_path / "empty.env").read_text() == ""
