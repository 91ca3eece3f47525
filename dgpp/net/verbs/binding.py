"""What a Python package that binds libibverbs is asked, and nothing else."""

from __future__ import annotations

from typing import Any, Protocol

from dgpp.net.verbs.library import Address, Calls


class Binding(Protocol):
    """One package. What it makes are its own objects, closed by their `close`, what was made last
    first; all but `calls` raise one of `errors`."""

    name: str
    errors: tuple[type[Exception], ...]

    def open(self, device: str) -> Any:
        """The context of the device of this name."""

    def port(self, context: Any, index: int) -> tuple[int, bytes]:
        """Bytes a packet of the first port carries at most, and its GID `index`, 16 bytes."""

    def domain(self, context: Any) -> Any: ...

    def region(self, domain: Any, address: int, length: int) -> Any:
        """Memory, with an `lkey` and an `rkey`, that peers may read and write."""

    def channel(self, context: Any) -> tuple[Any, int]:
        """A completion channel and its open file."""

    def queue(self, context: Any, channel: Any, depth: int) -> Any:
        """A completion queue that reports by `req_notify` on `channel`."""

    def take_event(self, channel: Any, queue: Any) -> None:
        """Wait for one report of `queue` and take it."""

    def pair(self, context: Any, domain: Any, queue: Any, depth: int) -> Any:
        """A reliable queue pair with a `qp_num`, in INIT, that takes writes from peers."""

    def connect(self, pair: Any, index: int, psn: int, peer: Address, mtu: int) -> None:
        """Ready to send to `peer` from GID `index`; the first packet is `psn`."""

    def calls(self, context: Any, pair: Any) -> Calls:
        """Raises LibraryError where this release of the package is not known."""
