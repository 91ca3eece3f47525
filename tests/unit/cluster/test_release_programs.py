"""What an install runs and writes: ended with it, and named where the disk has no room for it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from releases import FILES, archive, make_programs, whole
from small_disk import disk

from dgpp.cluster import release, release_programs
from dgpp.cluster.errors import ReleaseError
from dgpp.cluster.installed import installed
from dgpp.cluster.interruption import Interruption, StoppedError, raised
from dgpp.cluster.release import install
from dgpp.cluster.release_programs import Children
from dgpp.cluster.release_room import PIP_BYTES, room_of

PAGE = os.sysconf("SC_PAGE_SIZE")
FAKE_PYTHON = """#!/bin/sh
# Each module leaves a page; the last one is the real one, and compiles what the first has left.
lib=$(dirname "$0")/../lib
[ "$3" = compileall ] && exec {python} "$@"
mkdir -p "$lib" && head -c {page} /dev/zero | tr '\\0' '#' >"$lib/$3.py" && mkdir -p "$lib/$3.d"
"""


@pytest.fixture
def small(tmp_path):
    with disk(tmp_path / "releases", "128k") as folder:
        yield folder


def test_what_has_no_room_is_refused_before_a_byte_is_written(tmp_path, small):
    path = archive(tmp_path / "a.tar.zst", whole())
    with pytest.raises(ReleaseError) as found:
        install(path, small)
    # Five pages; beside pip's 17 MiB two of a wheel that is none.
    assert str(found.value) == (
        f"DGPP_RELEASE_DIR: {small}: 18 MiB are needed (1 MiB unpacked, 18 MiB its environment), "
        "0 MiB are free: make room there, or name another folder"
    )
    assert [file.name for file in small.iterdir()] == [".lock"]


def wheel(folder, name, *sizes):
    """A wheel of one module of each of `sizes`."""
    file = folder / name
    with zipfile.ZipFile(file, "w") as packed:
        for number, size in enumerate(sizes):
            packed.writestr(f"p/m{number}.py", b"#" * size)
        packed.writestr("p/data", b"x")
    return file.read_bytes()


def test_the_room_is_that_of_the_wheels_that_fit_here(tmp_path):
    this, other = os.uname().machine, "x86_64" if os.uname().machine != "x86_64" else "aarch64"
    minor = sys.version_info.minor
    fit = [
        "a-1-py3-none-any.whl",
        "b-1-py2.py3-none-any.whl",
        f"c-1-cp3{minor}-cp3{minor}-manylinux_2_28_{this}.manylinux2014_{this}.whl",
        f"d-1-cp39-abi3-manylinux_2_31_{this}.whl",
    ]
    not_fit = [
        f"c-1-cp3{minor + 1}-cp3{minor + 1}-manylinux_2_28_{this}.whl",
        f"c-1-cp3{minor}-cp3{minor}-manylinux_2_28_{other}.whl",
        f"d-1-cp39-abi3-manylinux_2_31_{other}.whl",
        f"e-1-cp39-cp39-manylinux_2_31_{this}.whl",
        "part0.whl",
    ]
    files = {f"wheels/{name}": wheel(tmp_path, name, 5000, 0) for name in (*fit, *not_fit)}
    room = room_of(archive(tmp_path / "a.tar.zst", whole(files)))
    # A module of two pages and as much again twice, the other file's one.
    assert room.programs - PIP_BYTES == len(fit) * (2 + 2 * 2 + 1) * 4096
    manifest = -(-sum(len(name) + 67 for name in files) // 4096)
    assert room.unpacked == (manifest + sum(-(-len(f) // 4096) for f in files.values())) * 4096


@pytest.fixture
def small_programs(monkeypatch):
    """An environment of some pages in place of half a minute's."""

    def create(place, symlinks):
        (place / "bin").mkdir(parents=True)
        python = place / "bin" / "python"
        python.write_text(FAKE_PYTHON.format(python=sys.executable, page=PAGE))
        python.chmod(0o755)
        (place / "bin" / "dgpp").touch()

    monkeypatch.setattr(release_programs.venv, "create", create)
    # As where something else fills the disk meanwhile.
    monkeypatch.setattr(release, "require_room", lambda *told: None)


def refused(path, releases):
    """Why it is not installed; empty where it is."""
    try:
        install(path, releases)
    except ReleaseError as error:
        return str(error)
    return ""


