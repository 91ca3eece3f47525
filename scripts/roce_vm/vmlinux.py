"""The kernel inside a vmlinuz, unpacked: an emulated processor would take seconds to do it.

usage: python scripts/roce_vm/vmlinux.py VMLINUZ VMLINUX
"""

from __future__ import annotations

import lzma
import struct
import sys
from pathlib import Path

SECTORS = 0x1F1
"""Offsets in the boot header of x86: setup sectors of 512 bytes less one, its magic, and where the
packed kernel lies behind them."""
MAGIC = 0x202
PAYLOAD = 0x248


def unpack(image: bytes) -> bytes:
    """The ELF file in a bzImage packed with xz. Raises ValueError for any other file."""
    if image[MAGIC : MAGIC + 4] != b"HdrS":
        raise ValueError("not a Linux kernel for x86")
    offset, length = struct.unpack_from("<II", image, PAYLOAD)
    start = 512 * (1 + (image[SECTORS] or 4)) + offset
    # The length of what was packed, four bytes, stands behind it.
    kernel = lzma.LZMADecompressor().decompress(image[start : start + length])
    if kernel[:4] != b"\x7fELF":
        raise ValueError("no kernel in it")
    return kernel


if __name__ == "__main__":
    try:
        Path(sys.argv[2]).write_bytes(unpack(Path(sys.argv[1]).read_bytes()))
    except (ValueError, lzma.LZMAError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
