"""What a machine can do, measured: the yardsticks beside which an engine's figures stand."""

from __future__ import annotations

from typing import Protocol


class Yardstick(Protocol):
    """Measures when it is asked; holds no memory between calls.

    `bandwidth_name` and `product_name` say in words what is measured.
    """

    bandwidth_name: str
    product_name: str

    def bandwidth(self) -> float:
        """Bytes per second."""

    def product(self, rows: int) -> float | None:
        """Floating point operations per second of a plain matrix product of `rows` rows, None
        where it cannot be measured."""
