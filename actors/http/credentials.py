"""The files behind the door's lock, read again when they change: API keys, certificate and key."""

from __future__ import annotations

import logging
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dgpp.config.secret_file import read_secret
from dgpp.config.settings import HttpSettings
from dgpp.errors import ConfigError
from dgpp.serve.access import KEY, KEY_FILE_BYTES, ApiKeys

LOOK_S = 1.0
"""Files are looked at this often, and only while somebody asks."""

_log = logging.getLogger("dgpp.http")

Clock = Callable[[], float]


class Watch:
    """Says when some of `paths` are no longer what they were."""

    def __init__(self, paths: tuple[Path, ...], clock: Clock) -> None:
        self._paths = paths
        self._clock = clock
        self._seen = self._look()
        self._due = clock() + LOOK_S

    def changed(self) -> bool:
        """True once for each change."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + LOOK_S
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def _look(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(_signature, self._paths))


class KeyFile:
    """The API keys in force. A change that cannot be taken is logged, and the keys before it stay:
    whoever edits the file locks nobody out halfway."""

    def __init__(self, path: str, clock: Clock) -> None:
        """Raises ConfigError where the file is not one of keys, or others may read it."""
        self._path = path
        self._watch = Watch((Path(path).expanduser(),), clock)
        self._keys = self._load()

    def current(self) -> ApiKeys:
        if self._watch.changed():
            try:
                self._keys = self._load()
            except ConfigError as error:
                _log.error("%s; the keys read before stay in force", error)
            else:
                _log.info("%s read again: %d keys", KEY, len(self._keys))
        return self._keys

    def _load(self) -> ApiKeys:
        return ApiKeys.parse(read_secret(self._path, KEY, KEY_FILE_BYTES), self._path)


class Certificate:
    """The server's TLS context. New connections get a renewed certificate; running ones keep
    theirs."""

    def __init__(self, http: HttpSettings, clock: Clock) -> None:
        """Raises ConfigError where the two files are not a certificate chain and its key."""
        self._cert = Path(http.tls_cert).expanduser()
        self._key = Path(http.tls_key).expanduser()
        self._watch = Watch((self._cert, self._key), clock)
        self.context = self._fresh()

    def refresh(self) -> None:
        if not self._watch.changed():
            return
        try:
            # A context of its own first: a certificate whose key has not come yet would leave the
            # one in use without any.
            self._fresh()
            self._load(self.context)
        except ConfigError as error:
            _log.error("%s; the certificate read before stays in force", error)
        else:
            _log.info("http.tls_cert read again")

    def _fresh(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        for key, path in (("http.tls_cert", self._cert), ("http.tls_key", self._key)):
            try:
                mode = path.stat().st_mode
            except OSError as error:
                raise ConfigError(f"{key} = {path}: {error.strerror}") from error
            if key == "http.tls_key" and mode & stat.S_IRWXO:
                raise ConfigError(f"{key} = {path}: all may read it; chmod o-rwx")
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except ssl.SSLError as error:
            why = error.reason or "not PEM"
            raise ConfigError(f"http.tls_cert, http.tls_key: {why.replace('_', ' ')}") from error
        except OSError as error:
            raise ConfigError(f"http.tls_key = {self._key}: {error.strerror}") from error


def _no_password() -> NoReturn:
    raise ConfigError("http.tls_key: is encrypted; give one that is not, readable by its owner")


def _signature(path: Path) -> tuple[int, ...]:
    """Empty where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
