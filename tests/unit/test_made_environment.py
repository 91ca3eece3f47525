"""scripts/lib.sh's `make_venv`, with an interpreter that only seems to make an environment."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from launching import gone
from serving import ROOT

PYTHON = """#!/bin/sh
told=$*
at() {
    echo "$1" >>"$MADE/stages"
    case $STOP_AT in
    "hold $1") echo $$ >"$MADE/held.new"; mv "$MADE/held.new" "$MADE/held"; sleep 60 ;;
    "fail $1") echo 'No space left on device' >&2; exit 1 ;;
    esac
}
here=$(dirname "$0")/..
case $told in
-c* | --version) ;;
"-m venv "*)
    place=${told#-m venv }
    mkdir -p "$place/bin"
    cp "$0" "$place/bin/python"
    at venv
    touch "$place/pip" ;;
*"-m pip --version") [ -e "$here/pip" ] ;;
*"-m pip install "*) at install; touch "$here/served" ;;
*) [ -e "$here/served" ] && echo "ran $told" ;;
esac
"""


def within_time(happens):
    end = time.monotonic() + 20
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.01)


class Checkout:
    def __init__(self, folder, name):
        self.root = folder / name
        (self.root / "scripts").mkdir(parents=True)
        for script in ("lib.sh", "setup.sh"):
            shutil.copy(ROOT / "scripts" / script, self.root / "scripts" / script)
        (self.root / "pyproject.toml").touch()
        self.made = folder / "made"
        self.made.mkdir()
        python = folder / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        self.told = os.environ | {"PYTHON": str(python), "MADE": str(self.made), "STOP_AT": ""}

    def start(self, stop_at="", *words):
        return subprocess.Popen(
            [str(self.root / "scripts" / "setup.sh"), *words],
            cwd=self.root.parent,
            env=self.told | {"STOP_AT": stop_at},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, stop_at="", *words):
        running = self.start(stop_at, *words)
        said, _ = running.communicate(timeout=30)
        return running.returncode, said

    def held(self):
        """The process that waits where it was told to, once it does."""
        file = self.made / "held"
        within_time(file.exists)
        pid = int(file.read_text())
        file.unlink()
        return pid

    def stages(self):
        file = self.made / "stages"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path, "a check'out; (mine)")


@pytest.mark.parametrize("stage", ["venv", "install"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_a_signal_cuts_short_is_made_anew(checkout, stage, number):
    running = checkout.start(f"hold {stage}", "--prepare")
    pid = checkout.held()
    os.kill(running.pid, number)
    said, _ = running.communicate(timeout=20)
    assert running.returncode == 128 + number
    assert f"stopped by {number.name}; " in said
    within_time(lambda: gone([pid]))
    assert "ran -P -m dgpp setup --yes" in checkout.run("", "--yes")[1]
    assert checkout.stages()[-2:] == ["venv", "install"]


@pytest.mark.parametrize("stage", ["venv", "install"])
def test_one_whose_makers_are_killed_or_find_no_room_is_made_anew(checkout, stage):
    running = checkout.start(f"hold {stage}", "--prepare")
    group = os.getpgid(checkout.held())
    for pids in (running.pid, group):
        os.killpg(pids, signal.SIGKILL)
    running.communicate(timeout=20)
    for _ in range(2):
        status, said = checkout.run(f"fail {stage}", "--prepare")
        assert status == 1
        assert "No space left on device" in said
        assert checkout.stages()[-2:] != ["install", "install"]
    assert "ran -P -m dgpp setup --yes" in checkout.run("", "--yes")[1]


def test_one_from_before_the_mark_without_pip_is_made_anew(checkout):
    place = checkout.root / ".venv" / "bin"
    place.mkdir(parents=True)
    shutil.copy(checkout.told["PYTHON"], place / "python")
    assert "ran -P -m dgpp setup --yes" in checkout.run("", "--yes")[1]


def test_a_whole_one_stays_where_pip_fails_on_it(checkout):
    assert checkout.run("", "--prepare")[0] == 0
    (checkout.root / "pyproject.toml").write_text("# another\n")
    status, said = checkout.run("fail install", "--prepare")
    assert (status, "pip could not install the project" in said) == (1, True)
    assert checkout.run("", "--prepare")[0] == 0
    assert checkout.stages() == ["venv", "install", "install", "install"]
    # And nothing is done where nothing has changed.
    assert checkout.run("", "--prepare") == (0, "")


def test_the_second_waits_for_the_first_even_where_that_is_killed(checkout):
    first = checkout.start("hold install", "--prepare")
    pid = checkout.held()
    first.kill()
    second = checkout.start("", "--prepare")
    assert second.stdout.readline().endswith("waiting for its end\n")
    assert second.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(os.getpgid(pid), signal.SIGKILL)
    second.communicate(timeout=20)
    first.communicate(timeout=20)
    assert second.returncode == 0
    assert checkout.stages() == ["venv", "install", "venv", "install"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("pa th; $(touch oops) 'q", "$"),
        ("a `b`", "`"),
        ('a "b"', '"'),
        ("a\\b", "\\"),
        ("a:b", ":"),
        ("a\tb", "$'\\t'"),
        ("a\nb", "$'\\n'"),
        (f"{'long' * 30};b", ";"),
    ],
)
def test_a_folder_that_a_shell_would_read_otherwise_is_refused(tmp_path, name, shown):
    checkout = Checkout(tmp_path, name)
    status, said = checkout.run("", "--prepare")
    assert status == 1
    assert f"for its {shown}; nothing was made: move the checkout to another folder" in said
    assert checkout.stages() == []
    assert sorted(file.name for file in checkout.root.iterdir()) == ["pyproject.toml", "scripts"]
    assert not list(tmp_path.rglob("oops"))


def test_no_folder_called_dgpp_stands_for_the_package():
    # ~/dgpp has logs and what is staged: without -P it would be found first in a home.
    files = [*ROOT.glob("scripts/**/*.sh"), *ROOT.glob("dgpp/c*/*.py")]
    calls = re.compile(r"""\$(?:PY|python|\(printf %q "\$PY"\))"? .*-m dgpp|executable.*"dgpp\"""")
    found = [line for file in files for line in calls.findall(file.read_text())]
    assert len(found) == 9
    assert all(" -P -m dgpp" in line or '"-P", "-m", "dgpp"' in line for line in found)
