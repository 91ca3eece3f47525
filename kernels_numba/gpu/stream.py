"""Which stream is current. CuPy's own ways forget a stream that was made current by `use`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from kernels_numba.gpu.device import load_cupy


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """`stream`, of this thread's device, is current inside; then what was before is again.

    Behind CuPy's `with stream` the last stream that was entered so is current, which is the null
    stream for whoever called `use`: what is enqueued there is in no order with the rest.
    """
    before = load_cupy().cuda.get_current_stream()
    stream.use()
    try:
        yield
    finally:
        before.use()


def fetched(array: Any) -> npt.NDArray[Any]:
    """A device array on the host, when what is enqueued on the current stream has ended.

    `array.get()` enters a stream, as above, to copy what does not lie in one piece.
    """
    whole: npt.NDArray[Any] = load_cupy().ascontiguousarray(array).get()
    return whole
