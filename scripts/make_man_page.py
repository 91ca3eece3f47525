#!/usr/bin/env python3
"""dgpp.1, made from the commands' own help: `scripts/make_man_page.py | man -l -`.

`--version VERSION` states that version at the foot of the page.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dgpp.cli.flags import help_text
from dgpp.cli.lazy import LazyCommand
from dgpp.cli.main import COMMANDS, command
from dgpp.config.flags import flag_metavar, flag_names, flagged, off_flag
from dgpp.config.key import Kind, fields
from dgpp.config.site import SiteSettings

DESCRIPTION = """
    dgpp serves large language models over an OpenAI-compatible HTTP API, on one machine or on
    several that sum over RoCE. A deployment is a JSON file; what belongs to a site stands in .env
    or in exported variables.

    Start with `dgpp setup`, or serve the demo model: `dgpp fetch demo`, then `dgpp run
    deploy/demo.json`.
"""
OPTIONS = (
    ("--version", "Print the version."),
    ("--install-completion", "Let this shell complete dgpp's commands and their values."),
    ("--show-completion", "Print what that installs."),
    ("--help", "Of dgpp and of every command: what it does and takes."),
)
STATUSES = (
    ("0", "orderly end"),
    ("1", "configuration, checkpoint or start-up error; the message names key, value and remedy"),
    ("2", "an actor failed while serving, or a stop was forced by a second signal"),
    ("3", "another rank ended the world; of `dgpp status`: not all ranks run"),
    ("130", "interrupted"),
)
FILES = (
    (".env", "settings of the site, in the working directory or at the checkout's root"),
    ("deploy/*.json", "deployments to begin with"),
    ("~/dgpp/log, ~/dgpp/stage", "logs and staged files of deployments; `dgpp paths` tells"),
    ("~/dgpp/releases", "installed releases"),
    ("~/.cache/huggingface/hub, ~/.cache/dgpp", "models, and what can be made again"),
)


def escaped(text: str) -> str:
    """`text` as roff prints it back: no line of it is a request, no hyphen is broken at."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))


def entry(term: str, said: str) -> str:
    return f".TP\n\\fB{escaped(term)}\\fR\n{escaped(' '.join(said.split()))}\n"


def paragraphs(text: str) -> str:
    """A docstring's paragraphs, each one run of words."""
    return ".PP\n".join(
        f"{escaped(' '.join(part.split()))}\n" for part in inspect.cleandoc(text).split("\n\n")
    )


def is_key_flag(param: Any) -> bool:
    return bool(param.name) and param.name.startswith("flag_")


def value_name(param: Any) -> str:
    """What stands for an option's value; empty for a switch."""
    if getattr(param, "is_flag", False):
        return ""
    return str(param.metavar or param.name.upper().replace("_", "-"))


def option_terms(param: Any) -> str:
    names = ", ".join([*param.opts, *param.secondary_opts])
    return f"{names} {value_name(param)}".strip()


def command_lines(name: str, found: Any) -> Iterator[str]:
    """The section of a command, and those of its subcommands."""
    words = [name]
    arguments, options, keys = [], [], False
    for param in found.params:
        if param.param_type_name == "argument":
            arguments.append(param)
            words.append(str(param.metavar or param.name.upper()))
        elif is_key_flag(param):
            keys = True
        elif not param.hidden and param.name != "help":
            options.append(param)
    subcommands = getattr(found, "commands", {})
    words += ["COMMAND"] if subcommands else []
    words += ["[OPTION]..."] if options or keys else []
    yield f".SS {escaped('dgpp ' + ' '.join(words))}\n"
    yield paragraphs(found.help or "")
    yield from (entry(str(p.metavar or p.name.upper()), p.help) for p in arguments if p.help)
    yield from (entry(option_terms(param), param.help or "") for param in options)
    if keys:
        yield ".PP\nThe flags of keys as well, below.\n"
    for inner, one in subcommands.items():
        yield from command_lines(f"{name} {inner}", one)


def key_lines() -> Iterator[str]:
    for field in flagged():
        names = ", ".join(flag_names(field))
        if field.kind is Kind.BOOLEAN:
            names += f", {off_flag(field)}"
        else:
            names += f" {flag_metavar(field)}"
        yield entry(names, f"{field.path}: {help_text(field)}")


def page(version: str = "") -> Iterator[str]:
    yield ".\\\" Made by scripts/make_man_page.py from the commands' own help.\n"
    yield f'.TH DGPP 1 "" "dgpp {version}" "User Commands"\n'.replace(' "dgpp "', ' "dgpp"')
    yield ".SH NAME\ndgpp \\- an inference server for large language models\n"
    yield ".SH SYNOPSIS\n.B dgpp\n.I COMMAND\n[OPTION]...\n"
    yield ".SH DESCRIPTION\n" + paragraphs(DESCRIPTION)
    yield ".SH OPTIONS\n"
    group = command()
    yield from (entry(*option) for option in OPTIONS)
    yield ".SH COMMANDS\n"
    for name, _, _ in COMMANDS:
        found = group.commands[name]
        assert isinstance(found, LazyCommand)
        yield from command_lines(name, found.load())
    yield ".SH FLAGS OF KEYS\n"
    yield "Each sets a key of the deployment, for this command alone.\n"
    yield from key_lines()
    yield ".SH EXIT STATUS\n" + "".join(entry(*status) for status in STATUSES)
    yield ".SH ENVIRONMENT\nEach may stand in .env as well; an exported one wins.\n"
    yield from (entry(name, field.key.doc) for name, field in fields(SiteSettings).items())
    yield ".SH FILES\n" + "".join(entry(*file) for file in FILES)
    yield ".SH SEE ALSO\ndocs/getting\\-started.md, docs/operations.md, docs/configuration.md\n"


def main(words: list[str]) -> int:
    if words and (words[0] != "--version" or len(words) != 2):
        sys.stderr.write(f"usage: make_man_page.py [--version VERSION]\n\n{__doc__}")
        return 1
    sys.stdout.write("".join(page(words[1] if words else "")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
