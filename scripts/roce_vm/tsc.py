"""Print the frequency of this machine's time stamp counter in kHz.

An emulated machine counts with its host's and would measure the frequency wrong on a busy one: its
seconds then pass several times too fast.
"""

from __future__ import annotations

import ctypes
import mmap
import time

READ = bytes.fromhex("0f31 48c1e220 4809d0 c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret."""
SECONDS = 0.2


def main() -> None:
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(READ)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    count = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)

    def both() -> tuple[int, int]:
        """The counter and the clock in ns, read so close together that nothing came between."""
        read = []
        for _ in range(50):
            before, ticks, after = time.monotonic_ns(), count(), time.monotonic_ns()
            read.append((after - before, ticks, (before + after) // 2))
        return min(read)[1:]

    ticks, began = both()
    time.sleep(SECONDS)
    more, ended = both()
    print(round((more - ticks) * 1e6 / (ended - began)))


if __name__ == "__main__":
    main()
