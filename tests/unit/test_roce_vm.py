"""The kernel for the machine of the RoCE tests, taken out of what packs it."""

from __future__ import annotations

import lzma
import subprocess
import sys

import pytest
from serving import ROOT

SCRIPT = ROOT / "scripts" / "roce_vm" / "vmlinux.py"
KERNEL = b"\x7fELF" + bytes(range(256)) * 40


def packed(kernel: bytes, setup_sectors: int = 3) -> bytes:
    """As the boot protocol of x86 has it: one sector, the set-up's, then what unpacks itself."""
    payload = lzma.compress(kernel) + len(kernel).to_bytes(4, "little")
    image = bytearray(512 * (1 + setup_sectors) + 100)
    image[0x1F1] = setup_sectors
    image[0x202:0x206] = b"HdrS"
    image[0x248:0x24C] = (100).to_bytes(4, "little")
    image[0x24C:0x250] = len(payload).to_bytes(4, "little")
    return bytes(image) + payload + b"what stands behind"


def unpack(folder, image: bytes) -> tuple[str, bytes]:
    source, target = folder / "vmlinuz", folder / "vmlinux"
    source.write_bytes(image)
    command = [sys.executable, str(SCRIPT), str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr, target.read_bytes() if target.exists() else b""


def test_the_kernel_comes_out_as_it_was(tmp_path):
    assert unpack(tmp_path, packed(KERNEL)) == ("", KERNEL)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"\0" * 1024, "not a Linux kernel for x86"),
        (packed(b"no kernel"), "no kernel in it"),
        (packed(KERNEL)[:-5000] + b"\0" * 5000, "vmlinuz:"),
        (packed(KERNEL).replace(b"\xfd7zXZ", b"\x28\xb5\x2f\xfdX"), "vmlinuz:"),
    ],
)
def test_another_file_is_named_and_leaves_nothing(tmp_path, image, message):
    said, written = unpack(tmp_path, image)
    assert message in said
    assert "Traceback" not in said
    assert written == b""
