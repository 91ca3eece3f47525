"""Who may come in: what is asked of every request's headers before anything else of it is read."""

from __future__ import annotations

from aiohttp import web

from actors.http.credentials import Clock, KeyFile
from dgpp.config.settings import HttpSettings
from dgpp.serve.access import check_names

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})
"""What needs no key: load balancers have none."""


class Gate:
    """API keys where there is a file of them; else, on addresses of this host alone, the names that
    Host and Origin may say. A UNIX socket is kept by its file's mode, and no browser reaches it."""

    def __init__(self, http: HttpSettings, clock: Clock, *, unix: bool) -> None:
        """Raises ConfigError where the key file is none."""
        self._keys = KeyFile(http.api_key_file, clock) if http.api_key_file else None
        self._check_names = self._keys is None and not unix and not http.insecure_no_auth
        self._allowed = frozenset(name.lower() for name in http.allowed_hosts)

    def check(self, request: web.BaseRequest) -> None:
        """Raises ApiError 401 or 403."""
        if self._check_names:
            check_names(request.headers, self._allowed)
        if self._keys is not None and request.path not in OPEN_PATHS:
            self._keys.current().check(request.headers)
