"""What the pages tell a reader to type: every command and option of it is there."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

from dgpp.cli.main import command
from dgpp.config.flags import flagged

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "deploy" / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("getting-started", "operations", "networking", "demo", "forms")
    ),
]
PROGRAM = re.compile(r"(?:\S*/)?dgpp|(?:\./)?scripts/[\w.-]+")
NAMES = frozenset(command().commands)


def lines_of(page: str) -> list[str]:
    """What stands in its blocks and between its single backquotes, comments left out."""
    blocks = re.findall(r"```\w*\n(.*?)```", page, flags=re.S)
    rest = re.sub(r"```.*?```", "", page, flags=re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", rest)]
    # A pipe's further commands and what follows a comment's sign are not ours.
    return [re.split(r"\s(?:#|\||>|&&)", line)[0] for line in lines]


def commands_of(page: str) -> list[list[str]]:
    """The words of each command of ours, from its program on."""
    found = []
    for line in lines_of(page):
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        if words and PROGRAM.fullmatch(words[0]) and len(words) > 1:
            found.append(words)
    return found


@cache
def known(name: str, inner: str = "") -> frozenset[str]:
    """The options of a command."""
    found = command().commands[name].load()
    subcommands = getattr(found, "commands", {})
    if inner in subcommands:
        found = subcommands[inner]
    options = {option for p in found.params for option in (*p.opts, *p.secondary_opts)}
    return frozenset(options | {"--help", "-h"})


@cache
def script_options(script: Path) -> str:
    """The script's own words about its options."""
    return subprocess.run(
        [str(script), "--help"], capture_output=True, text=True, check=False, timeout=60
    ).stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_are_there(page):
    shown = commands_of(page.read_text())
    assert page.name == "forms.md" or shown
    for program, *words in shown:
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        if "scripts/" in program:
            script = ROOT / program
            assert script.is_file(), program
            allowed = script_options(script) if script.suffix == ".sh" else " ".join(options)
            if script.name == "setup.sh":
                allowed += " ".join(known("setup"))
            assert all(option in allowed for option in options), (program, options)
            continue
        name = words[0]
        if words == ["agent"]:
            # The launcher's own, which comes before the command line.
            continue
        if name.startswith("-"):
            assert name in ("--version", "--help", "--install-completion"), words
            continue
        assert name in NAMES, words
        inner = words[1] if len(words) > 1 else ""
        assert options <= known(name, inner), (words, options - known(name, inner))


def test_the_guide_shows_each_step_and_its_keys_exist():
    page = (ROOT / "docs" / "getting-started.md").read_text()
    used = {words[1] for words in commands_of(page) if words[0] == "dgpp"}
    assert {"up", "down", "status", "doctor", "fetch", "logs", "discover-roce", "plan"} <= used
    keys = set(re.findall(r"`((?:engine|http|ports|paths)\.\w+)", page))
    flags = {field.path for field in flagged()}
    assert keys <= flags | {"http.bind_host"}
