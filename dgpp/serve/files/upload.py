"""The body of POST /v1/files: multipart/form-data with one file and its purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dgpp.serve.errors import ApiError, invalid
from dgpp.serve.files.errors import invalid_file
from dgpp.serve.jsonsafe import shorten

PURPOSES = ("user_data", "assistants")
FILENAME_BYTES = 1024
PART_HEAD_BYTES = 16 << 10
PARTS = 16

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_PARAMETER = re.compile(r';\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))\s*')
_UNSEEN = re.compile(r"[\x00-\x1f\x7f]")


class Upload(NamedTuple):
    """A file as it came."""

    filename: str
    purpose: str
    data: bytes


def parse_upload(content_type: str, body: bytes) -> Upload:
    """The one `file` and the one `purpose` of a multipart body.

    Raises ApiError: 415 for another content type, else 400 naming the part.
    """
    kind, boundary = _parameters(content_type)
    if kind != "multipart/form-data":
        message = "The body must be multipart/form-data"
        raise ApiError(415, message, param="Content-Type", code="unsupported_content_type")
    limit = boundary.get("boundary", "")
    if not _BOUNDARY.fullmatch(limit):
        raise invalid("Content-Type needs a boundary of 1 to 70 characters", "Content-Type")
    found: dict[str, tuple[dict[str, str], bytes]] = {}
    for disposition, data in _parts(body, limit.encode("ascii")):
        name = disposition.get("name", "")
        if name not in ("file", "purpose"):
            raise invalid(f"The part {shorten(name)!r} is unknown; known are file, purpose", name)
        if name in found:
            raise invalid(f"The part {name} is given twice", name)
        found[name] = (disposition, data)
    for name in ("file", "purpose"):
        if name not in found:
            raise invalid(f"The part {name} is missing", name)
    purpose = found["purpose"][1].decode("utf-8", "replace")
    if purpose not in PURPOSES:
        raise invalid(f"purpose must be one of {', '.join(PURPOSES)}", "purpose")
    disposition, data = found["file"]
    return Upload(check_filename(disposition.get("filename", ""), "file"), purpose, data)


def check_filename(name: str, param: str) -> str:
    """`name`, unless it is empty, too long or holds control characters."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= FILENAME_BYTES:
        raise invalid_file(f"A filename has 1 to {FILENAME_BYTES} bytes, not {size}", param)
    if _UNSEEN.search(name):
        raise invalid_file("A filename holds no control characters", param)
    return name


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[dict[str, str], bytes]]:
    """The parameters of each part's Content-Disposition, and its data."""
    mark = b"--" + boundary
    if not body.startswith(mark + b"\r\n"):
        raise invalid("The body does not begin with its boundary")
    at = len(mark) + 2
    for _ in range(PARTS):
        end = body.find(b"\r\n" + mark, at)
        if end < 0:
            raise invalid("The body ends within a part")
        head = body.find(b"\r\n\r\n", at, at + PART_HEAD_BYTES)
        if head < 0 or head > end:
            raise invalid(f"A part's head has over {PART_HEAD_BYTES} bytes, or no end")
        yield _disposition(body[at : head + 2]), body[head + 4 : end]
        at = end + 2 + len(mark)
        follows = body[at : at + 2]
        if follows == b"--":
            if body[at + 2 :].strip(b"\r\n"):
                raise invalid("Something follows the last part")
            return
        if follows != b"\r\n":
            raise invalid("A boundary is not followed by the end of its line")
        at += 2
    raise invalid(f"The body has over {PARTS} parts")


def _disposition(head: bytes) -> dict[str, str]:
    try:
        lines = head.decode("utf-8").split("\r\n")[:-1]
    except UnicodeDecodeError as error:
        raise invalid("A part's head is not UTF-8") from error
    found: dict[str, str] | None = None
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise invalid("A part's head holds a line that is no field")
        if name.lower() == "content-transfer-encoding":
            raise invalid("Content-Transfer-Encoding is not served: send the bytes as they are")
        if name.lower() == "content-disposition":
            kind, parameters = _parameters(value)
            if kind != "form-data" or found is not None:
                raise invalid("A part has one Content-Disposition, of form-data")
            found = parameters
    if found is None:
        raise invalid("A part has no Content-Disposition")
    return found


def _parameters(text: str) -> tuple[str, dict[str, str]]:
    """The value ahead of the parameters, in lower case, and these; none may be given twice."""
    kind, _, _ = text.partition(";")
    at, found = len(kind), dict[str, str]()
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None:
            raise invalid("The parameters of a field are malformed")
        name, quoted, bare = match.groups()
        if name.lower() in found:
            raise invalid(f"The parameter {shorten(name)} is given twice")
        # Browsers and clients escape the quote and nothing else.
        found[name.lower()] = bare if quoted is None else re.sub(r'\\(["\\])', r"\1", quoted)
        at = match.end()
    return kind.strip().lower(), found
