"""What ranks promise one another holds on aarch64 too: the right instructions, in order."""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest

from kernels_numba.cpu import exchange
from kernels_numba.meeting import LINE_BYTES

ARM = "aarch64-unknown-linux-gnu"


@pytest.fixture(scope="module")
def machine():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        return llvm.Target.from_triple(ARM).create_target_machine()
    except RuntimeError as error:
        pytest.skip(f"this llvmlite has no aarch64 target: {error}")


def assembly(machine, kernel, *arguments: int) -> str:
    """The kernel's own function, compiled for aarch64 from the IR that this machine runs."""
    # Anew: what comes from the cache has no IR to look at.
    fresh = numba.njit(nogil=True, error_model="numpy")(kernel.py_func)
    fresh(*arguments)
    (text,) = fresh.inspect_llvm().values()
    text = re.sub(r'target (triple|datalayout) = ".*"\n', "", text)
    module = llvm.parse_assembly(f'target triple = "{ARM}"\n{text}')
    return machine.emit_assembly(module)


def test_a_part_is_published_after_its_bytes_and_before_sleepers_are_counted(machine) -> None:
    words = np.zeros(LINE_BYTES, np.int64)
    code = assembly(machine, exchange.publish, int(words.ctypes.data), 5, 1)
    assert re.search(r"stlr.*stlr.*\bdmb\s+ish\n.*ldar", code, re.DOTALL)


def test_a_sleeper_is_counted_before_it_looks(machine) -> None:
    words = np.zeros(LINE_BYTES, np.int64)
    code = assembly(machine, exchange.lie_down, int(words.ctypes.data))
    assert re.search(r"(ldaddal|stlxr|ldaxr|__aarch64_ldadd4_acq_rel).*ldar", code, re.DOTALL)
