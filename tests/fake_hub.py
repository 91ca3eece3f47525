"""A Hugging Face hub of one's own on loopback: models from dictionaries, and faults on demand."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading

from aiohttp import web

TERMS = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}
LARGE = 1 << 10
"""Files from this size on are kept as large ones, named by their SHA-256."""


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def model_files(seed: int = 0, shards: int = 2, size: int = 300_000) -> dict[str, bytes]:
    """The files of a model that nothing computes with, and some that no server needs."""
    block = hashlib.shake_256(seed.to_bytes(8, "big")).digest(size * shards)
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    weights = {name: block[n * size :][:size] for n, name in enumerate(names)}
    index = json.dumps({"weight_map": {f"t{n}": name for n, name in enumerate(names)}})
    return weights | {
        "model.safetensors.index.json": index.encode(),
        "config.json": b'{"model_type":"glm4_moe"}',
        "tokenizer.json": b'{"model":{}}' + b" " * LARGE,
        "tokenizer_config.json": b"{}",
        "generation_config.json": b"{ }",
        "chat_template.jinja": b"{{ messages }}",
        "README.md": b"# read me",
        "pytorch_model.bin": block[:5000],
        "consolidated.safetensors": block[:5000],
        "original/model.safetensors": block[:5000],
    }


class FakeHub:
    """`models[ORG/NAME][REVISION]` is a model's files; `gated` models give no bytes.

    `cut[name]` is how many bytes of a file are sent before the connection ends, try by try. `spoil`
    names files that are sent with another first byte, as often as stated.
    """

    def __init__(self) -> None:
        self.models: dict[str, dict[str, dict[str, bytes]]] = {}
        self.gated: set[str] = set()
        self.cut: dict[str, list[int]] = {}
        self.spoil: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        started = threading.Event()
        self._loop.call_soon(started.set)
        self._thread.start()
        started.wait()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def commit(self, model: str, revision: str = "main") -> str:
        """The commit that `revision` of `model` is."""
        return hashlib.sha1(f"{model}@{revision}".encode()).hexdigest()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self) -> None:
        app = web.Application()
        model = "{org}/{name}"
        app.router.add_get(f"/api/models/{model}/revision/{{revision}}", self._info)
        app.router.add_get(f"/api/models/{model}/auth-check", self._check)
        app.router.add_get(f"/api/models/{model}/tree/{{revision}}", self._tree)
        app.router.add_get(f"/{model}/resolve/{{revision}}/{{file:.*}}", self._file)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    def _find(self, request: web.Request) -> tuple[str, str, dict[str, bytes]]:
        """The model asked for, its commit and its files."""
        model = f"{request.match_info['org']}/{request.match_info['name']}"
        if model not in self.models:
            raise web.HTTPNotFound(headers={"X-Error-Code": "RepoNotFound"})
        asked = request.match_info.get("revision", "main")
        for revision, files in self.models[model].items():
            if asked in (revision, self.commit(model, revision)):
                return model, self.commit(model, revision), files
        raise web.HTTPNotFound(headers={"X-Error-Code": "RevisionNotFound"})

    async def _info(self, request: web.Request) -> web.Response:
        model, commit, files = self._find(request)
        return web.json_response(
            {"id": model, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        )

    async def _check(self, request: web.Request) -> web.Response:
        if self._find(request)[0] in self.gated:
            raise web.HTTPForbidden(headers=TERMS)
        return web.json_response({})

    async def _tree(self, request: web.Request) -> web.Response:
        _, _, files = self._find(request)
        recursive = request.query.get("recursive", "").lower() == "true"
        entries = []
        for name, data in files.items():
            if "/" in name and not recursive:
                entries.append({"type": "directory", "path": name.split("/")[0], "oid": "0" * 40})
                continue
            entry = {"type": "file", "path": name, "size": len(data), "oid": git_blob(data)}
            if len(data) >= LARGE:
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 130}
            entries.append(entry)
        return web.json_response(entries)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        model, commit, files = self._find(request)
        if model in self.gated:
            raise web.HTTPForbidden(headers=TERMS)
        name = request.match_info["file"]
        data = files[name]
        large = len(data) >= LARGE
        etag = hashlib.sha256(data).hexdigest() if large else git_blob(data)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if self.spoil.get(name, 0) and request.method == "GET":
            self.spoil[name] -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        asked = request.http_range
        begin = asked.start or 0
        part = data[begin : asked.stop]
        status = 206 if "Range" in request.headers else 200
        if status == 206:
            headers["Content-Range"] = f"bytes {begin}-{begin + len(part) - 1}/{len(data)}"
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = len(part)
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        cuts = self.cut.get(name, [])
        end = cuts.pop(0) if cuts else len(part)
        await response.write(part[:end])
        self.sent[name] = self.sent.get(name, 0) + min(end, len(part))
        if end < len(part):
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write_eof()
        return response
