"""What each path answers: requests in, responses out, errors in the API's own form."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson
from aiohttp import web

from actors.http.body import Bodies, BodyLimit, check_head, read_body
from actors.http.connection import REQUEST_ID, connection_of
from actors.http.files.desk import FileDesk
from actors.http.flight import Flight, random_letters
from actors.http.gate import Gate
from actors.http.sse import Events
from dgpp.log import log_event
from dgpp.serve.access import request_id
from dgpp.serve.anthropic.request import parse_count
from dgpp.serve.errors import ApiError
from dgpp.serve.fields import Fields
from dgpp.serve.fronts import FRONTS, error_body
from dgpp.serve.health import Health
from dgpp.serve.limits import INLINE_BODY_BYTES
from dgpp.serve.metrics import MetricsSnapshot
from dgpp.serve.models import find_model, model_list
from dgpp.serve.openapi.document import document
from dgpp.serve.prometheus import CONTENT_TYPE, prometheus_text
from dgpp.serve.request import GenerationRequest, Kind
from dgpp.serve.responses import response_id
from dgpp.serve.served import ServedModel
from dgpp.serve.tokens import parse_detokenize, parse_tokenize, tokenize_object

_log = logging.getLogger("dgpp.http")

JSON = "application/json"
STAMPS = "x-dgpp-stamps"

Parse = Callable[[Fields, str, ServedModel], GenerationRequest]
T = TypeVar("T")


class Desk(Protocol):
    """What the routes need of the actor behind them."""

    model: ServedModel
    max_body: BodyLimit
    version: str
    metrics_compat: str
    gate: Gate
    bodies: Bodies

    @property
    def files(self) -> FileDesk: ...

    def admit(self) -> None:
        """Count a request. Raises ApiError when none is taken now: starting, draining, failed."""

    def launch(self, flight: Flight) -> None:
        """Send the request on its way. Raises ApiError `overloaded` when the door is full."""

    def land(self, flight: Flight, outcome: str) -> None:
        """Its client is answered or gone."""

    async def encode(self, request: GenerationRequest) -> bytes:
        """Packed u32 ids of the request's prompt. Raises ApiError where there are none."""

    async def decode(self, ids: bytes) -> str:
        """The text of packed u32 `ids`, control tokens by name."""

    def look(self) -> Health:
        """How the server is, at this moment."""

    def metrics(self) -> MetricsSnapshot: ...

    def rejected(self) -> None:
        """A request was answered with a 4xx."""


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Routes:
    """Dispatch by path and method; model ids may contain slashes."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="parser")
        self._document: bytes | None = None
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/responses": {"POST": self._responses},
            "/v1/messages": {"POST": self._messages},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/models": {"GET": self._models},
            "/v1/files": {"GET": self._files, "POST": self._upload},
            "/health": {"GET": self._ready},
            "/health/ready": {"GET": self._ready},
            "/health/live": {"GET": self._live},
            "/openapi.json": {"GET": self._openapi},
            "/metrics": {"GET": self._metrics},
            "/v1/metrics": {"GET": self._metrics},
            "/metrics/prometheus": {"GET": self._prometheus},
            "/prometheus/metrics": {"GET": self._prometheus},
        }

    def paths(self) -> dict[str, tuple[str, ...]]:
        """The methods of each path; that of one model has its id in braces."""
        found = {path: tuple(methods) for path, methods in self._routes.items()}
        return {
            **found,
            "/v1/models/{id}": ("GET",),
            "/v1/files/{id}": ("GET", "DELETE"),
            "/v1/files/{id}/content": ("GET",),
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every fault of it is answered, none is raised."""
        name = request_id(request.headers.get(REQUEST_ID))
        request[REQUEST_ID] = name
        try:
            response = await self._find(request)(request)
        except ApiError as error:
            if error.status < 500:
                self._desk.rejected()
            response = error_response(error, request.path)
        except ConnectionError:
            # The client is gone; aiohttp sees that too when it tries to send this.
            response = web.Response(status=499)
        if not response.prepared:
            response.headers[REQUEST_ID] = name
        return response

    def _find(self, request: web.BaseRequest) -> Handler:
        check_head(request)
        self._desk.gate.check(request)
        path, method = request.path, request.method
        methods = self._routes.get(path)
        if methods is None and path.startswith("/v1/models/"):
            methods = {"GET": self._model}
        if methods is None and path.startswith("/v1/files/"):
            methods = {"GET": self._file, "DELETE": self._delete_file}
            if path.endswith("/content"):
                methods = {"GET": self._file_content}
        if methods is None:
            raise ApiError(404, f"unknown route: {method} {path}")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise ApiError(405, f"{path} does not take {method}, only {', '.join(methods)}")
        return handler

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def _completion(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, "completion")

    async def _responses(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, "responses")

    async def _messages(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, "messages")

    async def _count_tokens(self, request: web.BaseRequest) -> web.StreamResponse:
        self._desk.admit()
        asked = await self._parse(request, "messages", parse_count)
        return _json({"input_tokens": len(await self._desk.encode(asked)) // 4})

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        self._desk.admit()
        asked = await self._parse(request, "completion", parse_tokenize)
        return _json(tokenize_object(await self._desk.encode(asked), self._desk.model))

    async def _detokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        self._desk.admit()
        body = await read_body(request, self._desk.max_body)
        ids = parse_detokenize(body, self._desk.model)
        return _json({"prompt": await self._desk.decode(ids)})

    async def _generate(self, request: web.BaseRequest, kind: Kind) -> web.StreamResponse:
        self._desk.admit()
        generation = await self._parse(request, kind, FRONTS[kind].parse)
        if (named := request[REQUEST_ID]) == request.headers.get(REQUEST_ID):
            log_event(_log, "request", id=generation.id, x_request_id=named)
        answer = self._stream if generation.stream else self._whole
        with connection_of(request).generating():
            return await answer(request, generation)

    async def _parse(
        self, request: web.BaseRequest, kind: Kind, parser: Parse
    ) -> GenerationRequest:
        """Read and validate the body. Large ones are parsed in one thread, so that together they
        take no more of the interpreter from the streams than one does."""
        with self._desk.bodies.hold(request) as size:
            body = await read_body(request, self._desk.max_body)
            name = response_id(kind, secrets.randbits(64))
            fields = await self._maybe_apart(request, size, partial(Fields.of, body))
            await self._desk.files.fill(kind, fields)
            parse = partial(parser, fields, name, self._desk.model)
            return await self._maybe_apart(request, size, parse)

    async def _maybe_apart(self, request: web.BaseRequest, size: int, work: Callable[[], T]) -> T:
        if size <= INLINE_BODY_BYTES:
            return work()
        return await request.loop.run_in_executor(self._parser, work)

    async def _whole(
        self, request: web.BaseRequest, generation: GenerationRequest
    ) -> web.StreamResponse:
        whole = FRONTS[generation.kind].whole(generation, int(time.time()))
        flight = Flight(generation, whole, request.loop)
        outcome = "disconnected"
        try:
            self._desk.launch(flight)
            await flight.done()
            outcome = "answered"
        except ApiError as error:
            outcome = error.code or "refused"
            raise
        finally:
            self._desk.land(flight, outcome)
        if generation.scored < 0:
            return web.Response(body=whole.json(), content_type=JSON)
        # The lists of a long prompt take a while to write.
        body = await request.loop.run_in_executor(self._parser, whole.json)
        return web.Response(body=body, content_type=JSON)

    async def _stream(
        self, request: web.BaseRequest, generation: GenerationRequest
    ) -> web.StreamResponse:
        streamed = FRONTS[generation.kind].streamed(generation, int(time.time()), random_letters)
        flight = Flight(generation, streamed, request.loop)
        flight.stamped = request.headers.get(STAMPS) == "1"
        outcome = "disconnected"
        events: Events | None = None
        try:
            self._desk.launch(flight)
            interval = generation.ping_interval
            speaking = await flight.started(interval if interval > 0 else None)
            events = await Events.begin(request, interval, {REQUEST_ID: request[REQUEST_ID]})
            if not speaking:
                events.keep_alive()
            flight.attach(events.write)
            await flight.done()
            response = await events.end()
            outcome = "answered"
        except ApiError as error:
            outcome = error.code or "refused"
            raise
        finally:
            if events is not None:
                events.close()
                if events.gave_up is not None:
                    outcome = f"given up: {events.gave_up}"
            self._desk.land(flight, outcome)
        return response

    async def _upload(self, request: web.BaseRequest) -> web.StreamResponse:
        self._desk.admit()
        return await self._desk.files.upload(request)

    async def _files(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._desk.files.all(request)

    async def _file(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._desk.files.one(request)

    async def _file_content(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._desk.files.content(request)

    async def _delete_file(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._desk.files.delete(request)

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json(model_list(self._desk.model))

    async def _model(self, request: web.BaseRequest) -> web.StreamResponse:
        name = request.path.removeprefix("/v1/models/")
        return _json(find_model(self._desk.model, name))

    async def _ready(self, request: web.BaseRequest) -> web.StreamResponse:
        health = self._desk.look()
        return _json(health.object(), 200 if health.ready else 503)

    async def _live(self, request: web.BaseRequest) -> web.StreamResponse:
        health = self._desk.look()
        return _json(health.object(), 200 if health.live else 503)

    async def _openapi(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._document is None:
            self._document = orjson.dumps(document(self._desk.model, self._desk.version))
        return web.Response(body=self._document, content_type=JSON)

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        # A scraper that is told no path asks here, and says what it reads.
        if "text/plain" in request.headers.get("Accept", ""):
            return await self._prometheus(request)
        return web.Response(body=self._desk.metrics().json(), content_type=JSON)

    async def _prometheus(self, request: web.BaseRequest) -> web.StreamResponse:
        text = prometheus_text(self._desk.metrics(), self._desk.model.id, self._desk.metrics_compat)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type=JSON)


def error_response(error: ApiError, path: str = "") -> web.Response:
    """`error` as a response; one that leaves a body unread closes its connection."""
    response = web.Response(status=error.status, body=error_body(error, path), content_type=JSON)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.status in (401, 403, 408, 411, 413, 415, 431, 501, 505):
        response.force_close()
    return response
