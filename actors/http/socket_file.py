"""The file of a UNIX socket: who is there already."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path


def stale(file: Path) -> bool:
    """Whether the socket of a server that is gone lies there. Raises OSError where a server
    listens, where something else has the place, and where nothing can be put there."""
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        if not file.parent.is_dir():
            raise OSError(errno.ENOENT, "its folder does not exist") from None
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, "its folder may not be written") from None
        return False
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(file))
        except ConnectionRefusedError:
            return True
    raise OSError(errno.EADDRINUSE, "another server listens there")
