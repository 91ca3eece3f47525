"""Which bytes begin a head that is not whole: aiohttp's own parser, fed in any pieces."""

from __future__ import annotations

import asyncio

from aiohttp.http_parser import HttpRequestParser
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.http.tail import Tail

BODIES = st.binary(max_size=30) | st.just(b"a\r\n\r\nb") | st.just(b"GET / HTTP/1.1\r\n\r\n")
REQUESTS = st.none() | BODIES


class Protocol(asyncio.Protocol):
    _reading_paused = False
    transport = None

    def pause_reading(self, **_):
        pass

    resume_reading = pause_reading


def encode(body):
    if body is None:
        return b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST /v1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_begins_a_head_is_found_wherever_the_pieces_are_cut(data):
    requests = [encode(body) for body in data.draw(st.lists(REQUESTS, max_size=4))]
    more = b"GET /unfinished HTTP/1.1\r\nHost: loc"
    stream = b"".join(requests) + more
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    starts = [0]
    for request in requests:
        starts.append(starts[-1] + len(request))

    async def scene():
        loop = asyncio.get_running_loop()
        parser = HttpRequestParser(Protocol(), loop, 2**16)
        tail = Tail()
        at = 0
        for end in (*cuts, len(stream)):
            if end == at:
                continue
            piece = stream[at:end]
            tail.before(piece)
            found = tail.after(parser.feed_data(piece)[0])
            begun = max(start for start in starts if start <= end)
            reached = requests[starts.index(begun)] if begun < starts[-1] else more
            in_body = begun < starts[-1] and b"\r\n\r\n" in reached[: end - begun]
            assert tail.whole == (not in_body)
            # At least a byte of it, at most all of it that came.
            assert found == 0 if in_body or end == begun else 0 < found <= end - begun
            at = end

    asyncio.run(scene())
