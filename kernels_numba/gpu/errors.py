"""What can be wrong with a CUDA machine, by name."""

from __future__ import annotations

from pathlib import Path


class CudaError(Exception):
    """No GPU can be used, or a kernel cannot be built; the message says what and the remedy."""


class FolderError(CudaError):
    """The folder that compiled kernels are kept in cannot be used.

    `folder` is named where `error` names no file, as that of a write does not.
    """

    def __init__(self, error: OSError, folder: Path | None = None) -> None:
        where = error.filename or folder
        super().__init__(
            f"compiled kernels cannot be kept: {where}: {error.strerror}; let CUPY_CACHE_DIR name "
            "a folder that can be written"
        )
