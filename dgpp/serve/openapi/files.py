"""The paths of /v1/files in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgpp.serve.files.upload import FILENAME_BYTES, PURPOSES
from dgpp.serve.openapi.answers import COUNT, FLAG, TEXT, Schema, array, closed, known, ref

_ID = "^file-[0-9a-f]{32}$"
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": FILENAME_BYTES}

FILE_SCHEMAS: dict[str, Schema] = {
    "File": closed(
        id={"type": "string", "pattern": _ID},
        object=known("file"),
        bytes=COUNT,
        created_at=COUNT,
        filename=_NAME,
        purpose=known(*PURPOSES),
        status=known("processed"),
        status_details={"type": "null"},
    ),
    "Files": closed(object=known("list"), data=array(ref("File")), has_more=FLAG),
    "DeletedFile": closed(id=TEXT, object=known("file"), deleted=FLAG),
}

Refusals = Callable[[tuple[int, ...]], dict[str, Any]]


def file_paths(of_any: tuple[int, ...], of_bodies: tuple[int, ...], refusals: Refusals) -> Schema:
    """`refusals` says what is answered with statuses: `of_any` request, and `of_bodies`."""

    def operation(name: str, summary: str, schema: Schema, kind: str, *more: int) -> Schema:
        answer = {"description": "The answer", "content": {kind: {"schema": schema}}}
        return {
            "operationId": name,
            "summary": summary,
            "responses": {"200": answer, **refusals((*of_any, *more))},
        }

    json = "application/json"
    form = {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "purpose": known(*PURPOSES),
        },
        "required": ["file", "purpose"],
        "additionalProperties": False,
    }
    named: Schema = {"type": "string", "pattern": _ID}
    one = [{"name": "id", "in": "path", "required": True, "schema": named}]
    upload = operation("createFile", "Keep a file", ref("File"), json, *of_bodies)
    upload["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    content = operation(
        "getFileContent",
        "A file's bytes",
        {"type": "string", "format": "binary"},
        "application/octet-stream",
        404,
    )
    return {
        "/v1/files": {
            "get": operation("listFiles", "All files", ref("Files"), json),
            "post": upload,
        },
        "/v1/files/{id}": {
            "get": {**operation("getFile", "One file", ref("File"), json, 404), "parameters": one},
            "delete": {
                **operation("deleteFile", "Delete it", ref("DeletedFile"), json, 404),
                "parameters": one,
            },
        },
        "/v1/files/{id}/content": {"get": {**content, "parameters": one}},
    }
