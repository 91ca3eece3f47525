"""The http actor: sockets, the door, and the flights between clients and the other actors."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

from actors.channel import Arrays
from actors.context import Context
from actors.http.body import Bodies, BodyLimit
from actors.http.connection import Listener
from actors.http.credentials import Certificate
from actors.http.endpoint import Endpoint
from actors.http.files.desk import FileDesk
from actors.http.flight import Flight, Flights
from actors.http.gate import Gate
from actors.http.questions import Questions
from actors.http.routes import Routes
from actors.http.snapshot import load, snapshot
from actors.messages.http_scheduler import Cancel
from actors.messages.http_tokenizer import Decode, Encode, Forget, Prepare
from actors.messages.scheduler_http import Queued, Refused, Seated
from actors.messages.tokenizer_http import Decoded, Deltas, Encoded, Prepared, Rejected
from actors.role import Role
from dgpp.config.engine_settings import FileInputs
from dgpp.log import log_event
from dgpp.sched.admission import CONTEXT_LENGTH_EXCEEDED, TOO_MANY_CHOICES, request_of
from dgpp.serve.errors import ApiError, engine_failed, invalid, overloaded, shutting_down, timed_out
from dgpp.serve.health import Health, State
from dgpp.serve.limits import TEXT_BODY_BYTES
from dgpp.serve.metrics import MetricsSnapshot
from dgpp.serve.request import GenerationRequest

TOKENIZER = "http>tokenizer"
SCHEDULER = "http>scheduler"

LAST_WORDS_S = 0.5
"""What streams get to end with an error event, before the drain timeout is over."""

_log = logging.getLogger("dgpp.http")


class HttpActor(Role):
    """Rank 0's front end. It never waits for another actor and never for a client."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        settings = self.boot.settings
        self.model = self.boot.served
        self.version = self.boot.version
        self.metrics_compat: str = settings.http.metrics_compat
        self._largest = BodyLimit(settings.http.max_body_bytes, "http.max_body_bytes")
        self.max_body = min(self._largest, BodyLimit(TEXT_BODY_BYTES, "of JSON"))
        self.health = Health(self.model.id)
        self.gate: Gate
        self.bodies = Bodies()
        self._files: FileDesk | None = None
        self._flights = Flights()
        self._questions = Questions()
        self._seats: dict[int, str] = {}
        self._door_limit = settings.engine.queue_limit + settings.engine.max_concurrency
        self._routes = Routes(self)
        self._listener: Listener | None = None
        self._endpoint: Endpoint | None = None
        block = context.statistics
        self._count = {
            name: block.counter(name)
            for name in (
                *("requests", "shed", "cancelled", "failed", "rejected"),
                *("connections_refused", "tool_calls"),
            )
        }
        self._at_door = block.gauge("at_door")
        self._in_flight = block.gauge("in_flight")
        # By whether anything of the prompt came from the prefix cache.
        self._first_token = {
            False: block.histogram("first_token_seconds"),
            True: block.histogram("first_token_hit_seconds"),
        }
        self._request_time = block.histogram("request_seconds")
        self._token_time = block.histogram("time_per_token_seconds")

    async def start(self) -> None:
        """Listen at once, so that a port in use is known before anything is loaded."""
        http = self.boot.settings.http
        clock = self.context.clock
        self.gate = Gate(http, clock, unix=bool(http.unix_socket))
        inputs = self.boot.settings.engine.file_inputs or FileInputs()
        self._files = await self.context.run_blocking(FileDesk, inputs, self.bodies, self._largest)
        certificate = Certificate(http, clock) if http.tls_cert else None
        self._listener = listener = Listener(
            self._routes.handle,
            max_connections=self.boot.settings.engine.max_connections,
            refused=self._count["connections_refused"].add,
            accepting=certificate.refresh if certificate else lambda: None,
        )
        if http.unix_socket:
            self._endpoint = await Endpoint.on_path(listener, http.unix_socket)
        else:
            self._endpoint = await Endpoint.on_port(
                listener, http.bind_host, http.port, "http.port", certificate
            )

    async def serve(self) -> None:
        self._turn(State.READY)

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        match message:
            case Deltas():
                self._deliver(message)
            case Seated():
                self._seated(message)
            case Prepared() | Queued():
                if flight := self._flights.get(message.id):
                    self._progressed(flight, message)
            case Encoded():
                self._questions.answer(message.id, message.ids)
            case Decoded():
                self._questions.answer(message.id, message.text)
            case Rejected():
                if self._questions.refuse(message.id, _error_of(message)):
                    return
                if flight := self._flights.get(message.id):
                    flight.over = True
                    flight.refuse(_error_of(message))
            case Refused():
                self._refused(message)

    def _progressed(self, flight: Flight, news: Prepared | Queued) -> None:
        match news:
            case Prepared():
                flight.responder.account.prompt(news.prompt_tokens)
            case Queued():
                flight.at_door = False
                self._at_door.set(self._flights.at_door())

    def _seated(self, news: Seated) -> None:
        self._seats[news.slot] = news.id
        if flight := self._flights.get(request_of(news.id)):
            flight.responder.account.times.seat(news.at_ns)

    async def drain(self, timeout_s: float) -> None:
        grace_s = min(self.boot.settings.http.drain_grace_s, timeout_s)
        if grace_s:
            self._turn(State.LEAVING)
            await asyncio.sleep(grace_s)
            timeout_s -= grace_s
        self._turn(State.DRAINING)
        try:
            async with asyncio.timeout(max(0.0, timeout_s - LAST_WORDS_S)):
                await self._flights.all_done()
        except TimeoutError:
            self._questions.refuse_all(shutting_down())
            self._flights.refuse_all(shutting_down())
            await self._flights.all_done()

    async def fail(self, cause: str, code: str, age_s: float) -> None:
        self._turn(State.FAILED, cause)
        self._count["failed"].add(len(self._flights))
        self._questions.refuse_all(engine_failed(cause))
        self._flights.refuse_all(engine_failed(cause))
        await self._flights.all_done()

    async def stop(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
        if self._listener is not None:
            await self._listener.shutdown(1.0)
        if self._files is not None:
            self._files.close()

    @property
    def files(self) -> FileDesk:
        assert self._files is not None
        return self._files

    async def encode(self, request: GenerationRequest) -> bytes:
        return bytes(await self._ask(request.id, Encode(request)))

    async def decode(self, ids: bytes) -> str:
        name = secrets.token_hex(8)
        return str(await self._ask(name, Decode(name, ids)))

    async def _ask(self, name: str, question: Encode | Decode) -> Any:
        self._check_open()
        if len(self._questions) >= self._door_limit:
            self._count["shed"].add()
            raise overloaded(f"{len(self._questions)} questions to the tokenizer wait already")
        self.context.post(TOKENIZER, question)
        return await self._questions.ask(name)

    def admit(self) -> None:
        self._count["requests"].add()
        self._check_open()

    def launch(self, flight: Flight) -> None:
        # The doors may have closed while the body came in.
        self._check_open()
        choices = flight.request.choices
        if choices > self._door_limit:
            message = f"{choices} choices are more than engine.queue_limit + max_concurrency"
            field = _param_of(TOO_MANY_CHOICES, flight.request)
            raise invalid(f"{message} = {self._door_limit} at once", field)
        waiting = self._flights.at_door() + choices
        if waiting > self._door_limit:
            self._count["shed"].add()
            raise overloaded(
                f"The server is overloaded: {waiting} choices come in at once, the limit is "
                f"{self._door_limit} (engine.queue_limit + max_concurrency). Try again later"
            )
        self._flights.add(flight)
        self._in_flight.set(len(self._flights))
        self._at_door.set(waiting)
        request = flight.request
        if request.timeout_s is not None:
            flight.deadline = self.context.call_later(request.timeout_s, self._expire, flight)
        if request.ignored:
            # Their names are the client's own words, which no log repeats.
            log_event(_log, "unknown fields ignored", id=request.id, count=request.ignored)
        seed = request.seed
        if seed is None:
            seed = self.boot.settings.sampling.seed
        if seed is None:
            seed = secrets.randbits(63)
        self.context.post(TOKENIZER, Prepare(request, seed))

    def _expire(self, flight: Flight) -> None:
        """The request's own time is up; its landing cancels what is left of it."""
        seconds = flight.request.timeout_s
        assert seconds is not None
        self._count["cancelled"].add()
        log_event(_log, "timed out", id=flight.request.id, timeout_s=seconds)
        flight.refuse(timed_out(seconds))

    def _check_open(self) -> None:
        if (refusal := self.health.refusal()) is not None:
            raise refusal

    def land(self, flight: Flight, outcome: str) -> None:
        request = flight.request
        if self._flights.get(request.id) is None:
            return
        self._flights.remove(request.id)
        self._count["tool_calls"].add(flight.responder.account.tool_calls)
        if flight.deadline is not None:
            flight.deadline.cancel()
        self._in_flight.set(len(self._flights))
        self._at_door.set(self._flights.at_door())
        if outcome == "answered" and flight.responder.account.done:
            self._measure(flight)
            return
        if outcome.startswith(("disconnected", "given up")):
            self._count["cancelled"].add()
            log_event(_log, "client gone", id=request.id, why=outcome)
        self.context.post(TOKENIZER, Forget(request.id))
        if not flight.over:
            self.context.post(SCHEDULER, Cancel(request.id))

    def rejected(self) -> None:
        self._count["rejected"].add()

    def look(self) -> Health:
        now = load(self.context.peers, self.context.clock())
        return self.health.now(now.step_s, now.waiting, self.boot.settings.engine.queue_limit)

    def metrics(self) -> MetricsSnapshot:
        return snapshot(
            self.boot,
            self.context.peers,
            self.context.clock(),
            self._seats,
            failed=self.health.state is State.FAILED,
        )

    def _deliver(self, message: Deltas) -> None:
        get = self._flights.get
        for delta in message.items:
            flight = get(delta.id)
            if flight is None:
                continue
            stamp = b": committed %d\n" % message.committed_ns if flight.stamped else b""
            try:
                flight.deliver(delta, stamp, message.committed_ns)
            except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
                # A fault of ours, but of one answer: the others are served on.
                _log.exception("answer %s cannot be worded", delta.id)
                flight.refuse(ApiError(500, "Internal error"))

    def _refused(self, message: Refused) -> None:
        flight = self._flights.get(message.id)
        if flight is None:
            return
        flight.over = True
        if message.code == "overloaded":
            self._count["shed"].add()
            flight.refuse(overloaded(message.message))
        else:
            param = _param_of(message.code, flight.request)
            flight.refuse(ApiError(400, message.message, param=param, code=message.code))

    def _measure(self, flight: Flight) -> None:
        now = self.context.loop.time()
        self._request_time.observe(now - flight.began)
        if flight.first_delta is None:
            return
        found = flight.responder.account.cached_tokens > 0
        self._first_token[found].observe(flight.first_delta - flight.began)
        tokens = flight.responder.account.completion_tokens
        if tokens > 1:
            self._token_time.observe((now - flight.first_delta) / (tokens - 1))

    def _turn(self, state: State, reason: str = "") -> None:
        self.health = Health(self.model.id, state, reason)


def _error_of(message: Rejected) -> ApiError:
    return ApiError(message.status, message.message, param=message.param, code=message.code)


def _param_of(code: str, request: GenerationRequest) -> str | None:
    """The field that makes for so many choices, or so many tokens."""
    if code == TOO_MANY_CHOICES and request.n > 1:
        return "n"
    if code == CONTEXT_LENGTH_EXCEEDED and request.max_tokens is not None:
        return request.max_tokens_field
    return request.prompt_field if code in (TOO_MANY_CHOICES, CONTEXT_LENGTH_EXCEEDED) else None
