"""Files that are no JSON object are refused by their names, absent ones are told apart."""

import pytest

from dgpp.checkpoint.json_file import read_json, read_object
from dgpp.errors import CheckpointError


def test_an_object(tmp_path):
    (tmp_path / "x.json").write_text('{"a": [1, null]}')
    assert read_json(tmp_path / "x.json") == read_object(tmp_path / "x.json") == {"a": [1, None]}


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"[1]", b"null", b'"x"'])
@pytest.mark.parametrize("read", [read_json, read_object])
def test_anything_else_is_named(tmp_path, read, data):
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"x\.json: (cannot be read|not a JSON object)"):
        read(tmp_path / "x.json")


def test_an_absent_file(tmp_path):
    assert read_object(tmp_path / "x.json") is None
    with pytest.raises(CheckpointError, match=r"x\.json: No such file"):
        read_json(tmp_path / "x.json")
    with pytest.raises(CheckpointError, match=r"cannot be read: .*[Dd]irectory"):
        read_object(tmp_path)
