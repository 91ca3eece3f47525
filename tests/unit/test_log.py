"""Log lines: format, escaping, one write each, and the standard sentences."""

import faulthandler
import json
import logging
import os
import re
import signal
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp import log
from dgpp.log import JsonFormatter, LineHandler, TextFormatter, log_event, log_line, timestamp


@pytest.fixture
def lines():
    """A logger over a pipe; call the fixture to read what was written."""
    reader, writer = os.pipe()
    logger = logging.Logger("test", logging.DEBUG)  # noqa: LOG001 - private to this test

    def start(formatter):
        handler = LineHandler(writer)
        handler.setFormatter(formatter)
        logger.handlers[:] = [handler]
        return logger, lambda: os.read(reader, 1 << 16).decode()

    yield start
    os.close(reader)
    os.close(writer)


def test_timestamp():
    assert timestamp(1796059201.123) == "2026-11-30T17:20:01.123Z"
    assert timestamp(0.9999) == "1970-01-01T00:00:00.999Z"


@given(st.integers(0, 4_000_000_000_000))
def test_timestamp_keeps_milliseconds(milliseconds):
    text = timestamp(milliseconds / 1000)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert int(text[-4:-1]) == milliseconds % 1000


def test_text_line(lines):
    logger, read = lines(TextFormatter("engine", 0))
    logger.info("loaded %d layers", 30)
    assert re.fullmatch(r"\S+Z INFO  engine\[0\] loaded 30 layers\n", read())
    log_event(logger, "admitted", id="a-0", slot=3, ms=1.23456789, name='x "y"', empty="")
    assert read().endswith(
        'INFO  engine[0] admitted id=a-0 slot=3 ms=1.23457 name="x \\"y\\"" empty=""\n'
    )
    log_line(logger, "slot 3", {"slot": 3}, level=logging.WARNING)
    assert re.fullmatch(r"\S+Z WARN  engine\[0\] slot 3\n", read())


def test_json_line(lines):
    logger, read = lines(JsonFormatter("http", 1))
    log_event(logger, "admitted", id="a-0", slot=3, level=logging.ERROR)
    entry = json.loads(read())
    assert re.fullmatch(r"\d{4}-.*Z", entry.pop("ts"))
    assert entry == {
        "level": "error",
        "role": "http",
        "rank": 1,
        "msg": "admitted",
        "id": "a-0",
        "slot": 3,
    }
    log_line(logger, "slot 3", {"slot": 3})
    entry = json.loads(read())
    assert (entry["msg"], entry["slot"]) == ("slot 3", 3)


@given(st.text(), st.text())
def test_no_value_forges_a_line(message, value):
    record = logging.makeLogRecord({"msg": message, "fields": {"k": value}, "spelled": False})
    text = TextFormatter("http", 0).format(record).encode("utf-8", "backslashreplace").decode()
    assert len(text.splitlines()) == 1
    entry = JsonFormatter("http", 0).format(record).encode("utf-8", "backslashreplace")
    assert b"\n" not in entry
    assert json.loads(entry)["k"] == value


def test_traceback_travels_with_its_line(lines):
    for formatter in (TextFormatter("http", 0), JsonFormatter("http", 0)):
        logger, read = lines(formatter)
        try:
            raise ValueError("broken")
        except ValueError:
            logger.exception("failed")
        written = read()
        assert "ValueError: broken" in written
        assert written.endswith("\n")
    assert json.loads(written)["traceback"].startswith("Traceback")


def test_journal_priority():
    record = logging.makeLogRecord({"msg": "x", "levelno": logging.WARNING})
    assert TextFormatter("http", 0, journal=True).format(record).startswith("<4>")


def test_one_write_per_line(lines, monkeypatch):
    logger, read = lines(TextFormatter("http", 0))
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    logger.info("first\nsecond")
    assert len(writes) == 1
    assert "first\\nsecond\n" in read()


def test_a_closed_descriptor_is_survived():
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    LineHandler(writer).emit(logging.makeLogRecord({"msg": "lost"}))


@pytest.fixture
def _root_restored():
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.mark.usefixtures("_root_restored")
def test_setup(monkeypatch):
    reader, writer = os.pipe()
    status = os.fstat(writer)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    monkeypatch.setenv(log.LEVEL_VARIABLE, "warning")
    log.setup(role="sampler", rank=2, descriptor=writer)
    logger = logging.getLogger("dgpp.test")
    logger.info("hidden")
    logger.warning("seen")
    assert re.fullmatch(r"<4>\S+ WARN  sampler\[2\] seen\n", os.read(reader, 4096).decode())
    log.setup("debug", json=True, role="sampler", rank=2, descriptor=writer)
    logger.debug("now")
    assert json.loads(os.read(reader, 4096))["msg"] == "now"
    assert len(logging.getLogger().handlers) == 1
    os.close(reader)
    os.close(writer)
    assert sys.stderr


def test_a_process_says_where_it_is_and_goes_on(capfd):
    log.tell_where_on_request()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        faulthandler.unregister(signal.SIGUSR1)
    said = capfd.readouterr().err
    assert "most recent call first" in said
    assert "in test_a_process_says_where_it_is_and_goes_on" in said
