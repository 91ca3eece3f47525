"""The standard sentences, against figures worked out by hand."""

import logging

import pytest

from dgpp.config.resolve import resolve
from dgpp.config.settings import HttpSettings
from dgpp.config.site import SiteSettings
from dgpp.log_lines import (
    Interval,
    Retirement,
    admitted_line,
    missed_line,
    ready_line,
    startup_lines,
)


def test_ready():
    line = ready_line(HttpSettings(bind_host="0.0.0.0", port=8000), "dgpp/demo")
    assert line.text == ("READY — http://127.0.0.1:8000/v1 (model dgpp/demo) — stop: Ctrl-C")
    assert line.fields == {"url": "http://127.0.0.1:8000/v1", "model": "dgpp/demo"}


def test_admitted():
    line = admitted_line(
        "r1-0", slot=2, prompt_tokens=12, max_tokens=64, cached_tokens=4, queue_ms=1.4
    )
    assert line.text == (
        "r1-0 admitted to slot 2: prompt 12 tok (4 cached), at most 64 more, queued 1 ms"
    )
    assert line.fields["slot"] == 2
    line = admitted_line(
        "r1-0",
        slot=2,
        prompt_tokens=12,
        max_tokens=64,
        cached_tokens=8,
        queue_ms=1.4,
        decoded_tokens=4,
    )
    assert "(8 cached, 4 of them as decode wrote them)" in line.text


def test_a_miss_says_why():
    assert missed_line("r1-0", 0, "the cache is empty").text == (
        "r1-0 prefix cache: the cache is empty"
    )
    assert missed_line("r1-0", 64, "nothing is cached beyond its first 64 tokens").text == (
        "r1-0 prefix cache: 64 tok, no more: nothing is cached beyond its first 64 tokens"
    )


def test_retirement():
    line = Retirement(
        id="r1-0",
        reason="eos",
        tokens=65,
        prompt_tokens=12,
        queue_ms=1.0,
        prefill_ms=30.0,
        decode_ms=320.0,
        decode_steps=32,
    ).line()
    assert line.text == (
        "r1-0 retired (eos): 65 tok in 0.35 s — queue 1 ms, prefill 12 tok (0 cached) in 30 ms; "
        "decode 200.0 tok/s, 5.0 ms/tok, 10.0 ms/step, 2.00 tok/step"
    )
    assert line.fields["decode_tok_s"] == 200.0
    assert line.fields["reason"] == "eos"


def test_retirement_before_any_decode():
    line = Retirement(
        id="r",
        reason="cancelled",
        tokens=0,
        prompt_tokens=9,
        queue_ms=2.6,
        prefill_ms=0.0,
        decode_ms=0.0,
        decode_steps=0,
    ).line()
    assert line.text == (
        "r retired (cancelled): 0 tok in 0.00 s — queue 3 ms, prefill 9 tok (0 cached) in 0 ms"
    )


def test_statistics():
    interval = Interval(
        rank=0,
        seconds=10.0,
        decode_tokens=1000,
        decode_steps=500,
        decode_s=5.0,
        prefill_prompts=3,
        prefill_tokens=1500,
        prefill_s=1.0,
        cached_tokens=100,
        cache_hits=2,
        cache_lookups=3,
        cache_entries=5,
        cache_slots=43,
        live=2,
        queued=1,
        blocks_used=12,
        blocks_total=256,
        requests=4,
        shed=1,
        cancelled=2,
    )
    line = interval.line()
    assert line.text == (
        "stats: rank 0 | 10.0 s | decode 200.0 tok/s, 5.0 ms/tok, 10.0 ms/step "
        "(500 steps / 1000 tok, 50 % of wall) | prefill 3 prompts / 1500 tok, 1500 tok/s "
        "(10 % of wall), cached 100 tok (2/3 hit) | live 2, queued 1 | pool 12/256 blocks | "
        "prefix cache 5/43 entries | requests +4 (1 shed, 2 cancelled)"
    )
    assert line.fields["decode_tokens"] == 1000
    assert not interval.idle


def test_idle_statistics():
    interval = Interval(rank=1, seconds=10.0, blocks_total=8)
    assert interval.idle
    assert "decode 0.0 tok/s, 0.0 ms/tok" in interval.line().text


def test_startup_names_what_was_decided():
    document = {"model": "dgpp/demo", "engine": {"kv_capacity": 16384, "model_alias": "demo"}}
    settings = resolve(document, "f", site=SiteSettings())
    lines = startup_lines(settings, "0.1.0")
    text = "\n".join(line.text for line in lines)
    assert "dgpp 0.1.0: model dgpp/demo, settings " in text
    assert "world of 1: backend auto, placement processes" in text
    assert "8 requests at once, 64 queued, 16384 tokens of context, 64 connections" in text
    assert "engine keys set: kv_capacity 16384, model_alias demo" in text
    assert lines[0].fields["served"] == "demo"
    assert "beyond this host" not in text


@pytest.mark.parametrize(
    ("http", "said"),
    [
        ({"bind_host": "0.0.0.0"}, "anyone who reaches it needs no key"),
        ({"bind_host": "10.0.0.1"}, "anyone who reaches it needs no key"),
        ({"bind_host": "10.0.0.1", "api_key_file": "k"}, "travel in the open"),
        ({"bind_host": "10.0.0.1", "api_key_file": "k", "tls_cert": "c", "tls_key": "t"}, ""),
        ({"bind_host": "10.0.0.1", "unix_socket": "/run/s"}, ""),
        ({"bind_host": "127.0.0.1"}, ""),
        ({"bind_host": "127.9.9.9"}, ""),
    ],
)
def test_startup_warns_once_of_what_others_could_do(http, said):
    lines = startup_lines(resolve({"model": "m", "http": http}, "f", site=SiteSettings()), "0.1.0")
    warnings = [line for line in lines if line.level == logging.WARNING]
    host = http["bind_host"]
    assert [line.fields for line in warnings] == ([{"bind_host": host}] if said else [])
    assert all(f"http.bind_host {host}: " in w.text and said in w.text for w in warnings)


def test_the_ready_line_names_what_to_connect_to():
    encrypted = HttpSettings(bind_host="10.0.0.1", port=443, tls_cert="c", tls_key="k")
    assert ready_line(encrypted, "m").fields["url"] == "https://10.0.0.1:443/v1"
    assert ready_line(HttpSettings(unix_socket="/run/s"), "m").fields["url"] == "unix:/run/s"
