"""The memory behind a declaration: blocks, each request's own state, and snapshots of that."""

from __future__ import annotations

from dgpp.state.declaration import FixedState, Ring, StateDeclaration
from kernels_numba.backend import Backend, Plane, Store


class StatePools:
    """All state of one engine, allocated once.

    planes  a pool of `blocks` per PagedPlane      paged  the same per PagedRows
    rings   an entry per slot of each Ring         fixed  an entry per slot of each FixedState

    What is paged is packed as `kv_dtype` says. Snapshots 0 … `snapshots`−1 hold copies of a slot's
    rings and fixed state. Operations are enqueued where the backend enqueues: they happen in the
    order of the calls, among one another and with the steps of the model. What `read_…` and
    `write_…` move is moved beside them, behind what the last `fence` saw, and may be asked for by
    another thread; who asks sees to it that no step touches it meanwhile.
    """

    def __init__(
        self,
        declaration: StateDeclaration,
        backend: Backend,
        *,
        slots: int,
        blocks: int,
        block_tokens: int,
        snapshots: int = 0,
        kv_dtype: str = "bf16",
    ) -> None:
        for rows in declaration.paged:
            if block_tokens % rows.every:
                message = f"{rows.name}: blocks of {block_tokens} tokens cut rows of {rows.every}"
                raise ValueError(message)
        self.declaration = declaration
        self._backend = backend
        self.snapshots = snapshots
        self.planes: list[Plane] = [
            backend.plane(
                blocks,
                block_tokens,
                plane.kv_heads,
                plane.head_dim,
                plane.value_dim,
                code=plane.code(kv_dtype),
            )
            for plane in declaration.planes
        ]
        self.paged: list[Store] = [
            backend.store(
                blocks,
                rows.rows(block_tokens),
                rows.width,
                code=rows.code(kv_dtype),
                plain=rows.plain,
            )
            for rows in declaration.paged
        ]
        own: tuple[Ring | FixedState, ...] = (*declaration.rings, *declaration.fixed)
        held = [backend.store(slots, part.rows, part.width, wide=part.wide) for part in own]
        self.rings: list[Store] = held[: len(declaration.rings)]
        self.fixed: list[Store] = held[len(declaration.rings) :]
        self._blocks: list[Store] = [*self.planes, *self.paged]
        self._own = held
        self._kept = [
            backend.store(snapshots, part.rows, part.width, wide=part.wide)
            for part in (own if snapshots else ())
        ]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all layers."""
        return sum(store.entry_bytes for store in self._blocks)

    @property
    def snapshot_bytes(self) -> int:
        return sum(store.entry_bytes for store in self._own)

    def clear(self, slot: int) -> None:
        """A request begins in `slot`: its own state is zero."""
        for store in self._own:
            store.clear(slot)

    def copy_block(self, source: int, target: int) -> None:
        """The rows of block `source`, also in block `target`."""
        for store in self._blocks:
            store.copy(store, source, target)

    def keep(self, slot: int, snapshot: int) -> None:
        """Copy what `slot` owns into `snapshot`."""
        for kept, own in zip(self._kept, self._own, strict=True):
            kept.copy(own, slot, snapshot)

    def restore(self, snapshot: int, slot: int) -> None:
        """Give `slot` the state that `snapshot` holds."""
        for kept, own in zip(self._kept, self._own, strict=True):
            own.copy(kept, snapshot, slot)

    def staging(self, size: int) -> memoryview:
        """`size` bytes on the host that blocks and snapshots are moved through fast, at the start
        of a page."""
        return self._backend.transfer_memory(size)

    def fence(self) -> None:
        """What is moved from now on is as the operations and steps called until now leave it."""
        self._backend.fence_transfers()

    def read_block(self, block: int, out: memoryview) -> None:
        """Copy block `block` to `out` (`block_bytes` long) on the host; waits for it."""
        self._read(self._blocks, block, out)

    def write_block(self, block: int, data: memoryview) -> None:
        """Fill block `block` from what `read_block` gave; waits for it."""
        self._write(self._blocks, block, data)

    def read_snapshot(self, snapshot: int, out: memoryview) -> None:
        """Copy `snapshot` to `out` (`snapshot_bytes` long) on the host; waits for it."""
        self._read(self._kept, snapshot, out)

    def write_snapshot(self, snapshot: int, data: memoryview) -> None:
        """Fill `snapshot` from what `read_snapshot` gave; waits for it."""
        self._write(self._kept, snapshot, data)

    def _read(self, stores: list[Store], entry: int, out: memoryview) -> None:
        at = 0
        for store in stores:
            store.read(entry, out[at : at + store.entry_bytes])
            at += store.entry_bytes
        self._backend.finish_transfers()

    def _write(self, stores: list[Store], entry: int, data: memoryview) -> None:
        at = 0
        for store in stores:
            store.write(entry, data[at : at + store.entry_bytes])
            at += store.entry_bytes
        self._backend.finish_transfers()
