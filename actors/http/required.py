"""What a rank needs from its surroundings to be spoken to, looked at before any actor starts."""

from __future__ import annotations

import time
from pathlib import Path

from actors.http.credentials import Certificate, KeyFile
from actors.http.socket_file import stale
from dgpp.config.ports import listens
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError
from dgpp.net.listening import cannot_listen, obstacle


def require_surroundings(settings: Settings, rank: int) -> None:
    """Key and certificate files can be read, ports and socket are free. Raises ConfigError naming
    the key: the actors would, but seconds later."""
    http = settings.http
    if not rank:
        if http.api_key_file:
            KeyFile(http.api_key_file, time.monotonic)
        if http.tls_cert:
            Certificate(http, time.monotonic)
        if http.unix_socket:
            require_socket(http.unix_socket)
    for wanted in listens(settings, rank):
        if error := obstacle(wanted):
            raise ConfigError(cannot_listen(wanted, error))


def require_socket(path: str) -> None:
    try:
        stale(Path(path).expanduser())
    except OSError as error:
        raise ConfigError(f"http.unix_socket = {path}: {error.strerror}") from error
