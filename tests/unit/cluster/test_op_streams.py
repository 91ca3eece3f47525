"""Where two operation streams part, found block by block as a reading of both finds it."""

from __future__ import annotations

import pytest
from fake_ranks import Elsewhere
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgpp.cluster import agent
from dgpp.cluster.messages import Operations
from dgpp.cluster.op_streams import where_parted
from dgpp.cluster.place import Place

LINES = st.lists(st.sampled_from(["T 1 5 1", "T 12 6 2", "R 1 0 2", "W 3"]), max_size=12)


@pytest.fixture
def sides(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "BLOCK_BYTES", 10)
    place = Place(str(tmp_path / "log"), str(tmp_path / "stage"), "d")
    nodes = [Elsewhere(rank, "h", ["dgpp"], tmp_path / str(rank)) for rank in range(2)]
    files = [node.own(place).operations(node.rank) for node in nodes]
    for file in files:
        file.parent.mkdir(parents=True)
    return place, nodes, files


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, LINES, LINES, st.integers(0, 12))
def test_the_first_record_that_differs_is_found(sides, common, mine, other, turned):
    place, nodes, files = sides
    streams = [common + mine, common + other]
    for file, lines in zip(files, streams, strict=True):
        # Whichever part of the stream the file before it holds.
        old = file.with_name(f"{file.name}.1")
        old.write_text("".join(f"{line}\n" for line in lines[:turned]))
        file.write_text("".join(f"{line}\n" for line in lines[turned:]))
    answers = [(node, node.ask(Operations(place, node.rank)).digests) for node in nodes]
    same = streams[0] == streams[1]
    assert (answers[0][1] == answers[1][1]) == same
    if same:
        return
    at = next(
        (i for i, (a, b) in enumerate(zip(*streams, strict=False)) if a != b),
        min(map(len, streams)),
    )
    expected = [lines[at] if at < len(lines) else "" for lines in streams]
    assert where_parted(place, *answers) == (at + 1, *expected)
