"""What can be wrong with a CUDA machine, by name."""

from __future__ import annotations


class CudaError(Exception):
    """No GPU can be used, or a kernel cannot be built; the message says what and the remedy."""


class FolderError(CudaError):
    """The folder that compiled kernels are kept in cannot be used."""

    def __init__(self, error: OSError) -> None:
        where = f"{error.filename}: " if error.filename else ""
        super().__init__(
            f"compiled kernels cannot be kept: {where}{error.strerror}; let CUPY_CACHE_DIR name a "
            "folder that can be written"
        )
