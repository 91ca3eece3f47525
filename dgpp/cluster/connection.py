"""A program that answers lines with lines, kept open: what the launcher has at each node."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import IO

ANSWER_BYTES = 16 << 20
"""No answer is longer."""
SAID_BYTES = 8 << 10
"""What is kept of a program's last words."""
END_S = 2.0
"""What a program gets to end once nobody asks any more."""
_READ_BYTES = 1 << 16


class EndedError(Exception):
    """The program ended with `status` before it had answered; `said` are its last words."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.said = said


class Connection:
    """`command` is started by the first exchange, and anew after it has ended.

    It is out of reach of the terminal's Ctrl-C: whoever is interrupted still has something to undo.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._words = -1

    def exchange(self, line: bytes, timeout_s: float, *, twice: bool = False) -> bytes:
        """The line that answers `line`. A program that has ended since it was asked last is started
        anew; one that ends over `line` itself only where that may be asked `twice`. Raises
        EndedError, TimeoutError, OSError, and ValueError where what comes is too long."""
        with self._lock:
            end = time.monotonic() + timeout_s
            if self._process is not None and self._process.poll() is not None:
                self._drop(0)
            if self._process is not None and twice:
                with suppress(EndedError):
                    return self._ask(line, end)
            return self._ask(line, end)

    def _ask(self, line: bytes, end: float) -> bytes:
        try:
            return self._converse(self._process or self._open(), line, end)
        except BaseException:
            # An answer that comes later must not be taken for the next one's.
            self._drop(0)
            raise

    def close(self) -> None:
        with self._lock:
            self._drop(END_S)

    def _open(self) -> subprocess.Popen[bytes]:
        self._words = os.memfd_create("dgpp-last-words", os.MFD_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                bufsize=0,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._words)
            raise
        for pipe in _pipes(self._process):
            os.set_blocking(pipe.fileno(), False)
        return self._process

    def _converse(self, process: subprocess.Popen[bytes], line: bytes, end: float) -> bytes:
        into, out = _pipes(process)
        left, heard = memoryview(line + b"\n"), bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ)
            ready.register(into, selectors.EVENT_WRITE)
            while not heard.endswith(b"\n"):
                events = ready.select(max(0.0, end - time.monotonic()))
                if not events and time.monotonic() >= end:
                    raise TimeoutError
                for key, _ in events:
                    if key.fileobj is out:
                        heard += self._read(process, out)
                        if len(heard) > ANSWER_BYTES:
                            raise ValueError(f"over {ANSWER_BYTES} bytes")
                    else:
                        left = _write(into, left)
                        if not left:
                            ready.unregister(into)
        return bytes(heard)

    def _read(self, process: subprocess.Popen[bytes], out: IO[bytes]) -> bytes:
        data = os.read(out.fileno(), _READ_BYTES)
        if data:
            return data
        try:
            status = process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        size = os.fstat(self._words).st_size
        last = os.pread(self._words, SAID_BYTES, max(0, size - SAID_BYTES))
        raise EndedError(status, last.decode(errors="replace"))

    def _drop(self, within_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        into, out = _pipes(process)
        into.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
        if process.returncode is None:
            process.kill()
            process.wait()
        out.close()
        os.close(self._words)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _write(into: IO[bytes], left: memoryview) -> memoryview:
    """What is still to be written. One that reads no more is about to end, and says why then."""
    try:
        return left[os.write(into.fileno(), left) :]
    except BrokenPipeError:
        return left[:0]
