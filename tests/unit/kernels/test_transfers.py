"""Entries that go to the host and come back beside the steps."""

from __future__ import annotations

import numpy as np
import pytest

PAGE = 4096


@pytest.mark.parametrize("size", [1, 1000, 3 * PAGE])
def test_memory_for_transfers_begins_at_a_page_and_has_its_size(backend, size) -> None:
    memory = backend.transfer_memory(size)
    held = np.frombuffer(memory, np.uint8)
    assert held.size == size
    assert held.ctypes.data % PAGE == 0
    assert not memory.readonly


def test_what_was_enqueued_before_the_fence_is_in_what_is_read(backend) -> None:
    store = backend.store(3, 2, 64, wide=True)
    size = store.entry_bytes
    memory = backend.transfer_memory(2 * size)
    sent = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    there, back = memory[:size], memory[size:]
    np.frombuffer(there, np.uint8)[:] = sent
    backend.fence_transfers()
    store.write(0, there)
    backend.finish_transfers()
    # On a device these are enqueued with the operations of a step, not with the transfers.
    store.copy(store, 0, 2)
    store.clear(0)
    backend.fence_transfers()
    for index, wanted in ((2, sent), (0, np.zeros(size, np.uint8))):
        store.read(index, back)
        backend.finish_transfers()
        np.testing.assert_array_equal(np.frombuffer(back, np.uint8), wanted)
