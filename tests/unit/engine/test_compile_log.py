"""A first start says that it compiles kernels of the CPU; later ones say nothing."""

from __future__ import annotations

import logging

from kernels_numba.compile_log import EVERY_S, CompileLog


def test_cpu_kernels_are_told_of_at_the_first_and_from_time_to_time(caplog) -> None:
    now = [100.0]
    told = CompileLog("/kept", lambda: now[0])
    assert told.summary() == []
    with caplog.at_level(logging.INFO, "dgpp.engine"):
        for _ in range(4):
            told.on_start(None)
            now[0] += EVERY_S / 2
            told.on_end(None)
    first, *later = [record.getMessage() for record in caplog.records]
    assert "compiling CPU kernels" in first
    assert first.endswith("kept in /kept")
    assert later == ["2 CPU kernels compiled so far", "4 CPU kernels compiled so far"]
    assert told.summary() == ["4 CPU kernels compiled in 30.0 s"]


def test_a_short_compilation_takes_no_zero_seconds() -> None:
    now = [100.0]
    told = CompileLog("/kept", lambda: now[0])
    told.on_start(None)
    now[0] += 0.4
    told.on_end(None)
    assert told.summary() == ["1 CPU kernels compiled in 0.4 s"]
