"""The manual's page: every command, option and key is in it, and roff has nothing to say of it."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from dgpp.cli.main import COMMANDS
from dgpp.cluster.release import _add_pages
from dgpp.config.flags import flag_names, flagged
from dgpp.config.key import fields
from dgpp.config.site import SiteSettings

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "make_man_page.py"))


@pytest.fixture(scope="module")
def page():
    return "".join(SCRIPT["page"]("1.2.3"))


def plain(page):
    """The page's words, its escapes undone."""
    return page.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def test_every_command_and_its_options_are_in_it(page):
    group = SCRIPT["command"]()
    text = plain(page)
    for name, _, _ in COMMANDS:
        assert f".SS dgpp {name}" in text
        for param in group.commands[name].load().params:
            if param.param_type_name == "option" and not param.hidden:
                assert all(option in text for option in param.opts), (name, param.opts)
    for field in flagged():
        assert all(flag in text for flag in flag_names(field))
    for key in fields(SiteSettings):
        assert f"\\fB{key}\\fR" in text
    assert ".SS dgpp agent" not in text
    assert '"dgpp 1.2.3"' in text


def test_texts_stay_texts():
    escaped = SCRIPT["escaped"]
    assert escaped(".so /etc/passwd\n'br") == "\\&.so /etc/passwd\n\\&'br"
    assert escaped("a\\b --c → d") == "a\\eb \\-\\-c \\[u2192] d"


def test_roff_has_nothing_to_say(page):
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("needs groff")
    done = subprocess.run(
        [groff, "-man", "-ww", "-Tutf8"], input=page.encode(), capture_output=True, check=True
    )
    assert done.stderr == b""
    said = re.sub(rb".\x08|\x1b\[[0-9;]*m", b"", done.stdout).decode()
    assert "dgpp fetch [MODEL] [OPTION]..." in said


def test_an_installed_release_has_the_page_where_man_looks(tmp_path, page):
    source = tmp_path / "man" / "man1" / "dgpp.1"
    source.parent.mkdir(parents=True)
    source.write_text(page)
    _add_pages(tmp_path)
    assert (tmp_path / "venv" / "share" / "man" / "man1" / "dgpp.1").read_text() == page
    _add_pages(tmp_path / "of an older release")
