"""What the CUDA backend asks of CuPy, over host memory: arrays, streams that are always done."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np


class _Pointer:
    def __init__(self, address: int) -> None:
        self.ptr = address


class Array(np.ndarray):
    """An array whose `data.ptr` is its address."""

    @property
    def data(self) -> _Pointer:  # type: ignore[override]
        return _Pointer(self.ctypes.data)

    def get(self, stream: Any = None, out: np.ndarray | None = None) -> np.ndarray:
        if not self.flags.c_contiguous:
            with stream or current_stream():
                pass
        if out is None:
            return np.array(self, copy=True, subok=False)
        out[...] = self
        return out

    def set(self, values: np.ndarray) -> None:
        self[...] = values

    def fill(self, value: Any) -> None:
        enqueue(partial(super().fill, value))


_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_UNTOUCHABLE = 0
"""PROT_NONE."""
ALIGNMENT = 16
"""Bytes: what the widest access asks for. A device allocator gives more, but every byte more would
be one behind an array that a kernel could read unseen."""
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def zeros(shape: Any, dtype: Any = np.float32) -> Array:
    """Between two pages that end the process when they are touched, and close to the latter."""
    dtype = np.dtype(dtype)
    size, page = int(np.prod(shape)) * dtype.itemsize, mmap.PAGESIZE
    room = -(-size // page) * page
    held = np.frombuffer(mmap.mmap(-1, room + 2 * page, _PRIVATE), np.uint8)
    for at in (0, page + room):
        if _mprotect(held.ctypes.data + at, page, _UNTOUCHABLE):
            raise OSError(ctypes.get_errno(), "a page stays accessible: mprotect")
    start = page + room - -(-size // ALIGNMENT) * ALIGNMENT
    return held[start : start + size].view(dtype).reshape(shape).view(Array)


def asarray(values: Any, dtype: Any = None) -> Array:
    values = np.asarray(values, dtype)
    out = zeros(values.shape, values.dtype)
    out[...] = values
    return out


def ascontiguousarray(values: Array) -> Array:
    return values if values.flags.c_contiguous else asarray(values)


class _Capture(threading.local):
    """What this thread records, if it does."""

    work: list[Callable[[], None]] | None = None


_capture = _Capture()


def enqueue(work: Callable[[], None]) -> None:
    """Do `work` now, or in every launch of the graph that is being recorded."""
    if _capture.work is None:
        work()
    else:
        _capture.work.append(work)


class Graph:
    """Recorded work, in order."""

    def __init__(self, work: list[Callable[[], None]]) -> None:
        self._work = work

    def launch(self, stream: Any = None) -> None:
        for work in self._work:
            work()

    def upload(self, stream: Any = None) -> None:
        """It is where it runs."""


class Stream:
    """Work is done when it is enqueued, except while a graph is recorded.

    What is current follows CuPy: who leaves a stream that was entered comes back to the one entered
    before it, whatever `use` made current.
    """

    ptr = 0

    def __init__(self, *, non_blocking: bool = False, **_: Any) -> None:
        self.non_blocking = non_blocking

    def begin_capture(self, mode: Any = None) -> None:
        _capture.work = []

    def end_capture(self) -> Graph:
        work, _capture.work = _capture.work, None
        assert work is not None
        return Graph(work)

    def is_capturing(self) -> bool:
        return _capture.work is not None

    def wait_event(self, event: Any) -> None:
        """It is reached."""

    def use(self) -> Stream:
        _current.stream = self
        return self

    def synchronize(self) -> None:
        """Nothing is outstanding."""

    def __enter__(self) -> Stream:
        _current.entered.append(self)
        return self.use()

    def __exit__(self, *_: object) -> None:
        _current.entered.pop()
        _current.entered[-1].use()


NULL = Stream()


class _Current(threading.local):
    """The streams that this thread has entered, and the one where its work goes."""

    def __init__(self) -> None:
        self.stream = NULL
        self.entered = [NULL]


_current = _Current()


def current_stream() -> Stream:
    return _current.stream


class Event:
    def __init__(self, **_: Any) -> None:
        """Always reached."""

    def record(self, stream: Any = None) -> None:
        """Reached already."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class DeviceError(Exception):
    """A device that has failed; this one does not by itself."""


_HANDLE = struct.Struct("<qqq")
_shared: dict[int, tuple[int, int]] = {}
"""Of each allocation that other processes may open: its file and size."""


class Memory:
    """An allocation of its own, which other processes can open."""

    def __init__(self, size: int) -> None:
        self._fd = os.memfd_create("dgpp-emulated", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size)
        self._held = _mapped(self._fd, size)
        self.ptr = int(self._held.data.ptr)
        _shared[self.ptr] = (self._fd, size)

    def __del__(self) -> None:
        _shared.pop(self.ptr, None)
        os.close(self._fd)


def _mapped(fd: int, size: int) -> Array:
    return np.frombuffer(mmap.mmap(fd, size), np.uint8).view(Array)


def _handle_of(pointer: int) -> bytes:
    return _HANDLE.pack(os.getpid(), *_shared[pointer]).ljust(64, b"\0")


_opened: list[Array] = []


def _open_handle(handle: bytes) -> int:
    process, fd, size = _HANDLE.unpack_from(handle)
    own = os.open(f"/proc/{process}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    _opened.append(_mapped(own, size))
    os.close(own)
    return int(_opened[-1].data.ptr)


def MemoryPointer(memory: Memory, offset: int) -> Array:
    """The bytes of an allocation from `offset` on."""
    return memory._held[offset:]


def _over(shape: Any, dtype: Any, memory: Array) -> Array:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return memory[:size].view(dtype).reshape(shape)


def _copy(to: int, source: int, size: int, *_: object) -> None:
    enqueue(partial(ctypes.memmove, int(to), int(source), int(size)))


def _clear(to: int, value: int, size: int, *_: object) -> None:
    enqueue(partial(ctypes.memset, int(to), int(value), int(size)))


def module() -> Any:
    """Stands for the module `cupy`."""
    runtime = SimpleNamespace(
        CUDARuntimeError=DeviceError,
        getDeviceCount=lambda: 1,
        memGetInfo=lambda: (8 << 30, 8 << 30),
        memcpyAsync=_copy,
        memsetAsync=_clear,
        memset=_clear,
        deviceSynchronize=lambda: None,
        ipcGetMemHandle=_handle_of,
        ipcOpenMemHandle=_open_handle,
        hostRegister=lambda *_: None,
        deviceCanAccessPeer=lambda *_: 1,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
    )
    cuda = SimpleNamespace(
        Stream=Stream,
        Event=Event,
        Device=lambda *_: SimpleNamespace(
            use=lambda: None, compute_capability="80", attributes={"ClockRate": 10**6}
        ),
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=DeviceError),
        get_current_stream=current_stream,
        alloc_pinned_memory=partial(zeros, dtype=np.uint8),
        memory=SimpleNamespace(Memory=Memory),
        MemoryPointer=MemoryPointer,
    )
    kinds = {
        name: getattr(np, name)
        for name in ("uint8", "uint16", "uint32", "uint64", "int32", "int64", "float32", "float64")
    }
    return SimpleNamespace(
        cuda=cuda,
        zeros=zeros,
        empty=zeros,
        asarray=asarray,
        ascontiguousarray=ascontiguousarray,
        ndarray=_over,
        **kinds,
    )
