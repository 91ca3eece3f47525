"""A stored file as clients see it, and the ids that files have."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

_ID = re.compile(r"file-[0-9a-f]{32}")


class StoredFile(msgspec.Struct, frozen=True):
    """`bytes` is the size, `created_at` in Unix seconds."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str

    def object(self) -> dict[str, Any]:
        """The file object of the API."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def new_id() -> str:
    """An id that nobody can guess."""
    return f"file-{secrets.token_hex(16)}"


def is_id(text: str) -> bool:
    """Whether `text` can be an id; only such text ever becomes part of a path."""
    return _ID.fullmatch(text) is not None


def list_object(files: Iterable[StoredFile]) -> dict[str, Any]:
    """All files, the newest first."""
    newest = sorted(files, key=lambda file: (file.created_at, file.id), reverse=True)
    return {"object": "list", "data": [file.object() for file in newest], "has_more": False}


def deleted_object(name: str) -> dict[str, Any]:
    """The answer to DELETE."""
    return {"id": name, "object": "file", "deleted": True}
