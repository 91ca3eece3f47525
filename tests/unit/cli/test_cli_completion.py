"""What the shells offer: commands, options, deployments, models, nodes, ranks, releases."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dgpp.cli import main as cli
from dgpp.cli.main import COMMANDS

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with deployments, a site of two nodes, a release and a cached model."""
    for name in list(os.environ):
        if name.startswith(("DGPP_", "HF_", "XDG_")):
            monkeypatch.delenv(name)
    release = tmp_path / "releases" / "0.1.0+gabc" / "venv" / "bin"
    release.mkdir(parents=True)
    (release / "dgpp").touch()
    (tmp_path / "hub" / "models--org--tiny").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    for name in ("mine/two nodes.json", "mine/readme.md", "one.json"):
        (tmp_path / name).touch()
    (tmp_path / ".env").write_text(
        f"DGPP_NODES='spark-a spark-b'\nDGPP_RELEASE_DIR={tmp_path}/releases\n"
    )
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def offered(place, monkeypatch, capsys):
    """`offered("dgpp up ")`: what bash is told after these words."""

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_DGPP_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit) as end:
            cli.main([])
        assert end.value.code == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out.split("\n")[:-1]

    return complete


def test_every_command_is_offered_and_completes_its_own_options(offered):
    names = {name for name, _, _ in COMMANDS}
    assert set(offered("dgpp ")) == names
    assert "agent" not in offered("dgpp a")
    for name in names:
        group = name in ("check", "bench")
        found = offered(f"dgpp {name} " + ("" if group else "--"))
        assert found != [""], name
        assert "--help" in found or group, name


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dgpp run m", ["mine/"]),
        ("dgpp up mine/", ["mine/two nodes.json"]),
        ("dgpp status o", ["one.json"]),
        ("dgpp fetch --config mine/t", ["mine/two nodes.json"]),
        ("dgpp up --release ", ["0.1.0+gabc"]),
        ("dgpp up --release 9", [""]),
        ("dgpp up --backend cu", ["cuda"]),
        ("dgpp logs --rank ", ["0", "1"]),
        ("dgpp setup --nodes spark-", ["spark-a", "spark-b"]),
        ("dgpp setup --deployment one", ["one.json"]),
        ("dgpp fetch ", ["demo", "org/tiny"]),
        ("dgpp fetch org/", ["org/tiny"]),
        ("dgpp run nowhere/", [""]),
    ],
)
def test_values_are_offered(offered, line, expected):
    assert offered(line) == expected


def test_with_nothing_typed_the_templates_are_offered_too(offered):
    found = offered("dgpp up ")
    assert {"one.json", "mine/"} <= set(found)
    assert [name for name in found if name.endswith("deploy/demo.json")]


def test_a_broken_site_completes_as_none(offered, place):
    (place / ".env").write_text("nonsense")
    assert offered("dgpp logs --rank ") == [""]
    assert offered("dgpp up --release ") == [""]


@pytest.fixture
def program(place):
    """A folder for PATH with a `dgpp` in it."""
    folder = place / "bin"
    folder.mkdir()
    (folder / "dgpp").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dgpp "$@"\n')
    (folder / "dgpp").chmod(0o755)
    return folder


SHELLS = {
    "bash": 'eval "$(dgpp --show-completion)"; COMP_WORDS=(dgpp up mine/t); COMP_CWORD=2; '
    '_dgpp_completion dgpp; echo "${COMPREPLY[*]}"',
    "fish": "dgpp --show-completion | source; complete -C 'dgpp up mine/t'",
    "zsh": "compdef() { :; }; _arguments() { echo $@; }; CURRENT=3; words=(dgpp up mine/t); "
    'eval "$(dgpp --show-completion)"; _dgpp_completion',
}


@pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(name, marks=pytest.mark.long) for name in ("fish", "zsh"))]
)
def test_a_shell_that_has_read_the_script_offers_a_deployment(program, shell):
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"needs {shell}")
    path = f"{program}:{os.environ['PATH']}"
    script = f"{SHELLS[shell]}\n"
    done = subprocess.run(
        # As somebody's own shell is: with a command that is not its last one.
        [found, "-c", f"{script}:\n"],
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(program)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "mine/two nodes.json" in done.stdout, done.stderr
