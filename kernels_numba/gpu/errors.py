"""What can be wrong with a CUDA machine, by name."""

from __future__ import annotations


class CudaError(Exception):
    """No GPU can be used, or a kernel cannot be built; the message says what and the remedy."""
