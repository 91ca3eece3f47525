"""What can be wrong with a file, by name."""

from __future__ import annotations

from dgpp.serve.errors import ApiError
from dgpp.serve.jsonsafe import shorten

KEYS = "engine.file_inputs"
"""Where the keys of its limits stand."""


def invalid_file(message: str, param: str | None = None) -> ApiError:
    """400 `invalid_file`."""
    return ApiError(400, message, param=param, code="invalid_file")


def file_not_found(name: str, param: str | None = None) -> ApiError:
    """404 `file_not_found`."""
    return ApiError(404, f"There is no file {shorten(name)!r}", param=param, code="file_not_found")


def file_too_large(message: str, param: str | None = None) -> ApiError:
    """413 `file_too_large`: a file, the files of one request, or their text."""
    return ApiError(413, message, param=param, code="file_too_large")


def storage_full(limit: int) -> ApiError:
    """413 `file_storage_full`."""
    message = f"All files together may have {KEYS}.max_storage_bytes = {limit} bytes: delete some"
    return ApiError(413, message, param="file", code="file_storage_full")


def processing_busy(workers: int) -> ApiError:
    """503 `file_processing_busy`."""
    message = (
        f"{workers} documents are being read and as many wait ({KEYS}.workers), try again later"
    )
    return ApiError(503, message, code="file_processing_busy", retry_after=1)


def processing_failed(message: str, param: str | None) -> ApiError:
    """500 `file_processing_failed`."""
    return ApiError(500, message, param=param, code="file_processing_failed")


def extractor_missing(command: str, param: str | None) -> ApiError:
    """503 `pdf_extractor_unavailable`."""
    message = f"PDF text needs {command} or the Python package pypdf, and neither is installed"
    return ApiError(503, message, param=param, code="pdf_extractor_unavailable")


def extraction_timed_out(seconds: float, param: str | None) -> ApiError:
    """408 `file_processing_timeout`."""
    message = f"The PDF's text was not there within {KEYS}.pdf_timeout_ms = {seconds * 1000:.0f}"
    return ApiError(408, message, param=param, code="file_processing_timeout")


def no_text(param: str | None) -> ApiError:
    """400 `pdf_text_unavailable`."""
    message = "The PDF holds no text; pictures of text are not read"
    return ApiError(400, message, param=param, code="pdf_text_unavailable")
