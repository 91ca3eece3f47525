"""Ctrl-C while modules load: it ends the process there and then, and is an exception afterwards.

An exception that comes amid an import can be lost, or leave the lock of imports held for ever.
"""

from __future__ import annotations

import _imp
import signal


def end_at_once() -> None:
    """SIGINT, unless it is ignored, ends this process from now on; one that an import before this
    has lost does so now."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if _imp.lock_held():
            # Nothing imports here: it is held for ever, and other threads would wait for it.
            signal.raise_signal(signal.SIGINT)


def raise_again() -> None:
    """SIGINT is KeyboardInterrupt again, where `end_at_once` has changed that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
