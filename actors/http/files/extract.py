"""Text out of PDFs, by a program in a process of its own, bounded in time, memory and output."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from dgpp.config.engine_settings import FileInputs
from dgpp.serve.files.errors import (
    KEYS,
    extraction_timed_out,
    extractor_missing,
    file_too_large,
    invalid_file,
    no_text,
    processing_busy,
    processing_failed,
)

MEMORY_BYTES = 2 << 30
"""What one extraction may have of it."""

CHUNK_BYTES = 1 << 20
NO_PDF = (1, 3)
"""Exit statuses that say that the document is at fault: it cannot be opened, or forbids it."""


class Extractor:
    """`workers` documents at once, and as many that wait."""

    def __init__(self, file_inputs: FileInputs) -> None:
        self.file_inputs = file_inputs
        self._free = asyncio.Semaphore(file_inputs.workers)
        self._inside = 0

    async def text(self, data: bytes, param: str) -> str:
        """The text of the PDF `data`. Raises ApiError, named by `param`."""
        file_inputs = self.file_inputs
        if self._inside >= 2 * file_inputs.workers:
            raise processing_busy(file_inputs.workers)
        self._inside += 1
        try:
            async with self._free:
                found = await self._run(data, param)
        finally:
            self._inside -= 1
        text = found.decode("utf-8", "replace")
        if not text.strip():
            raise no_text(param)
        return text

    async def _run(self, data: bytes, param: str) -> bytes:
        seconds = self.file_inputs.pdf_timeout_ms / 1000
        with tempfile.TemporaryDirectory(prefix="dgpp-pdf-") as folder:
            path = Path(folder) / "document.pdf"
            await asyncio.to_thread(path.write_bytes, data)
            process = await asyncio.create_subprocess_exec(
                *self._command(path, param),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
                async with asyncio.timeout(seconds):
                    found = await self._output(process, param)
                    status = await process.wait()
            except TimeoutError:
                raise extraction_timed_out(seconds, param) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if status in NO_PDF:
            raise invalid_file(f"{param} is no PDF that can be read", param)
        if status:
            raise processing_failed(f"The PDF's text could not be read (status {status})", param)
        return found

    async def _output(self, process: asyncio.subprocess.Process, param: str) -> bytes:
        assert process.stdout is not None
        limit, found = self.file_inputs.max_text_bytes, bytearray()
        while chunk := await process.stdout.read(CHUNK_BYTES):
            found += chunk
            if len(found) > limit:
                message = f"The PDF's text has over {KEYS}.max_text_bytes = {limit} bytes"
                raise file_too_large(message, param)
        return bytes(found)

    def _command(self, path: Path, param: str) -> list[str]:
        command = self.file_inputs.pdf_command
        program = shutil.which(command)
        if program is not None:
            return [program, "-enc", "UTF-8", "-layout", str(path), "-"]
        if importlib.util.find_spec("pypdf") is None:
            raise extractor_missing(command, param)
        return [sys.executable, "-P", "-m", "actors.http.files.pdf_child", str(path)]
