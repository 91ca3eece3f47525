"""The programs of an unpacked release: an environment of its own, which other programs make."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from dgpp.checkpoint.receive import free_bytes
from dgpp.cluster.errors import ReleaseError
from dgpp.cluster.interruption import Interruption
from dgpp.cluster.release_room import FULL

LOOK_S = 0.1
"""How soon a signal is seen while a program runs."""


_READ_BY_A_SHELL = re.compile(r"""["$`\\:\x00-\x1f\x7f]""")
_BARE = re.compile(r"""['#&()*;<>?{|}~!\[\]]""")
_BARE_LENGTH = 70
"""Of a folder of releases: with what follows it there, more than a kernel reads of a first line."""


def refuse_place(releases: Path, key: str) -> None:
    """Raise ReleaseError where pip's programs in `releases`, whose first lines a shell reads, would
    not mean that folder. `key` names it."""
    place = str(releases.absolute())
    found = _READ_BY_A_SHELL.search(place)
    if not found and " " not in place and len(os.fsencode(place)) > _BARE_LENGTH:
        found = _BARE.search(place)
    if found:
        shown = found[0] if found[0].isprintable() else repr(found[0])
        raise ReleaseError(
            f"{key}: a shell would not take the folder {place!r} as it is, for its {shown}; "
            "nothing was installed: name another folder"
        )


class Children:
    """Programs that an install runs. Each holds its `lock`, and so does whatever it starts: where
    the install is killed, no other begins before all have ended. A signal ends them first."""

    def __init__(self, lock: int, interruption: Interruption) -> None:
        self._lock = lock
        self._interruption = interruption

    def run(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
        """`command` at its end, its temporary files in `folder`. Raises OSError, also where the
        disk became full; StoppedError when nothing of it runs any more."""
        with (
            self._interruption.only_noted(),
            # Of what is open, a program's own children get standard input and output alone.
            subprocess.Popen(
                command,
                stdin=self._lock,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"TMPDIR": str(folder)},
                start_new_session=True,
            ) as running,
        ):
            said = self._heard(running)
        if running.returncode:
            for number in FULL:
                if any(os.strerror(number).encode() in text for text in said):
                    raise OSError(number, os.strerror(number))
        return subprocess.CompletedProcess(command, running.returncode, *said)

    def _heard(self, running: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        """What it said, when it and all that it started have closed their output."""
        while True:
            try:
                return running.communicate(timeout=LOOK_S)
            except subprocess.TimeoutExpired:
                if self._interruption:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(running.pid, signal.SIGKILL)


def make_programs(release: Path, children: Children) -> None:
    """An environment of its own, from the release's wheels alone. Modules are compiled by as many
    processes as there are cores, where pip takes one. Raises ReleaseError, OSError."""
    place = release / "venv"
    venv.create(place, symlinks=True)
    with TemporaryDirectory(dir=release, prefix=".made-") as folder:
        _fill(release, place, children, Path(folder))
    if not free_bytes(release):
        # A module that was cut short there is taken for a whole one until it is loaded.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fill(release: Path, place: Path, children: Children, folder: Path) -> None:
    extras = (release / "EXTRAS").read_text().strip() if (release / "EXTRAS").exists() else ""
    # Isolated: what else this machine has is not asked.
    python = [str(place / "bin" / "python"), "-I", "-m"]
    done = children.run([*python, "ensurepip", "--default-pip"], folder)
    if done.returncode:
        raise ReleaseError(f"no pip for {place}: {_last(done)}; is python3-venv installed?")
    wheels = ["--no-index", "--find-links", str(release / "wheels")]
    pip = [*python, "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    done = children.run([*pip, *wheels, f"dgpp[{extras}]" if extras else "dgpp"], folder)
    if done.returncode:
        number = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ReleaseError(
            f"its wheels do not fit Python {number} on {os.uname().machine}: {_last(done)}"
        )
    done = children.run([*python, "compileall", "-q", "-j", "0", str(place / "lib")], folder)
    # Some packages carry files that are no modules of this Python; pip lets them pass too.
    if done.returncode and (b"[Errno " in done.stdout or b"Traceback" in done.stderr):
        raise ReleaseError(f"modules in {place} cannot be compiled: {_last(done)}")


def _last(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a program said at its end, of what went wrong where it says that apart."""
    said = done.stderr.strip() or done.stdout.strip()
    return " ".join(said.decode(errors="replace").splitlines()[-3:])
