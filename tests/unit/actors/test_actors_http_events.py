"""Event streams against a fake transport and clock: silence, stalls and slow but living readers."""

from __future__ import annotations

import asyncio

import pytest

from actors.http.sse import Events
from dgpp.serve.limits import STREAM_BUFFER_BYTES, STREAM_STALL_SECONDS
from dgpp.serve.sse import KEEP_ALIVE


class Transport:
    """Holds what was written until `read` takes some."""

    def __init__(self):
        self.written = []
        self.buffered = 0
        self.aborted = False

    def is_closing(self):
        return self.aborted

    def write(self, data):
        self.written.append(data)
        self.buffered += len(data)

    def get_write_buffer_size(self):
        return self.buffered

    def read(self, size):
        self.buffered -= min(size, self.buffered)

    def abort(self):
        self.aborted = True


class Clock:
    """Stands in for the event loop: `call_later` and a time that only `advance` moves."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        self._calls = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self):
        return self.now

    def call_later(self, delay, call):
        entry = [self.now + delay, call]
        self._calls.append(entry)

        class Handle:
            def cancel(_):
                if entry in self._calls:
                    self._calls.remove(entry)

        return Handle()

    def advance(self, seconds):
        end = self.now + seconds
        while due := [entry for entry in self._calls if entry[0] <= end]:
            first = min(due, key=lambda entry: entry[0])
            self._calls.remove(first)
            self.now = first[0]
            first[1]()
        self.now = end


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def events(interval):
    transport = Transport()
    found = Events(None, transport, interval)
    found.watch()
    return found, transport


def test_a_comment_comes_one_interval_after_the_last_word(clock):
    stream, transport = events(30)
    clock.advance(29)
    stream.write(b"data: x\n\n")
    transport.read(1 << 20)
    clock.advance(29.9)
    assert len(transport.written) == 1
    clock.advance(0.2)
    assert KEEP_ALIVE in transport.written[-1]
    transport.read(1 << 20)
    clock.advance(30)
    assert len(transport.written) == 3


@pytest.mark.parametrize("interval", [-1, 1, 30, 86_400, 2**31 - 1])
def test_a_reader_that_stops_is_given_up_in_time_whatever_the_interval(clock, interval):
    stream, transport = events(interval)
    stream.write(b"data: x\n\n")
    clock.advance(STREAM_STALL_SECONDS * 1.2)
    assert transport.aborted
    assert "read nothing" in stream.gave_up


def test_a_slow_reader_who_reads_lives_though_never_up_to_date(clock):
    stream, transport = events(30)
    stream.write(b"x" * 10_000)
    for _ in range(200):
        clock.advance(1)
        stream.write(b"data: more\n\n")
        transport.read(10)
    assert not transport.aborted


def test_a_buffer_over_its_limit_is_given_up_at_once(clock):
    stream, transport = events(30)
    stream.write(b"x" * (STREAM_BUFFER_BYTES + 1))
    assert transport.aborted
    before = len(transport.written)
    stream.write(b"y")
    assert len(transport.written) == before


def test_an_ended_stream_watches_no_longer(clock):
    stream, transport = events(1)
    stream.write(b"x")
    stream.close()
    clock.advance(1000)
    assert len(transport.written) == 1
    assert not transport.aborted
