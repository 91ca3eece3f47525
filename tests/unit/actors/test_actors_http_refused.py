"""A refused request is gone when its answer is: body, flight and error hold one another nowhere."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from actors.http.routes import Routes
from dgpp.serve.errors import ApiError, invalid
from dgpp.serve.request import GenerationRequest


class Desk:
    """Refuses each flight a moment after it was launched."""

    def launch(self, flight):
        self.flight = weakref.ref(flight)
        asyncio.get_running_loop().call_soon(flight.refuse, invalid("no", "messages"))

    def land(self, flight, outcome):
        self.outcome = outcome


class Request:
    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.headers = {}


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_waits_for_the_collector(stream):
    desk = Desk()

    async def answer():
        routes = Routes(desk)
        serve = routes._stream if stream else routes._whole
        with pytest.raises(ApiError, match="no"):
            await serve(Request(), GenerationRequest(id="a", kind="chat", model="m", stream=stream))
        del serve, routes
        await asyncio.sleep(0)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(answer())
        assert desk.flight() is None
    finally:
        gc.enable()
