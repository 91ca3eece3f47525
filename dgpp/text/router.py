"""Deals the bytes of an answer to its fields: reasoning, text, tool calls, nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dgpp.text.calls.reader import GOES_ON, NO_BLOCK, CallBegun, CallReader, Event
from dgpp.text.calls.values import ToolSchema
from dgpp.text.dialect import THINK_CLOSE, THINK_OPEN, Dialect

_SPACE = b" \t\r\n"


class Content(NamedTuple):
    """Bytes of the visible text, from offset `start` of the stream on."""

    start: int
    data: bytes


class Reasoning(NamedTuple):
    """Bytes of the reasoning."""

    data: bytes


Routed = Content | Reasoning | Event


class Router:
    """A parser of one answer. What it tells is never taken back, and does not depend on how the
    bytes were cut: it waits where the next bytes could still change what the last ones mean.

    `reasoning` says that the prompt has opened the think tag already. Stop strings count in the
    visible text alone. With no `tools` a call's markers are text. `json`: the answer is JSON or
    calls, so that what begins as text holds no call. `held`: a grammar holds the answer.

    `resolved`       offset up to which every byte has been told or dropped
    `stop_end`       offset at which a stop string was complete, when one was: `stopped_by`
    `reasoning_end`  offset behind the closing think tag; None while there was none
    `calls`          how many calls have begun
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        tools: Mapping[str, ToolSchema] | None = None,
        stop: tuple[bytes, ...] = (),
        reasoning: bool = False,
        json: bool = False,
        held: bool = False,
    ) -> None:
        self.resolved = 0
        self.stop_end: int | None = None
        self.stopped_by = b""
        self.reasoning_end: int | None = None
        self.calls = 0
        self._dialect = dialect
        self._calls = dialect.calls if tools else None
        self._tools = tools or {}
        self._json = json
        self._held = held
        self._stop = stop
        self._stop_heads = frozenset(text[:1] for text in stop)
        self._longest = max(map(len, stop), default=0)
        self._data = b""
        self._looked = 0
        self._reader: CallReader | None = None
        self._state = self._reason if reasoning else self._start
        self._strip = _SPACE if reasoning and self._trims_reasoning else b""
        self._lead = b""

    @property
    def settled(self) -> bool:
        """Whether there is reasoning is known: no longer at the beginning, where the tag stands."""
        return self._state != self._start

    @property
    def in_reasoning(self) -> bool:
        """The think tag is open."""
        return self._state == self._reason

    @property
    def _trims_reasoning(self) -> bool:
        return self._dialect.thinking is not None and self._dialect.thinking.trimmed

    def push(self, data: bytes) -> list[Routed]:
        """What `data` makes certain."""
        return self._run(data, final=False)

    def finish(self, *, whole: bool) -> list[Routed]:
        """What is left when the text is over. With `whole` the model has ended it itself, and an
        open call is closed as valid JSON; else it stays as it was cut off."""
        events = self._run(b"", final=True)
        if self._reader is not None and self.stop_end is None:
            rest: list[Event] = []
            self._reader.close(rest, whole=whole)
            events.extend(rest)
        return events

    def _run(self, data: bytes, *, final: bool) -> list[Routed]:
        events: list[Routed] = []
        if self.stop_end is not None:
            return events
        self._data += data
        while self._state(events, final) and self.stop_end is None:
            pass
        return events

    def _use(self, count: int) -> bytes:
        taken, self._data = self._data[:count], self._data[count:]
        self.resolved += count
        self._looked = max(0, self._looked - count)
        return taken

    # States: each uses what it can and says whether to look again at once. ---------------------

    def _start(self, events: list[Routed], final: bool) -> bool:
        """At the beginning: the model may open the think tag itself."""
        if self._dialect.thinking is None:
            self._state = self._text
            return True
        bare = self._data.lstrip(_SPACE)
        if bare.startswith(THINK_OPEN):
            self._use(len(self._data) - len(bare) + len(THINK_OPEN))
            self._strip = _SPACE if self._trims_reasoning else b""
            self._state = self._reason
            return True
        if THINK_OPEN.startswith(bare) and not final:
            return False
        self._state = self._text
        return True

    def _reason(self, events: list[Routed], final: bool) -> bool:
        if self._strip:
            self._use(len(self._data) - len(self._data.lstrip(self._strip)))
            if not self._data:
                return False
            self._strip = b""
        closed = self._data.find(THINK_CLOSE)
        form = self._calls if self._calls is not None and self._calls.in_reasoning else None
        opened = -1 if form is None else self._data.find(form.opening, self._looked)
        if form is not None and opened >= 0 and (closed < 0 or opened < closed):
            return self._try_call(events, opened, final, self._tell_reasoning)
        if closed >= 0:
            self._tell_reasoning(events, closed, last=True)
            self._use(len(THINK_CLOSE))
            self._close_reasoning()
            return True
        markers = self._dialect.ends_reasoning(tools=self._calls is not None)
        cut = len(self._data) if final else _safe(self._data, markers)
        self._tell_reasoning(events, cut, last=final)
        return False

    def _close_reasoning(self) -> None:
        self.reasoning_end = self.resolved
        thinking = self._dialect.thinking
        self._lead = b"" if thinking is None else thinking.after
        self._looked = 0
        self._state = self._text

    def _tell_reasoning(self, events: list[Routed], cut: int, *, last: bool) -> None:
        """Tell `cut` bytes; white space before their end waits, or goes when they are the last."""
        kept = len(self._data[:cut].rstrip(_SPACE)) if self._trims_reasoning else cut
        if kept:
            events.append(Reasoning(self._use(kept)))
        if last:
            self._use(cut - kept)

    def _text(self, events: list[Routed], final: bool) -> bool:
        if not self._past_lead(final):
            return False
        if self._json and self._is_json():
            self._calls = None
        stop = self._first_stop()
        form = self._calls
        opened = -1 if form is None else self._data.find(form.opening, self._looked)
        if stop is not None and (
            opened < 0 or form is None or stop[0] <= opened + len(form.opening)
        ):
            end, at = stop
            self.stop_end = self.resolved + end
            self.stopped_by = self._data[at:end]
            self._tell_text(events, at)
            return False
        if opened >= 0:
            return self._try_call(events, opened, final, self._before_call)
        cut = len(self._data)
        if not final:
            markers = self._stop
            if form is not None:
                markers = (*markers, form.opening, self._dialect.gap + form.opening)
            cut = _safe(self._data, markers)
            if self._holds_space:
                cut = len(self._data[:cut].rstrip(_SPACE))
        self._tell_text(events, cut)
        return False

    def _is_json(self) -> bool:
        """Whether the answer's text has begun, and not with what begins a call."""
        bare = self._data.lstrip(_SPACE)
        opening = b"" if self._calls is None else self._calls.opening
        return bool(bare) and not bare.startswith(opening[: len(bare)])

    def _past_lead(self, final: bool) -> bool:
        """Drop what the template puts before an answer, as far as the model wrote it."""
        while self._lead:
            if not self._data:
                return False
            if self._data[:1] != self._lead[:1]:
                self._lead = b""
            else:
                self._use(1)
                self._lead = self._lead[1:]
        return True

    @property
    def _holds_space(self) -> bool:
        return self._calls is not None and self._dialect.trimmed

    def _before_call(self, events: list[Routed], cut: int, *, last: bool) -> None:
        text, gap = self._data[:cut], self._dialect.gap
        kept = len(text.rstrip(_SPACE) if self._holds_space else text.removesuffix(gap))
        self._tell_text(events, min(kept, cut if last else self._stop_safe(cut)))
        if last:
            self._use(cut - kept)

    def _stop_safe(self, cut: int) -> int:
        return _safe(self._data[:cut], self._stop) if self._stop else cut

    def _tell_text(self, events: list[Routed], cut: int) -> None:
        if cut > 0:
            start = self.resolved
            events.append(Content(start, self._use(cut)))

    def _try_call(self, events: list[Routed], opened: int, final: bool, before: object) -> bool:
        """At `opened` a call may begin: read it, or look for the next such place."""
        assert self._calls is not None
        assert callable(before)
        reader = CallReader(self._calls, self._tools, held=self._held)
        answer = reader.read(self._data[opened:], final=final)
        if answer.block == NO_BLOCK:
            self._looked = opened + 1
            return True
        if not answer.events:
            before(events, opened, last=False)
            return False
        before(events, opened, last=True)
        if self.in_reasoning:
            self.reasoning_end = self.resolved
        self._looked = 0
        self._enter(reader, answer.used, answer.events, events)
        if answer.block == GOES_ON:
            self._reader, self._state = reader, self._call
            return False
        self._leave()
        return True

    def _call(self, events: list[Routed], final: bool) -> bool:
        assert self._reader is not None
        answer = self._reader.read(self._data, final=final)
        self._enter(self._reader, answer.used, answer.events, events)
        if answer.block == GOES_ON:
            return False
        self._leave()
        return True

    def _enter(
        self, reader: CallReader, used: int, found: list[Event], events: list[Routed]
    ) -> None:
        self._use(used)
        self.calls += sum(isinstance(event, CallBegun) for event in found)
        events.extend(found)

    def _leave(self) -> None:
        self._reader = None
        self._state = self._after_call if self._dialect.trimmed else self._text

    def _after_call(self, events: list[Routed], final: bool) -> bool:
        """White space between calls is the template's."""
        self._use(len(self._data) - len(self._data.lstrip(_SPACE)))
        if not self._data:
            return False
        self._state = self._text
        return True

    def _first_stop(self) -> tuple[int, int] | None:
        """(end, start) of the stop string that is complete first; of two, the longer."""
        found = ((self._data.find(text), len(text)) for text in self._stop)
        return min(((at + size, at) for at, size in found if at >= 0), default=None)


def _safe(data: bytes, markers: tuple[bytes, ...]) -> int:
    """Where the longest end of `data` that begins one of `markers` starts."""
    longest = max(map(len, markers), default=0)
    for at in range(max(0, len(data) - longest + 1), len(data)):
        tail = data[at:]
        if any(marker.startswith(tail) for marker in markers):
            return at
    return len(data)
