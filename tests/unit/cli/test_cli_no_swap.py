"""DGPP_NO_SWAP starts the command anew in a scope without swap, once, or says why it cannot."""

from __future__ import annotations

import os
import sys

import pytest

from dgpp.cli.no_swap import has_swap, keep_out_of_swap, swap_limit
from dgpp.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    tool = tmp_path / "systemd-run"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return str(tmp_path)


def play(environ, *, swaps=True, limit="max"):
    """What would be executed, or nothing."""
    done = []
    keep_out_of_swap(
        environ,
        ["run", "c.json"],
        swaps=lambda: swaps,
        limit=lambda: limit,
        execute=lambda *call: done.append(call),
    )
    return done


def test_the_command_starts_anew_in_a_scope(path):
    [(file, arguments, environ)] = play({"DGPP_NO_SWAP": "1", "PATH": path})
    assert file == arguments[0] == "systemd-run"
    assert ("--user" in arguments) == (os.geteuid() != 0)
    assert arguments[-7:] == ["--", sys.executable, "-P", "-m", "dgpp", "run", "c.json"]
    assert "MemorySwapMax=0" in arguments
    with pytest.raises(ConfigError, match="did not set MemorySwapMax=0"):
        play(environ)
    assert play(environ, limit="0") == []


@pytest.mark.parametrize("environ", [{}, {"DGPP_NO_SWAP": ""}, {"DGPP_NO_SWAP": "0"}])
def test_nobody_asked(environ):
    assert play(environ) == []


def test_nothing_to_keep_out_of(path):
    asked = {"DGPP_NO_SWAP": "1", "PATH": path}
    assert play(asked, swaps=False) == []
    assert play(asked, limit="0") == []


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"DGPP_NO_SWAP": "yes"}, "DGPP_NO_SWAP: expected 0 or 1, got yes"),
        ({"DGPP_NO_SWAP": "1", "PATH": "/nonexistent"}, "no systemd-run to stop it"),
    ],
)
def test_what_cannot_be_had_is_named(environ, said):
    with pytest.raises(ConfigError, match=said):
        play(environ)


def test_what_the_kernel_says_is_read(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("1:name=x:/a\n0::/user/dgpp.scope\n")
    group = tmp_path / "groups" / "user" / "dgpp.scope"
    group.mkdir(parents=True)
    assert swap_limit(tmp_path, tmp_path / "groups") == ""
    (group / "memory.swap.max").write_text("0\n")
    assert swap_limit(tmp_path, tmp_path / "groups") == "0"
    assert swap_limit(tmp_path / "absent") == ""
    (tmp_path / "swaps").write_text("Filename Type Size\n")
    assert not has_swap(tmp_path)
    (tmp_path / "swaps").write_text("Filename Type Size\n/swap file 1\n")
    assert has_swap(tmp_path)
    assert not has_swap(tmp_path / "absent")
