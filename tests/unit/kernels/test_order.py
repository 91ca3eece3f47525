"""A device's operations are in order: they stay on the backend's stream, whatever came between."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_numba.picks import Adjustment, Draw

WIDTH, VOCAB = 72, 300
"""Rows of both are padded: what is read does not lie in one piece."""


@pytest.fixture
def stream(backend):
    """Which stream is current now; the backend's own to begin with."""
    if backend.name != "cuda":
        pytest.skip("the CPU backend has no streams")
    from kernels_numba.gpu.device import load_cupy

    backend.tensor(1)
    current = load_cupy().cuda.get_current_stream
    assert current() is backend._stream
    return current


def test_reading_leaves_the_stream_as_it_was(backend, stream) -> None:
    x, logits, routes = (
        backend.tensor(WIDTH, wide=True),
        backend.logits(3, VOCAB),
        backend.routes(2),
    )
    plane = backend.plane(2, 16, 2, 16)
    store = backend.store(2, 3, WIDTH, wide=True)
    backend.write(x, np.ones((3, WIDTH), np.float32))
    reads = {
        "rows": lambda: backend.read(x, 3),
        "logits": lambda: backend.read_logits(logits, 3),
        "routes": lambda: backend.read_routes(routes, 3),
        "a block": lambda: plane.read(1, memoryview(bytearray(plane.entry_bytes))),
        "an entry": lambda: store.read(1, memoryview(bytearray(store.entry_bytes))),
    }
    for what, read in reads.items():
        read()
        assert stream() is backend._stream, what


def test_picking_leaves_the_stream_as_it_was(backend, stream) -> None:
    picker, logits = backend.picker(2, VOCAB, 5), backend.logits(2, VOCAB)
    assert stream() is backend._stream
    drawn = Adjustment(1.0, draw=Draw(0, 0.5, 4, -1.0, 0.5, greedy=False))
    changed = Adjustment(1.0, np.ones(VOCAB, np.int32), repetition=1.5)
    for rows in ([], [drawn], [drawn, changed]):
        picker.launch(logits, rows)
        assert stream() is backend._stream
        picker.collect()
        picker.adjusted(logits, range(len(rows)))
        assert stream() is backend._stream
