"""`dgpp setup` with peers in this process: what it asks, keeps, refuses and brings along."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fetch_site import HOSTS, MODEL, NearNode, NearSite
from serving import ROOT

from dgpp.cli.settings import load_settings
from dgpp.cluster.bring import bring
from dgpp.cluster.errors import ClusterError, UnreachableError
from dgpp.config.site import parse_env
from dgpp.net.roce import Gid, RoceDevice

NODES = f"127.0.0.1 {HOSTS[0]}"
OWN_PORT = "qwen3.8-27b-fp8-w1.json"


@pytest.fixture
def site(hub, tmp_path, monkeypatch, capsys):
    before = dict(os.environ)
    found = NearSite(hub, tmp_path, monkeypatch, capsys)
    for name in ("DGPP_NODES", "DGPP_ENV_FILE"):
        monkeypatch.delenv(name, raising=False)
    env = found.home / "site of mine.env"
    monkeypatch.setenv("DGPP_ENV_FILE", str(env))
    yield found
    # Answers are this process's from then on.
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def setup(site, monkeypatch, capsys):
    """`setup(words..., answers)`: the exit status and what was said."""
    from dgpp.cli import main as cli

    def run(*words: str, answers: str = "") -> tuple[int, str]:
        for name in [name for name in os.environ if name in parse_env_of(site)]:
            del os.environ[name]
        monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
        status = cli.main(["setup", *words])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def parse_env_of(site) -> dict[str, str]:
    file = site.home / "site of mine.env"
    return parse_env(file.read_text(), "site") if file.exists() else {}


@pytest.fixture
def config(site):
    file = site.home / "two nodes.json"
    document = {"model": MODEL, "world_size": 2, "engine": {"backend": "scripted"}}
    file.write_text(json.dumps(document))
    return file


def test_guided_by_answers_and_where_it_stopped_it_goes_on(site, setup, config):
    # A name that cannot be is asked for again; then the answers end.
    status, said = setup(answers=f"a b;c\n{NODES}\n")
    assert status == 1
    assert "DGPP_NODES: expected host names separated by spaces" in said
    assert "Login on the others: standard input has ended; --yes takes the defaults" in said
    assert parse_env_of(site) == {}
    status, said = setup("--deployment", str(config), answers=f"{NODES}\nme\n~/my models\n")
    assert status == 0, said
    assert "no RoCE device with an address on 127.0.0.1 127.0.0.2" in said
    known = parse_env_of(site)
    assert known == {
        "DGPP_NODES": NODES,
        "DGPP_SSH_USER": "me",
        "HF_HUB_CACHE": "~/my models",
        "DGPP_CLUSTER_CONFIG": str(config),
    }
    folder = f"models--{MODEL.replace('/', '--')}"
    for home in (site.home, site.peers[0]):
        assert (home / "my models" / folder / "refs/main").exists()
    assert "dgpp up " in said
    # Nothing is left to ask: no answer is read.
    status, said = setup()
    assert status == 0, said
    assert "sending" not in said
    assert parse_env_of(site) == known


def test_a_template_is_chosen_by_number_and_becomes_the_sites_own(site, setup):
    # From here on the home is this machine's alone.
    status, said = setup("--no-fetch", answers="\n\n77\nno such\n1\n")
    assert status == 0, said
    assert "'77': expected a number in 1.." in said
    own = site.home / "deployments" / "demo.json"
    assert parse_env_of(site) == {
        "DGPP_NODES": "localhost",
        "HF_HUB_CACHE": "~/.cache/huggingface/hub",
        "DGPP_CLUSTER_CONFIG": str(own),
    }
    assert json.loads(own.read_text())["model"] == "dgpp/demo"


def test_defaults_and_refusals_without_a_person(site, setup, config, hub):
    for words, message in (
        (["--nodes", "a;b"], "--nodes: DGPP_NODES: expected host names"),
        (["--nodes", "a a"], "a node is listed twice"),
        (["--nodes", NODES, "--ssh-user", "-oProxyCommand=x"], "DGPP_SSH_USER: expected a login"),
        (["--nodes", NODES, "--deployment", "nothing"], "nothing is neither a file nor one of"),
        (["--nodes", f"{NODES} {HOSTS[1]}"], "no template of"),
    ):
        status, said = setup("--yes", *words)
        assert status == 1, words
        assert message in said
        (site.home / "site of mine.env").unlink(missing_ok=True)
    given = json.loads(config.read_text())
    given["engine"] = {"backend": "cuda"}
    config.write_text(json.dumps(given))
    status, said = setup("--yes", "--nodes", NODES, "--deployment", str(config))
    assert status == 1
    assert "rank 1 at 127.0.0.2: engine.backend cuda: " in said
    # Found before a byte is fetched, and not the next run's choice.
    assert hub.sent == {}
    env = site.home / "site of mine.env"
    assert f"{env}: DGPP_CLUSTER_CONFIG: not written before that is mended" in said
    assert parse_env_of(site) == {"DGPP_NODES": NODES}


def test_a_deployment_for_a_machine_that_is_not_looked_at_is_named(site, setup, config):
    document = json.loads(config.read_text())
    del document["world_size"]
    config.write_text(json.dumps(document | {"nodes": ["127.0.0.1", HOSTS[1]]}))
    words = ["--yes", "--nodes", NODES]
    status, said = setup(*words, "--deployment", str(config))
    assert status == 1
    assert (
        f"nodes: {config} has 127.0.0.1 {HOSTS[1]}, the machines of this set-up (--nodes, "
        f"DGPP_NODES) are {NODES}, without {HOSTS[1]}: name the same in both"
    ) in said
    assert "DGPP_CLUSTER_CONFIG" not in parse_env_of(site)
    # Nor is it looked over by --check, where the site has it.
    (site.home / "site of mine.env").write_text(
        f"DGPP_NODES='{NODES}'\nDGPP_CLUSTER_CONFIG='{config}'\n"
    )
    status, said = setup("--yes", "--check")
    assert (status, f"without {HOSTS[1]}: name the same" in said) == (1, True)


def test_check_takes_a_site_that_is_not_there_yet(site, setup):
    before = sorted(site.home.rglob("*"))
    status, said = setup("--yes", "--check")
    assert status == 0, said
    assert "rank 0 at localhost: Python 3." in said
    assert sorted(site.home.rglob("*")) == before


def test_check_writes_nothing(site, setup):
    (site.home / "site of mine.env").write_text(
        f"DGPP_NODES={NODES}\n".replace("=", "='", 1).replace("\n", "'\n")
    )
    before = sorted(site.home.rglob("*"))
    status, said = setup("--yes", "--check")
    assert status == 0, said
    assert "rank 1 at 127.0.0.2: Python 3." in said
    assert sorted(site.home.rglob("*")) == before
    assert parse_env_of(site) == {"DGPP_NODES": NODES}


def test_another_version_there_is_named_or_replaced(site, setup, monkeypatch):
    class OldNode(NearNode):
        def reach(self, request, timeout_s):
            from msgspec.structs import replace

            return replace(super().reach(request, timeout_s), version="0.0.1")

    monkeypatch.setattr("dgpp.cluster.deployment.RemoteNode", OldNode)
    status, said = setup("--yes", "--no-install", "--nodes", NODES)
    assert status == 1
    assert "127.0.0.2: no dgpp " in said
    assert "install the same release there (docs/getting-started.md)" in said
    brought = []
    monkeypatch.setattr("dgpp.cli.wizard.bring", lambda node, *told: brought.append(node.host))
    status, said = setup("--nodes", NODES, answers="no\n")
    assert status == 1
    assert brought == []
    setup("--yes", "--nodes", NODES)
    assert brought == ["127.0.0.2"]


def lose(monkeypatch, host):
    """`host` is not reached; what was asked of it is nothing that ssh lets in."""

    class GoneNode(NearNode):
        def reach(self, request, timeout_s):
            if self.host == host:
                raise UnreachableError(f"{self.name}: Could not resolve hostname (no such name)")
            return super().reach(request, timeout_s)

    monkeypatch.setattr("dgpp.cluster.deployment.RemoteNode", GoneNode)
    monkeypatch.setattr("dgpp.cli.wizard.lets_in", lambda node: node.host != host)


def test_answers_are_kept_when_all_machines_were_reached(site, setup, config, monkeypatch):
    env = site.home / "site of mine.env"
    env.write_text("# mine\nDGPP_LOG_LEVEL=debug\n")
    with monkeypatch.context() as gone:
        lose(gone, HOSTS[1])
        words = ["--nodes", f"127.0.0.1 {HOSTS[1]}", "--ssh-user", "you", "--hub-cache", "~/wrong"]
        status, said = setup("--yes", *words)
        assert status == 1
        assert f"rank 1 at {HOSTS[1]}: Could not resolve hostname" in said
        assert (
            f"{env}: DGPP_NODES, DGPP_SSH_USER, HF_HUB_CACHE: not written before all machines are "
            "reached"
        ) in said
        assert env.read_text() == "# mine\nDGPP_LOG_LEVEL=debug\n"
        # What is known already is no answer of this run.
        env.write_text(f"DGPP_NODES='127.0.0.1 {HOSTS[1]}'\nDGPP_SSH_USER=me\nHF_HUB_CACHE=/h\n")
        assert "not written" not in setup("--yes")[1]
    status, said = setup("--yes", "--nodes", NODES, "--deployment", str(config), "--no-fetch")
    assert parse_env_of(site)["DGPP_NODES"] == NODES


def test_a_device_that_no_machine_has_is_asked_for_again(site, setup, config, monkeypatch):
    gid = Gid(3, "fd00::1", "RoCE v2", "eth9")
    lanes = [RoceDevice(n, "4: ACTIVE", "100 Gb/sec", "Ethernet", (gid,)) for n in ("r0", "r1")]
    monkeypatch.setattr("dgpp.cluster.survey.devices", lambda: lanes)
    _, said = setup(
        *("--nodes", NODES, "--ssh-user", "me", "--hub-cache", "~/h", "--no-fetch"),
        *("--deployment", str(config)),
        answers="r9\nr1\n",
    )
    assert "no r9 on 127.0.0.1; there are r0 r1" in said
    assert parse_env_of(site)["DGPP_ROCE_DEVICES"] == "r1"


def test_other_ports_are_kept_where_the_deployment_is_silent(site, setup, config):
    env = site.home / "site of mine.env"
    usual = ["--yes", "--nodes", NODES, "--no-fetch"]
    words = ["--port", "9001", "--journal-port", "9002", "--fabric-port", "9003"]
    setup(*usual, "--deployment", str(config), *words)
    known = parse_env_of(site)
    assert {name: known[name] for name in known if name.endswith("_PORT")} == {
        "DGPP_HTTP_PORT": "9001",
        "DGPP_JOURNAL_PORT": "9002",
        "DGPP_FABRIC_PORT": "9003",
    }
    assert load_settings(config, ()).http.port == 9001
    # One that has its own says so, and nothing is kept.
    document = json.loads(config.read_text())
    config.write_text(json.dumps(document | {"http": {"port": 8000}}))
    before = env.read_text()
    status, said = setup(*usual, "--port", "9004")
    assert status == 1
    assert f"http.port: {config} says 8000 itself; change it there" in said
    assert env.read_text() == before
    status, said = setup(*usual, "--journal-port", "9003")
    assert status == 1
    assert "DGPP_JOURNAL_PORT: ports.journal: must differ from ports.fabric, both are 9003" in said
    assert env.read_text() == before


def test_a_template_with_a_port_of_its_own_gets_the_one_that_is_asked_for(site, setup):
    setup("--yes", "--nodes", "localhost", "--no-fetch", "--port", "9005", "--deployment", OWN_PORT)
    own = json.loads((site.home / "deployments" / OWN_PORT).read_text())
    assert json.loads((ROOT / "deploy" / OWN_PORT).read_text())["http"]["port"] == 8000
    assert own["http"]["port"] == 9005


def test_the_commands_that_follow_reach_the_nodes_as_this_one_did(site, setup, config, tmp_path):
    ssh = tmp_path / "an ssh config"
    ssh.touch()
    usual = ["--yes", "--nodes", NODES, "--deployment", str(config)]
    status, said = setup(*usual, "--ssh-config", str(ssh), "--bin", "/opt/dgpp")
    assert status == 0, said
    named = f"DGPP_ENV_FILE='{site.home}/site of mine.env'"
    for verb in ("up", "status", "logs -f", "down"):
        (line,) = [line for line in said.splitlines() if f"dgpp {verb} " in line]
        words = shlex.split(line, comments=True)
        assert words[0] == shlex.split(named)[0]
        assert words[-4:] == ["--bin", "/opt/dgpp", "--ssh-config", str(ssh)]
        assert words[2:-4] == verb.split()
    assert "dgpp chat  " in said


@pytest.fixture
def tree(tmp_path):
    """A checkout of two files, one of which installs it."""
    folder = tmp_path / "my checkout; $(touch oops)"
    (folder / "scripts").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\nother = "0.1.0"\n')
    script = folder / "scripts" / "setup.sh"
    script.write_text('#!/bin/sh\ncd "$(dirname "$0")/.." && echo "$1" >installed\n')
    script.chmod(0o755)
    (folder / "not known to git").write_text("secret")
    for words in (["init", "-q"], ["add", "pyproject.toml", "scripts"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def test_a_checkout_is_brought_along_stamped_and_installed(site, tree, tmp_path, monkeypatch):
    # The same folder there is another one here.
    there = tmp_path / "there"
    ssh = tmp_path / "ssh elsewhere"
    ssh.write_text(
        Path(NearNode.ssh_program)
        .read_text()
        .replace('exec sh -c "$*"', f'exec sh -c "$(echo "$*" | sed \'s#{tmp_path}#{there}#g\')"')
    )
    ssh.chmod(0o755)
    monkeypatch.setattr(NearNode, "ssh_program", str(ssh))
    node = NearNode(1, HOSTS[0], ["dgpp"])
    bring(node, tree, "0.1.0+gabc")
    copy = there / tree.name
    files = {str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file()}
    assert files == {"pyproject.toml", "scripts/setup.sh", "installed"}
    assert (copy / "installed").read_text() == "--prepare\n"
    text = (copy / "pyproject.toml").read_text()
    assert text == '[project]\nversion = "0.1.0+gabc"\nother = "0.1.0"\n'
    (copy / ".git").mkdir()
    with pytest.raises(ClusterError, match="is a checkout of its own there"):
        bring(node, tree, "0.1.0+gabc")
    shutil.rmtree(copy)
    (tree / "scripts" / "setup.sh").write_text("#!/bin/sh\necho no network >&2; exit 3\n")
    with pytest.raises(ClusterError, match=r"rank 1 at 127.0.0.2: installing dgpp: no network"):
        bring(node, tree, "0.1.0+gabc")
    assert not list(tmp_path.rglob("oops"))
