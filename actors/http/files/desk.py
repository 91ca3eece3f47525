"""Files on the HTTP side: /v1/files, and the file parts of requests turned into text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import orjson
from aiohttp import web

from actors.http.body import Bodies, BodyLimit, read_body
from actors.http.files.extract import Extractor
from actors.http.files.store import FileStore
from dgpp.config.engine_settings import FileInputs
from dgpp.serve import limits
from dgpp.serve.fields import Fields
from dgpp.serve.files.errors import KEYS, file_too_large
from dgpp.serve.files.parts import FilePart, decode_data, file_parts, is_pdf, plain_text
from dgpp.serve.files.stored import deleted_object, list_object
from dgpp.serve.files.upload import parse_upload
from dgpp.serve.request import Kind

FORM_BYTES = 64 << 10
"""What a multipart body may have beside its file."""

T = TypeVar("T")


class FileDesk:
    """Takes, gives and reads files. Nothing of it waits for a disk on the loop."""

    def __init__(self, file_inputs: FileInputs, bodies: Bodies, largest: BodyLimit) -> None:
        """Raises ConfigError where the directory of files cannot be used."""
        self.file_inputs = file_inputs
        self._bodies = bodies
        own = file_inputs.max_file_bytes + FORM_BYTES
        self._max_upload = min(largest, BodyLimit(own, f"{KEYS}.max_file_bytes"))
        self._store = FileStore(file_inputs.directory, file_inputs.max_storage_bytes)
        self._extractor = Extractor(file_inputs)

    def close(self) -> None:
        self._store.close()

    async def upload(self, request: web.BaseRequest) -> web.Response:
        """POST /v1/files."""
        with self._bodies.hold(request):
            body = await read_body(request, self._max_upload)
            kind = request.headers.get("Content-Type", "")
            upload = await _off_loop(parse_upload, kind, body)
            self._check_size(len(upload.data), "file")
            stored = await _off_loop(self._store.add, upload)
        return _json(stored.object())

    async def all(self, request: web.BaseRequest) -> web.Response:
        """GET /v1/files."""
        return _json(list_object(await _off_loop(self._store.all)))

    async def one(self, request: web.BaseRequest) -> web.Response:
        """GET /v1/files/{id}."""
        return _json((await _off_loop(self._store.get, _id(request))).object())

    async def content(self, request: web.BaseRequest) -> web.Response:
        """GET /v1/files/{id}/content."""
        data = await _off_loop(self._store.content, _id(request))
        return web.Response(body=data, content_type="application/octet-stream")

    async def delete(self, request: web.BaseRequest) -> web.Response:
        """DELETE /v1/files/{id}."""
        await _off_loop(self._store.delete, _id(request))
        return _json(deleted_object(_id(request)))

    async def fill(self, kind: Kind, fields: Fields) -> None:
        """Put the text of its files into a request's body. Raises ApiError naming the part."""
        parts = file_parts(kind, fields)
        sizes = characters = 0
        for part in parts:
            filename, data = await self._data(part)
            sizes += len(data)
            if sizes > self.file_inputs.max_request_bytes:
                limit = f"{KEYS}.max_request_bytes = {self.file_inputs.max_request_bytes}"
                message = f"The files of one request may have {limit} bytes"
                raise file_too_large(message, part.path)
            text = part.text
            if text is None:
                text = await self._text(filename, data, part.path)
            characters += len(text)
            if characters > limits.DOCUMENT_CHARS:
                message = f"The text of its files has over {limits.DOCUMENT_CHARS} characters"
                raise file_too_large(message, part.path)
            part.fill(filename, text)

    async def _data(self, part: FilePart) -> tuple[str, bytes]:
        if part.text is not None:
            return part.filename, b""
        if part.file_id is not None:
            at = f"{part.path}.file_id"
            stored = await _off_loop(self._store.get, part.file_id, at)
            return stored.filename, await _off_loop(self._store.content, part.file_id, at)
        assert part.data is not None
        at = f"{part.path}.{'data' if part.part['type'] == 'document' else 'file_data'}"
        self._check_size(len(part.data) * 3 // 4 - 2, at)
        return part.filename, await _off_loop(decode_data, part.data, at)

    async def _text(self, filename: str, data: bytes, param: str) -> str:
        if is_pdf(data):
            return await self._extractor.text(data, param)
        if len(data) > self.file_inputs.max_text_bytes:
            limit = f"{KEYS}.max_text_bytes = {self.file_inputs.max_text_bytes}"
            raise file_too_large(f"A text may have {limit} bytes", param)
        return await _off_loop(plain_text, filename, data, param)

    def _check_size(self, size: int, param: str) -> None:
        limit = self.file_inputs.max_file_bytes
        if size > limit:
            raise file_too_large(f"A file may have {KEYS}.max_file_bytes = {limit} bytes", param)


def _id(request: web.BaseRequest) -> str:
    return request.path.removeprefix("/v1/files/").removesuffix("/content")


def _json(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


async def _off_loop(work: Callable[..., T], *given: object) -> T:
    return await asyncio.to_thread(work, *given)
