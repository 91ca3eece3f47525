"""What ssh says where it gets nowhere: the line that names the fault, and what mends it."""

from __future__ import annotations

import shutil

import pytest

from dgpp.cluster.errors import UnreachableError
from dgpp.cluster.messages import Look
from dgpp.cluster.node import RemoteNode
from dgpp.cluster.place import Place

LOOK = Look(Place("~/log", "~/stage", "d"), 1)
pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")


def said(config, host="h.invalid"):
    node = RemoteNode(1, host, ["dgpp"], ssh=["ssh", "-F", str(config)])
    with pytest.raises(UnreachableError) as found:
        node.ask(LOOK)
    node.close()
    return str(found.value).removeprefix(f"rank 1 at {host}: ")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Host *\n  Bogus yes\n", ["line 2", "option: bogus"]),
        ("Host *\n\n  Port abc\n", ["line 3", "Bad port 'abc'"]),
        ("Host *\n  Bogus yes\n  Port abc\n", ["line 2", "bogus", "line 3", "'abc'"]),
        ("Match foo bar\n", ["line 1", "attribute foo"]),
    ],
)
def test_each_line_of_a_bad_configuration_file(tmp_path, text, named):
    config = tmp_path / "ssh config"
    config.write_text(text)
    words = said(config)
    assert all(name in words for name in [str(config), *named]), words
    assert "terminating" not in words
    assert words.endswith("(mend that file, or name another with --ssh-config)")


def test_a_way_through_another_machine_that_is_closed(tmp_path):
    config = tmp_path / "config"
    config.write_text("Host h.invalid\n  ProxyCommand sh -c 'echo no gate >&2; exit 1'\n")
    words = said(config)
    assert "no gate" in words
    assert "UNKNOWN port" not in words
