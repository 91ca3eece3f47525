"""A refused request is gone when its answer is: body, flight and error hold one another nowhere."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace

import pytest

from actors.http.actor import HttpActor
from actors.http.flight import Flight, Flights
from actors.http.routes import Routes
from actors.messages.tokenizer_http import Deltas
from dgpp.serve.accounting import Accounting
from dgpp.serve.errors import ApiError, invalid
from dgpp.serve.request import GenerationRequest
from dgpp.text.delta import Delta


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


class Broken:
    """A responder with a fault: it cannot word what comes."""

    account = Accounting(1)

    def add(self, delta):
        raise TypeError("no words")


class Spoken(Broken):
    def __init__(self):
        self.heard = []
        self.account = Accounting(1)

    def add(self, delta):
        self.account.take(delta)
        self.heard.append(delta)


def test_an_answer_that_cannot_be_worded_ends_alone(caplog):
    async def scene():
        loop = asyncio.get_running_loop()
        flights, spoken = Flights(), Spoken()
        for name, responder in (("a", Broken()), ("b", spoken)):
            asked = GenerationRequest(id=name, kind="chat", model="m")
            flights.add(Flight(asked, responder, loop))
        deltas = tuple(Delta(name, 0, 1, finish="stop") for name in "ab")
        HttpActor._deliver(SimpleNamespace(_flights=flights), Deltas(deltas, 0))
        with pytest.raises(ApiError, match="Internal error") as caught:
            await flights.get("a").done()
        assert caught.value.status == 500
        await flights.get("b").done()
        assert len(spoken.heard) == 1

    asyncio.run(scene())
    assert "answer a cannot be worded" in caplog.text
