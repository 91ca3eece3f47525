"""What a simulated engine holds: every row checks that the rows before it are its own tokens."""

from __future__ import annotations

from paper_engine import PaperEngine
from sim_disk import BLOCK_BYTES, SNAPSHOT_BYTES

EMPTY, VOID = 255, 254
VOID_TOKEN = -7
"""What a row feeds whose pick was left open."""


def _bytes(tokens):
    return bytes(
        EMPTY if token is None else VOID if token == VOID_TOKEN else token for token in tokens
    )


def _tokens(data):
    return [None if t == EMPTY else VOID_TOKEN if t == VOID else t for t in data]


class SimMemory(PaperEngine):
    """Also as the bytes that the disk tier moves."""

    block_bytes = BLOCK_BYTES
    snapshot_bytes = SNAPSHOT_BYTES

    def staging(self, size):
        return memoryview(bytearray(size))

    def read_block(self, block, out):
        out[:BLOCK_BYTES] = _bytes(self.blocks[block])

    def write_block(self, block, data):
        self.blocks[block] = _tokens(data[:BLOCK_BYTES])

    def read_snapshot(self, snapshot, out):
        state = _bytes(self.snapshots[snapshot])
        out[: 1 + len(state)] = bytes((len(state),)) + state

    def write_snapshot(self, snapshot, data):
        self.snapshots[snapshot] = tuple(_tokens(data[1 : 1 + data[0]]))
