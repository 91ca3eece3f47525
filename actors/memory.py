"""Shared memory without names: a memfd travels by inheritance and is gone with its last user."""

from __future__ import annotations

import fcntl
import mmap
import os


def create_memfd(name: str, size: int) -> int:
    """A memfd of `size` zero bytes that can no longer shrink, so that no access faults."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def map_memfd(fd: int) -> memoryview:
    """The whole memfd, read and write. Its pages exist afterwards: first touch is slow."""
    size = os.fstat(fd).st_size
    return memoryview(mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))


def local_memory(size: int) -> memoryview:
    """Zeroed page-aligned memory of this process, laid out like a shared one."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
