"""Archives of releases: what is whole is unpacked byte for byte, and nothing else is."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import tarfile
import time

import pytest
from cut_short import cut_short
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from releases import FILES, archive, make_programs, whole

from dgpp.cli import main as cli
from dgpp.cluster import release
from dgpp.cluster.errors import ReleaseError
from dgpp.cluster.installed import UNFINISHED, installed, program_of
from dgpp.cluster.release import install
from dgpp.cluster.release_archive import DAMAGED, MANIFEST, unpack


def test_a_whole_archive_is_unpacked_as_it_was(tmp_path):
    target = tmp_path / "new"
    assert unpack(archive(tmp_path / "a.tar.zst", whole()), target) == "1.2.3"
    for name, data in FILES.items():
        assert (target / name).read_bytes() == data
    assert (target / "run").stat().st_mode & 0o777 == 0o755
    assert (target / "docs/read me.md").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (whole()[1:], "comes before MANIFEST.sha256"),
        (whole()[:-1], "run: MANIFEST.sha256 names it, but it is not there"),
        ([*whole(), ("dgpp-1.2.3/more", b"")], "MANIFEST.sha256 does not name it"),
        ([*whole(), whole()[1]], "or it comes twice"),
        ([*whole(), ("dgpp-9/run", b"")], "an archive has one folder"),
        ([*whole(), ("dgpp-1.2.3/../../run", b"")], "not a file of a release"),
        ([*whole(), ("/etc/passwd", b"")], "not a file of a release"),
        ([*whole(), ("elsewhere/run", b"")], "not a file of a release"),
        ([("dgpp-1.2.3/" + MANIFEST, b"nonsense\n")], "not a line of it"),
        ([], "no MANIFEST.sha256 in it"),
    ],
)
def test_what_is_no_release_is_refused(tmp_path, members, said):
    path = archive(tmp_path / "a.tar.zst", members)
    with pytest.raises(ReleaseError, match=said):
        unpack(path, tmp_path / "new")
    with pytest.raises(ReleaseError) as found:
        install(path, tmp_path / "releases")
    assert str(found.value).count(f"{path}: ") == 1
    assert str(found.value).endswith(f"; {DAMAGED}")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_only_files_are_unpacked(tmp_path, kind):
    members = [*whole(), ("dgpp-1.2.3/odd", b"")]
    with pytest.raises(ReleaseError, match="odd: not a file of a release"):
        unpack(archive(tmp_path / "a.tar.zst", members, kind), tmp_path / "new")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_anywhere_installs_nothing(tmp_path, data):
    path = archive(tmp_path / "a.tar.zst", whole())
    content = bytearray(path.read_bytes())
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "a.tar.zst.sha256").write_text(f"{digest}  a.tar.zst\n")
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    target = tmp_path / "new"
    try:
        unpack(path, target)
    except ReleaseError:
        pass
    else:
        # It was in what no file holds, as the bytes between two of them.
        assert {name: (target / name).read_bytes() for name in FILES} == FILES
    finally:
        shutil.rmtree(target)
    releases = tmp_path / "releases"
    with pytest.raises(ReleaseError, match=r"not that of a.tar.zst.sha256: .* copy both here once"):
        install(path, releases)
    assert installed(releases) == []
    assert [file.name for file in releases.iterdir()] == [".lock"]


def test_an_archive_cut_short_installs_nothing(tmp_path):
    path = archive(tmp_path / "a.tar.zst", whole())
    content = path.read_bytes()
    for size in range(0, len(content), 37):
        path.write_bytes(content[:size])
        with pytest.raises(ReleaseError) as found:
            install(path, tmp_path / "releases")
        assert str(found.value).startswith(f"{path}: ")
        assert str(found.value).endswith(f"; {DAMAGED}")


def test_which_releases_there_are_and_how_one_comes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DGPP_RELEASE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["releases"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"no release is installed in {tmp_path} (DGPP_RELEASE_DIR): "
        "`dgpp install dgpp-VERSION.tar.zst` installs one\n"
    )
    program = program_of(tmp_path / "1.2.3")
    program.parent.mkdir(parents=True)
    program.touch()
    assert cli.main(["releases"]) == 0
    assert tuple(capsys.readouterr()) == ("1.2.3\n", "")


@pytest.mark.parametrize("name", ["a $(touch oops)", "a:b", "a\nb", "`a`", f"{'long' * 20};b"])
def test_a_folder_that_a_shell_would_read_otherwise_is_refused(tmp_path, name):
    with pytest.raises(ReleaseError, match=r"^DGPP_RELEASE_DIR: a shell would not take the folder"):
        install(archive(tmp_path / "a.tar.zst", whole()), tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar.zst"]


def test_a_release_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "releases" / "1.2.3").mkdir(parents=True)
    with pytest.raises(ReleaseError, match="is there already"):
        install(archive(tmp_path / "a.tar.zst", whole()), tmp_path / "releases")
    with pytest.raises(ReleaseError, match=r"nowhere.tar.zst: No such file"):
        install(tmp_path / "nowhere.tar.zst", tmp_path / "releases")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_install_that_is_ended_at_any_step_leaves_no_half_of_a_release(
    tmp_path, monkeypatch, number
):
    path, releases = archive(tmp_path / "a.tar.zst", whole()), tmp_path / "releases"
    monkeypatch.setattr(release, "make_programs", make_programs)
    # Kept small: another release stays as it is.
    assert install(archive(tmp_path / "b.tar.zst", whole(version="0.9")), releases)[0] == "0.9"
    statuses = []
    for status in cut_short(lambda: install(path, releases), number, str(releases)):
        statuses.append(status)
        if installed(releases) != ["0.9"]:
            # The signal came after all was done.
            assert installed(releases) == ["0.9", "1.2.3"]
            assert not (releases / "1.2.3" / UNFINISHED).exists()
        elif number != signal.SIGKILL:
            assert sorted(file.name for file in releases.iterdir()) == [".lock", "0.9"]
        else:
            # The next one works where this one did not.
            install(path, releases)
        assert not list(releases.glob(".*.partial"))
        shutil.rmtree(releases / "1.2.3", ignore_errors=True)
    expected = -number if number == signal.SIGKILL else 128 + number
    assert set(statuses) == {expected}
    assert len(statuses) > 10
    assert {name: (releases / "1.2.3" / name).read_bytes() for name in FILES} == FILES


def test_what_makes_a_releases_programs_keeps_others_waiting(tmp_path, monkeypatch):
    """Killed alone, the install leaves pip at work in a release that must not be swept away yet: as
    a child of its child, which has nothing but its standard input from it."""
    path, releases = archive(tmp_path / "a.tar.zst", whole()), tmp_path / "releases"
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def killed(release_, children):
        # The elder ends at once, what it started when the gate opens. For a shell's own sake only,
        # standard input is named: it would be nothing for what it does not wait for.
        script = 'exec 3<&0; kill -9 $PPID; (read -r _ <"$0") 0<&3 3<&- >&- 2>&- &'
        children.run(["/bin/sh", "-c", script, str(gate)], release_)

    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(release, "make_programs", killed)
        install(path, releases)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    with pytest.raises(ReleaseError, match="another install is under way"):
        install(path, releases)
    with gate.open("w") as open_gate:
        open_gate.write("go\n")
    monkeypatch.setattr(release, "make_programs", make_programs)
    end = time.monotonic() + 10
    while True:
        try:
            assert install(path, releases)[0] == "1.2.3"
        except ReleaseError:
            assert time.monotonic() < end
            time.sleep(0.02)
        else:
            return
