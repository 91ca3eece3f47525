"""The file parts of a request: where they stand, what they name, and the text they become."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from dgpp.serve.errors import invalid
from dgpp.serve.fields import Fields
from dgpp.serve.files.errors import invalid_file
from dgpp.serve.files.upload import check_filename
from dgpp.serve.request import Kind

TEXT_SUFFIXES = frozenset(
    {"txt", "md", "markdown", "json", "jsonl", "csv", "tsv", "html", "xml", "yaml", "yml", "log"}
    | {"py", "js", "ts", "tsx", "jsx", "c", "cpp", "h", "hpp", "rs", "go", "sh", "sql", "toml"}
    | {"ini"}
)
"""Names that end so are text, in UTF-8."""

_DATA_URI = re.compile(r"data:[^,;]*(?:;[^,;]*)*;base64,")


class FilePart(NamedTuple):
    """One file of a request. Exactly one of `file_id` and `data` (base64) is given.

    `part` is the content part in the request's own object, which `fill` turns into text; `path` is
    where its members stand."""

    part: dict[str, Any]
    path: str
    filename: str
    file_id: str | None
    data: str | None

    def fill(self, filename: str, text: str) -> None:
        """Put `text` in the place of the file."""
        kind = "text" if self.part["type"] == "file" else "input_text"
        self.part.clear()
        shown = f"\n[Document: {filename}]\n{text}\n[End document]\n"
        self.part.update({"type": kind, "text": shown})


def file_parts(kind: Kind, fields: Fields) -> list[FilePart]:
    """The file parts of users' turns, in order. Raises ApiError naming the member at fault; what is
    malformed otherwise is left for the parser of `kind`."""
    name, wanted = {"chat": ("messages", "file"), "responses": ("input", "input_file")}.get(
        kind, ("", "")
    )
    found = []
    for path, part in _parts(fields, name):
        if part.get("type") == wanted:
            found.append(_file_part(part, path))
    return found


def _parts(fields: Fields, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    entries = fields.get(name) if name else None
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if not isinstance(entry, dict) or entry.get("role") != "user":
            continue
        parts = entry.get("content")
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict):
                yield f"{name}[{index}].content[{place}]", part


def _file_part(part: dict[str, Any], path: str) -> FilePart:
    """Chat wraps what a file is in an object `file`; responses have it flat."""
    outer = Fields(part, path)
    outer.refuse("prompt_cache_breakpoint")
    given = outer.object("file") if part["type"] == "file" else outer
    if given is None:
        raise invalid(f"{outer.path('file')} is required", outer.path("file"))
    given.refuse("file_url")
    if given is not outer:
        given.only(("filename", "file_data", "file_id", "file_url"))
    name, number, data = (given.text(key) for key in ("filename", "file_id", "file_data"))
    at = path if given is outer else f"{path}.file"
    if (number is None) == (data is None):
        raise invalid_file(f"{at} needs one of file_id and file_data", at)
    if data is not None:
        if name is None:
            raise invalid_file(f"{given.path('filename')} is required", given.path("filename"))
        check_filename(name, given.path("filename"))
    return FilePart(part, at, name or "", number, data)


def decode_data(data: str, param: str) -> bytes:
    """The bytes of padded, canonical base64, with or without a data URI's head. Raises ApiError."""
    head = _DATA_URI.match(data[:1024])
    if head is not None:
        data = data[head.end() :]
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid_file(f"{param} is not base64", param) from error
    if base64.b64encode(found).decode() != data:
        raise invalid_file(f"{param} is not canonical base64", param)
    return found


def is_pdf(data: bytes) -> bool:
    return data.startswith(b"%PDF-")


def plain_text(filename: str, data: bytes, param: str) -> str:
    """The text of a file that is no PDF. Raises ApiError where it is no text."""
    suffix = filename.rpartition(".")[2].lower() if "." in filename else ""
    if suffix not in TEXT_SUFFIXES:
        message = f"{param}: only PDF and text files are read, not .{suffix or '?'}"
        raise invalid_file(message, param)
    if b"\0" in data:
        raise invalid_file(f"{param} holds a NUL byte: it is no text", param)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"{param} is not UTF-8: byte {error.start} is out of place"
        raise invalid_file(message, param) from error
