"""The tokenizer's actor: requests to ids on the way in, tokens to text on the way out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from actors.boot import Boot
from actors.channel import Arrays
from actors.context import Context
from actors.messages.http_tokenizer import Decode, Encode, Forget, Prepare
from actors.messages.sampler_tokenizer import Committed
from actors.messages.tokenizer_http import Decoded, Deltas, Encoded, Prepared, Rejected
from actors.messages.tokenizer_scheduler import Arrive, Stopped
from actors.role import Role
from dgpp.checkpoint.json_file import read_json
from dgpp.grammar.matcher import Grammars
from dgpp.grammar.vocabulary import load_grammars
from dgpp.sched.admission import request_of
from dgpp.sched.request import unpack_ids
from dgpp.serve.errors import ApiError
from dgpp.serve.request import GenerationRequest
from dgpp.serve.served import ServedModel
from dgpp.serve.submission import Submission, prompts_of, submission
from dgpp.text.codec import TextCodec
from dgpp.text.delta import Delta
from dgpp.text.ids import IdCodec
from dgpp.text.output import OutputStream
from dgpp.text.tokenizer import stop_ids

HTTP = "tokenizer>http"
SCHEDULER = "tokenizer>scheduler"

_log = logging.getLogger("dgpp.tokenizer")

T = TypeVar("T")

INGRESS_THREADS = 2
"""Rendering and encoding run here: one long prompt must not hold up any stream."""


class TokenizerActor(Role):
    """Keeps an output stream for each live choice; whatever comes for another is dropped."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        boot = self.boot
        self._model: ServedModel = boot.served
        self._codec: TextCodec | None = None
        self._threads = ThreadPoolExecutor(INGRESS_THREADS, thread_name_prefix="ingress")
        self._preparing: set[str] = set()
        self._grammars: Grammars | None = None
        self._outputs: dict[str, OutputStream] = {}

    async def start(self) -> None:
        with self.context.loading("the tokenizer"):
            self._codec = await self.context.run_blocking(load_codec, self.boot)
        if not self.boot.text:
            return
        # It holds the interpreter for a second and more: no stream may be there to wait for it.
        with self.context.loading("the vocabulary for grammars"):
            self._grammars = await self.context.run_blocking(load_grammars, self._codec)

    async def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        match message:
            case Committed():
                self._speak(message)
            case Prepare():
                self._preparing.add(message.request.id)
                self.context.spawn(self._prepare(message))
            case Encode():
                self.context.spawn(self._encode(message.request))
            case Decode():
                self.context.spawn(self._decode(message))
            case Forget():
                self._forget(message.id)

    async def _prepare(self, message: Prepare) -> None:
        request = message.request
        codec, grammars = self._loaded, self._grammars
        prepared = await self._thread(
            request.id,
            submission,
            request,
            message.seed,
            codec,
            self._model,
            time.time(),
            None if grammars is None else lambda: grammars,
        )
        if prepared is not None and request.id in self._preparing:
            self._preparing.remove(request.id)
            self._submit(message, prepared)

    async def _encode(self, request: GenerationRequest) -> None:
        found = await self._thread(
            request.id, prompts_of, request, self._loaded, self._model, time.time()
        )
        if found is not None:
            self.context.post(HTTP, Encoded(request.id, found[0]))

    async def _decode(self, message: Decode) -> None:
        tokenizer = self._loaded.tokenizer
        ids = unpack_ids(message.ids).tolist()
        text = await self._thread(message.id, partial(tokenizer.decode, ids, skip_special=False))
        if text is not None:
            self.context.post(HTTP, Decoded(message.id, text))

    @property
    def _loaded(self) -> TextCodec:
        assert self._codec is not None
        return self._codec

    async def _thread(self, request: str, work: Callable[..., T], *given: Any) -> T | None:
        """`work(*given)` off the loop; None where the client was told why there is no result."""
        try:
            return await self.context.loop.run_in_executor(self._threads, work, *given)
        except ApiError as error:
            self._reject(request, error)
        except Exception:  # noqa: BLE001 - one client's input must not end the world
            _log.exception("request %s could not be prepared", request)
            self._reject(request, ApiError(500, "Internal error"))
        return None

    def _submit(self, message: Prepare, prepared: Submission) -> None:
        request = message.request
        output = prepared.output
        for choice, submit in enumerate(prepared.submits):
            prompt = submit.prompt_ids.tolist() if output.repeats_prompt else ()
            self._outputs[submit.id] = OutputStream(
                self._loaded.tokenizer.bytes, request.id, choice, output, prompt
            )
        self.context.post(SCHEDULER, Arrive.of(request.id, prepared.submits, prepared.prompts))
        self.context.post(HTTP, Prepared(request.id, prepared.prompt_tokens))

    def _reject(self, request: str, error: ApiError) -> None:
        self._preparing.discard(request)
        self.context.post(
            HTTP, Rejected(request, error.status, error.message, error.param, error.code)
        )

    def _speak(self, message: Committed) -> None:
        deltas: list[Delta] = []
        for item in message.items:
            output = self._outputs.get(item.id)
            if output is None:
                continue
            if item.cached:
                output.cached_tokens, output.decoded_tokens = item.cached, item.decoded
            if item.prompt:
                deltas.append(output.read(item.prompt))
                continue
            delta = output.feed(item.tokens, item.finish, item.logprobs)
            if delta is not None:
                deltas.append(delta)
            if output.finished:
                del self._outputs[item.id]
                if output.stop_found and not item.finish:
                    self.context.post(SCHEDULER, Stopped(item.id))
        if deltas:
            self.context.post(HTTP, Deltas(tuple(deltas), message.committed_ns))

    def _forget(self, request: str) -> None:
        self._preparing.discard(request)
        for choice in [c for c in self._outputs if request_of(c) == request]:
            del self._outputs[choice]


def load_codec(boot: Boot) -> TextCodec:
    """The model's tokenizer and template, or what stands in for them."""
    if boot.text:
        return TextCodec.load(boot.model_directory)
    return IdCodec(boot.limits.vocab_size, stop_ids(read_json(Path(boot.config_path))))
