"""A copy of a checkpoint as a node takes it in: what it looks at, what it takes and refuses."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.checkpoint.hashes import Hashes, git_blob_of
from dgpp.checkpoint.receive import (
    Copy,
    CopyFile,
    CopyState,
    Depth,
    adopt,
    drop,
    look,
    open_staging,
)
from dgpp.checkpoint.served_files import served_files
from dgpp.errors import FetchError

COMMIT = "0123456789abcdef" * 2 + "01234567"
FILES = {"config.json": b"{}", "a.safetensors": b"weights of a", "b.safetensors": b"weights of b"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def digest(data):
    return hashlib.sha256(data).hexdigest()


def a_copy(place, *, hub=False, files=FILES):
    entries = tuple(CopyFile(n, len(d), digest(d), digest(d)) for n, d in files.items())
    if hub:
        return Copy("org/name", COMMIT, str(place), entries)
    return Copy(str(place / "model"), "", "", entries)


def stage(copy, files):
    open_staging(copy)
    for name, data in files.items():
        (copy.staging / name).write_bytes(data)


@pytest.mark.parametrize("hub", [True, False])
def test_staged_then_taken_and_nothing_left_beside(tmp_path, hub):
    copy = a_copy(tmp_path, hub=hub)
    assert set(look(copy, Depth.KNOWN).states.values()) == {CopyState.ABSENT}
    assert not copy.place.exists()
    stage(copy, FILES)
    held = look(copy, Depth.KNOWN)
    assert set(held.states.values()) == {CopyState.HERE}
    assert held.staged == sum(map(len, FILES.values()))
    assert adopt(copy, main=hub) == ()
    assert set(look(copy, Depth.ANEW).states.values()) == {CopyState.WHOLE}
    assert {file.name: file.read_bytes() for file in copy.place.iterdir()} == FILES
    assert not list(tmp_path.rglob(".dgpp-incoming"))
    assert copy.main() == (COMMIT if hub else "")


def test_what_arrives_damaged_is_deleted_and_the_model_stays_as_it_was(tmp_path):
    copy = a_copy(tmp_path)
    stage(copy, FILES | {"b.safetensors": b"weights of x"})
    assert adopt(copy, main=False) == ("b.safetensors",)
    # Without config.json nothing takes the folder for a model.
    assert [file.name for file in copy.place.iterdir()] == ["a.safetensors"]
    states = look(copy, Depth.KNOWN).states
    assert states == {
        "config.json": CopyState.HERE,
        "a.safetensors": CopyState.WHOLE,
        "b.safetensors": CopyState.ABSENT,
    }
    with pytest.raises(FetchError, match=r"b\.safetensors is neither at"):
        adopt(copy, main=False)
    stage(copy, {"b.safetensors": FILES["b.safetensors"]})
    assert adopt(copy, main=False) == ()
    assert {file.name: file.read_bytes() for file in copy.place.iterdir()} == FILES


def test_the_same_bytes_in_another_revision_are_not_sent_again(tmp_path):
    first = a_copy(tmp_path, hub=True)
    stage(first, FILES)
    adopt(first, main=True)
    other = FILES | {"b.safetensors": b"newer weights"}
    second = Copy("org/name", COMMIT[::-1], str(tmp_path), a_copy(tmp_path, files=other).files)
    assert look(second, Depth.KNOWN).states == {
        "config.json": CopyState.HERE,
        "a.safetensors": CopyState.HERE,
        "b.safetensors": CopyState.ABSENT,
    }
    stage(second, {"b.safetensors": other["b.safetensors"]})
    assert adopt(second, main=False) == ()
    assert {file.name: file.read_bytes() for file in second.place.iterdir()} == other
    assert second.main() == COMMIT
    drop(second)


@given(
    damage=st.dictionaries(
        st.sampled_from(sorted(FILES)),
        st.tuples(st.integers(0, 11), st.sampled_from(["flip", "cut", "grow", "delete"])),
    )
)
def test_whatever_happens_to_a_file_is_seen(damage):
    with tempfile.TemporaryDirectory() as folder:
        copy = a_copy(Path(folder))
        stage(copy, FILES)
        adopt(copy, main=False)
        for name, (at, how) in damage.items():
            data = bytearray(FILES[name])
            at = min(at, len(data) - 1)
            if how == "flip":
                data[at] ^= 1
            path = copy.place / name
            path.write_bytes({"cut": data[:at], "grow": data + b"x"}.get(how, data))
            if how == "delete":
                path.unlink()
        held = look(copy, Depth.ANEW)
        for name in FILES:
            how = damage[name][1] if name in damage else ""
            wanted = {"": CopyState.WHOLE, "delete": CopyState.ABSENT}.get(how, CopyState.DAMAGED)
            assert held.states[name] is wanted


@pytest.mark.parametrize(
    "copy",
    [
        Copy("../../etc/x", COMMIT, "", ()),
        Copy("org/name", "main", "", ()),
        Copy("/tmp/model", "", "", (CopyFile("../x", 1, "0" * 64),)),
        Copy("/tmp/model", "", "", (CopyFile("a/b.safetensors", 1, "0" * 64),)),
        Copy("org/name", COMMIT, "", (CopyFile("a.json", 1, "0" * 64, "../../../x"),)),
    ],
)
def test_no_copy_leads_elsewhere(copy):
    for act in (lambda: look(copy, Depth.SIZE), lambda: adopt(copy, main=True)):
        with pytest.raises(FetchError, match="no copy of a model"):
            act()


def test_hashes_hold_while_a_file_does(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"one")
    hashes = Hashes(tmp_path)
    assert hashes.sha256("a") == digest(b"one")
    hashes.save()
    state = file.stat()
    file.write_bytes(b"two")
    assert Hashes(tmp_path).sha256("a") == digest(b"two")
    # As a disk that rots: nothing but the bytes tells.
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert Hashes(tmp_path).sha256("a") == digest(b"one")
    assert Hashes(tmp_path).sha256("a", anew=True) == digest(b"two")
    next((tmp_path / "cache" / "dgpp" / "hashes").iterdir()).write_bytes(b"\0 not JSON")
    assert Hashes(tmp_path).sha256("a") == digest(b"two")


def test_git_names_of_contents(tmp_path):
    # As `printf hello | git hash-object --stdin` prints it.
    (tmp_path / "a").write_bytes(b"hello")
    assert git_blob_of(tmp_path / "a") == "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"


def test_what_a_server_reads_and_nothing_else():
    needed = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "mtp.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    others = [
        "README.md",
        ".gitattributes",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "consolidated-00001-of-00002.safetensors",
        "original/model.safetensors",
        "onnx/config.json",
        "model.gguf",
        "modeling_x.py",
        "-rf.safetensors",
        "a b.safetensors",
    ]
    assert served_files([*others, *reversed(needed)]) == needed
