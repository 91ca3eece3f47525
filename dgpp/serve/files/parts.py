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
_KINDS: dict[Kind, tuple[str, str]] = {
    "chat": ("messages", "file"),
    "responses": ("input", "input_file"),
    "messages": ("messages", "document"),
}
"""Where the turns of a request are, and what its file parts are called."""

_MEDIA = {"application/pdf": "document.pdf", "text/plain": "document.txt"}
"""Media types of Anthropic's documents, and what those without a title are called."""


class FilePart(NamedTuple):
    """One file of a request. Exactly one of `file_id`, `data` (base64) and `text` is given.

    `part` is the content part in the request's own object, which `fill` turns into text; `path` is
    where its members stand."""

    part: dict[str, Any]
    path: str
    filename: str
    file_id: str | None
    data: str | None
    text: str | None = None

    def fill(self, filename: str, text: str) -> None:
        """Put `text` in the place of the file."""
        kind = "input_text" if self.part["type"] == "input_file" else "text"
        self.part.clear()
        shown = f"\n[Document: {filename}]\n{text}\n[End document]\n"
        self.part.update({"type": kind, "text": shown})


def file_parts(kind: Kind, fields: Fields) -> list[FilePart]:
    """The file parts of users' turns, in order. Raises ApiError naming the member at fault; what is
    malformed otherwise is left for the parser of `kind`."""
    name, wanted = _KINDS.get(kind, ("", ""))
    read = _document if kind == "messages" else _file_part
    return [read(part, path) for path, part in _parts(fields, name) if part.get("type") == wanted]


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


def _document(part: dict[str, Any], path: str) -> FilePart:
    """Anthropic's: a `source` of type base64, text or file, and perhaps a `title`."""
    outer = Fields(part, path)
    source = outer.object("source")
    if source is None:
        raise invalid(f"{outer.path('source')} is required", outer.path("source"))
    title, at = outer.text("title"), outer.path("source")
    kind = source.one_of("type", ("base64", "text", "file"))
    if kind == "file":
        return FilePart(part, at, "", source.needed_text("file_id"), None)
    media = source.text("media_type") or ""
    if kind is None or media not in _MEDIA or (kind == "text" and media != "text/plain"):
        raise invalid_file(f"{at} must be base64, of {' or '.join(_MEDIA)}, text, or file", at)
    name = check_filename(title or _MEDIA[media], outer.path("title"))
    if media == "text/plain" and not name.lower().endswith(".txt"):
        name += ".txt"
    data = source.needed_text("data")
    if kind == "text":
        return FilePart(part, at, name, None, None, data)
    return FilePart(part, at, name, None, data)


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
