"""What a client is told of given bytes: every token is one byte, every step what the test says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dgpp.sched.verdict import Finish
from dgpp.serve.request import GenerationRequest
from dgpp.serve.responses import WholeAnswer
from dgpp.serve.sse import DONE, event_stream
from dgpp.text.output import OutputOptions, OutputStream
from tests.unit.text.test_calls import BYTES, TOOLS, dialect

__all__ = ["TOOLS", "dialect", "told"]


def told(
    *texts: bytes,
    cuts: Sequence[int] = (),
    kind: str = "chat",
    options: OutputOptions | None = None,
    **fields: Any,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(the stream's chunks, the whole answer) where choice i says `texts[i]` and ends, in steps of
    `cuts` tokens, over and over; without cuts in one step."""
    count = len(texts)
    request = GenerationRequest("id", kind, "m", n=count, stream=True, **fields)  # type: ignore[arg-type]
    stream, whole = event_stream(request, 0), WholeAnswer(request, 0)
    outputs = [OutputStream(BYTES, "id", i, options or OutputOptions()) for i in range(count)]
    data = b""
    left = [[*text, 0] for text in texts]
    turn = 0
    while any(left):
        size = cuts[turn % len(cuts)] if cuts else max(map(len, left))
        turn += 1
        for choice, output in enumerate(outputs):
            step, left[choice] = left[choice][:size], left[choice][size:]
            finish = Finish.NONE if left[choice] else Finish.EOS
            delta = output.feed(step, finish) if step else None
            if delta is not None:
                data += stream.events(delta)
                whole.add(delta)
    data += stream.end()
    assert data.endswith(DONE)
    events = data.removesuffix(DONE).split(b"\n\n")[:-1]
    return [json.loads(event.removeprefix(b"data: ")) for event in events], whole.object()
