"""Who may ask: API keys, the names under which this server may be addressed, and request ids."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from dgpp.errors import ConfigError
from dgpp.serve.errors import ApiError

KEY = "http.api_key_file"
KEY_FILE_BYTES = 1 << 20
KEYS = 1024
KEY_CHARS = (16, 512)

_KEY = re.compile(rb"[!-~]{%d,%d}" % KEY_CHARS)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class ApiKeys:
    """The keys of one file. Only their digests are kept, so that nothing can print one."""

    def __init__(self, digests: tuple[bytes, ...]) -> None:
        self._digests = digests

    @classmethod
    def parse(cls, content: bytes, path: str) -> ApiKeys:
        """One key a line; empty lines and lines that begin with # do not count.

        Raises ConfigError naming the line, never a key.
        """
        digests = []
        for number, line in enumerate(content.splitlines(), 1):
            key = line.strip()
            if not key or key.startswith(b"#"):
                continue
            if not _KEY.fullmatch(key):
                low, high = KEY_CHARS
                raise ConfigError(
                    f"{KEY} = {path}: line {number}: a key has {low} to {high} visible ASCII "
                    "characters and no blanks"
                )
            digests.append(_digest(key))
        if not digests:
            raise ConfigError(f"{KEY} = {path}: holds no key")
        if len(digests) > KEYS:
            raise ConfigError(f"{KEY} = {path}: holds {len(digests)} keys, at most {KEYS}")
        return cls(tuple(digests))

    def __len__(self) -> int:
        return len(self._digests)

    def know(self, key: str) -> bool:
        """Whether `key` is one of them; takes as long whichever it is, and whichever it is not."""
        given = _digest(key.encode("utf-8", "surrogateescape"))
        known = False
        for digest in self._digests:
            known |= hmac.compare_digest(digest, given)
        return known

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises ApiError 401 without a key of theirs in `Authorization: Bearer KEY` or
        `x-api-key: KEY`. Names of headers are looked up as `headers` does."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        key = bearer or headers.get("x-api-key", "").strip()
        if not key:
            raise unauthorized("An API key is required: Authorization: Bearer KEY, or x-api-key")
        if not self.know(key):
            raise unauthorized("The API key is not known")


def unauthorized(message: str) -> ApiError:
    """401 `invalid_api_key`."""
    return ApiError(401, message, code="invalid_api_key")


def check_names(headers: Mapping[str, str], allowed: Collection[str]) -> None:
    """Keep web pages of other sites out of a server that asks for no key.

    A page can make a browser call this host: by a name of its own that it has resolve to 127.0.0.1,
    which then stands in Host, or across sites, when its own name stands in Origin. Raises ApiError
    403 where either names another host than this one or one of `allowed` (lower case).
    """
    for header, text in (("Host", headers.get("Host")), ("Origin", headers.get("Origin"))):
        if text is None:
            continue
        name = _host_name(text if header == "Origin" else f"//{text}")
        if not _is_local(name) and name not in allowed:
            raise ApiError(
                403,
                f"The {header} header names another host than this one; http.allowed_hosts may "
                "list it, and with http.api_key_file any may stand there",
                code="host_not_allowed",
            )


def request_id(given: str | None) -> str:
    """The client's own x-request-id where it is safe to repeat (at most 128 letters, digits and
    some marks), else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"req_{secrets.token_hex(16)}"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _host_name(text: str) -> str:
    """The host in `text`, a URL or one without a scheme; empty where there is none."""
    try:
        return (urlsplit(text).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
