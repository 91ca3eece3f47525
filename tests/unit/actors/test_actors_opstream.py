"""The file of a rank's operation stream: whole lines, bounded, and no reason to stop serving."""

from __future__ import annotations

import os

import pytest

from actors.opstream import OpStreamFile
from dgpp.errors import ConfigError


def test_lines_stand_as_they_came(tmp_path):
    file = OpStreamFile(tmp_path / "logs" / "serve_rank1.ops")
    file.write(b"T a-0 5 1\n")
    file.write(b"T a-0 6 2\nR a-0 1 2\n")
    # Written at once: whoever dies later leaves all of it.
    assert (
        tmp_path / "logs" / "serve_rank1.ops"
    ).read_bytes() == b"T a-0 5 1\nT a-0 6 2\nR a-0 1 2\n"
    file.close()


def test_a_new_start_begins_anew(tmp_path):
    path = tmp_path / "x.ops"
    for text in (b"old\n", b"new\n"):
        file = OpStreamFile(path)
        file.write(text)
        file.close()
    assert path.read_bytes() == b"new\n"


def test_two_segments_are_kept(tmp_path):
    path = tmp_path / "x.ops"
    file = OpStreamFile(path, segment_bytes=8)
    for number in range(7):
        file.write(b"%03d\n" % number)
    assert path.read_bytes() == b"006\n"
    assert (tmp_path / "x.ops.1").read_bytes() == b"004\n005\n"
    file.write(b"longer than a segment\n")
    assert path.read_bytes() == b"longer than a segment\n"
    file.close()


def test_another_deployment_keeps_its_file(tmp_path):
    path = tmp_path / "x.ops"
    first = OpStreamFile(path)
    first.write(b"mine\n")
    with pytest.raises(ConfigError, match=r"paths.log_dir: .*x\.ops is being written by another"):
        OpStreamFile(path)
    first.close()
    OpStreamFile(path).close()


def test_a_place_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"paths\.log_dir: .*x\.ops: File exists"):
        OpStreamFile(tmp_path / "file" / "x.ops")


@pytest.mark.parametrize("how", ["full", "short"])
def test_a_disk_that_fails_is_named_once_and_left_alone(tmp_path, monkeypatch, caplog, how):
    file = OpStreamFile(tmp_path / "x.ops")
    file.write(b"good\n")
    calls = []

    def write(fd, text):
        calls.append(text)
        if how == "full":
            raise OSError(28, "No space left on device")
        return len(text) - 1

    monkeypatch.setattr(os, "write", write)
    file.write(b"lost\n")
    file.write(b"lost too\n")
    assert calls == [b"lost\n"]
    said = "No space left on device" if how == "full" else "4 of 5 bytes were written"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'x.ops'}: {said}; it is written no more"
    ]
    file.close()