def test_a_disk_that_becomes_full_at_any_step_is_named_by_its_key(
    tmp_path, small, small_programs, monkeypatch
):
    path = archive(tmp_path / "a.tar.zst", whole(FILES | {"man/man1/dgpp.1": b"page"}))
    ran, real = [], Children.run

    def run(self, command, folder):
        ran.append(command[3])
        return real(self, command, folder)

    monkeypatch.setattr(Children, "run", run)
    reached = set()
    for free in range(1, 24):
        (small / "full").write_bytes(bytes((128 << 10) - free * PAGE))
        ran.clear()
        if not (error := refused(path, small)):
            break
        reached.add(len(ran))
        assert error == (
            f"DGPP_RELEASE_DIR: {small}: No space left on device; nothing was installed: make room "
            "there, or name another folder"
        )
        assert sorted(file.name for file in small.iterdir()) == [".lock", "full"]
        (small / "full").unlink()
    assert installed(small) == ["1.2.3"]
    # While it unpacks, and in each of the programs.
    assert reached == {0, 1, 2, 3}


def test_what_a_folder_is_refused_for_is_told_with_its_key(tmp_path):
    path = archive(tmp_path / "a.tar.zst", whole())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReleaseError) as found:
        install(path, tmp_path / "file" / "releases")
    where = tmp_path / "file" / "releases"
    assert str(found.value) == f"DGPP_RELEASE_DIR: {where}: Not a directory"


def test_modules_that_cannot_be_compiled_are_named_but_for_those_that_are_none(
    tmp_path, small_programs, monkeypatch
):
    path, releases = archive(tmp_path / "a.tar.zst", whole()), tmp_path / "releases"
    said = {
        "status": 1,
        "stdout": b"*** Error compiling 'a.py'...\nSyntaxError: x\n",
        "stderr": b"",
    }
    real = Children.run

    def run(self, command, folder):
        done = real(self, command, folder)
        if command[3] == "compileall":
            done.returncode, done.stdout, done.stderr = said.values()
        return done

    monkeypatch.setattr(Children, "run", run)
    assert install(path, releases)[0] == "1.2.3"
    for stdout, stderr in ((b"PermissionError: [Errno 13] x", b""), (b"", b"Traceback (most x")):
        said |= {"stdout": stdout, "stderr": stderr}
        with pytest.raises(ReleaseError, match=r"modules in .* cannot be compiled: .*x$"):
            install(archive(tmp_path / "b.tar.zst", whole(version="2")), releases)
        assert installed(releases) == ["1.2.3"]


def running(word):
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (place / "cmdline").read_bytes():
                found.append(place.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_a_program_has_started_before_it_is_told(
    tmp_path, monkeypatch, capfd, number
):
    path, releases = archive(tmp_path / "a.tar.zst", whole()), tmp_path / "releases"
    word = f"60.{os.getpid()}{int(number)}"

    def slow(release_, children):
        children.run(["/bin/sh", "-c", f"(trap '' INT TERM HUP; sleep {word}) & wait"], release_)

    def stop():
        end = time.monotonic() + 10
        while not any(
            Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep") for pid in running(word)
        ):
            assert time.monotonic() < end
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(release, "make_programs", slow)
    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(StoppedError) as found:
        install(path, releases)
    assert running(word) == []
    stopper.join()
    assert found.value.exit_status == 128 + number
    assert str(found.value) == f"stopped by {number.name}; nothing was left running"
    assert [file.name for file in releases.iterdir()] == [".lock"]
    assert capfd.readouterr().err == "stopping: what was started is being ended\n"
    # Nothing is in the way of the next one.
    monkeypatch.setattr(release, "make_programs", make_programs)
    assert install(path, releases)[0] == "1.2.3"


def stopped_beside(error):
    interruption = Interruption()
    with raised(interruption):
        interruption.held = True
        os.kill(os.getpid(), signal.SIGINT)
        interruption.left = "half of it is left"
        raise error


def test_what_goes_wrong_after_a_signal_is_told_beside_it():
    for error in (OSError(28, "No space left on device"), ReleaseError("not whole")):
        with pytest.raises(StoppedError) as found:
            stopped_beside(error)
        assert found.value.exit_status == 130
        assert str(found.value) == f"stopped by SIGINT; half of it is left; meanwhile: {error}"
        with pytest.raises(type(error)), raised(Interruption()):
            raise error
