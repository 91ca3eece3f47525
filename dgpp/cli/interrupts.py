"""Ctrl-C while modules load: it ends the process there and then, and is an exception afterwards.

An exception that comes amid an import can be lost, or leave the lock of imports held for ever.
"""

from __future__ import annotations

import signal


def end_at_once() -> None:
    """SIGINT, unless it is ignored, ends this process from now on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> None:
    """SIGINT is KeyboardInterrupt again, where `end_at_once` has changed that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
