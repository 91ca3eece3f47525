"""Strict JSON, the messages of what is wrong, and overrides from the command line."""

import json
import re

import pytest

from dgpp.config.document import Override, overlay, parse_document, parse_flag, parse_set
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings
from dgpp.errors import ConfigError

DEMO = {"model": "dgpp/demo", "world_size": 1}


def read(document, *overrides):
    parsed = parse_document(json.dumps(document).encode(), "f.json")
    return resolve(parsed, "f.json", site=SiteSettings(), overrides=overrides)


def refused(document, message):
    with pytest.raises(ConfigError) as caught:
        read(document)
    assert str(caught.value) == message
    assert caught.value.exit_status == 1


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (
            {"kv_capacity": "x"},
            'engine.kv_capacity: expected an integer in 1..1099511627776, got "x"',
        ),
        ({"kv_capacty": 1}, "engine.kv_capacty: unknown key (did you mean engine.kv_capacity?)"),
        ({"zzzzzz": 1}, "engine.zzzzzz: unknown key"),
        ({"ü\n": 1}, '"engine.\\u00fc\\n": unknown key'),
        ({"kv_dtype": "int4"}, 'engine.kv_dtype: expected one of bf16, fp8, fp4, got "int4"'),
        ({"mtp": 1}, "engine.mtp: expected true or false, got 1"),
        (
            {"mtp_draft_temperature": 0},
            "engine.mtp_draft_temperature: expected a number above 0 and at most 4, got 0",
        ),
        (
            {"rope_scaling": {}},
            "engine.rope_scaling.factor: required, expected a number above 0 and at most 1024",
        ),
        (
            {"rope_scaling": {"factor": 2, "facto": 1}},
            "engine.rope_scaling.facto: unknown key (did you mean engine.rope_scaling.factor?)",
        ),
        ({"file_inputs": 3}, "engine.file_inputs: expected an object, got 3"),
    ],
)
def test_engine_messages(engine, message):
    refused(DEMO | {"engine": engine}, f"cluster config f.json: {message}")


MOVE, OR_NODES = "a site setting; move it to .env as", "(a file of nodes may say it)"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"world_size": 1}, "model: required, expected a model id or directory"),
        (DEMO | {"model": ""}, 'model: expected a model id or directory, got ""'),
        (DEMO | {"engin": {}}, "engin: unknown key (did you mean engine?)"),
        (DEMO | {"engine": []}, "engine: expected an object, got []"),
        (DEMO | {"nodes": ["a"]}, "nodes: excludes world_size; move it to .env as DGPP_NODES"),
        (DEMO | {"ssh_user": "me"}, f"ssh_user: {MOVE} DGPP_SSH_USER {OR_NODES}"),
        (DEMO | {"ports": {"fabric": 1}}, f"ports.fabric: {MOVE} DGPP_FABRIC_PORT {OR_NODES}"),
        (DEMO | {"http": {"port": 0}}, "http.port: expected an integer in 1..65535, got 0"),
        (
            DEMO | {"http": {"sse_ping_interval": 0}},
            "http.sse_ping_interval: expected -1 or an integer in 1..2147483647, got 0",
        ),
    ],
)
def test_top_level_messages(document, message):
    refused(document, f"cluster config f.json: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"model": "a", "model": "b"}', "model: given twice"),
        (b'{"model": "a", "engine": {"mtp": true, "mtp": true}}', "engine.mtp: given twice"),
        (
            b'{"engine": {"default_chat_template_kwargs": {"a": [{"b": 1, "b": 2}]}}}',
            "engine.default_chat_template_kwargs.a[0].b: given twice",
        ),
        (b"[1]", "the file: expected an object, got [1]"),
        (b'{"model": "a" 1}', "line 1 column 15: not JSON: "),
        (b'{"a": NaN}', "the file: not JSON: NaN is not JSON"),
        (b'{"a": "\xff"}', "byte 7: not UTF-8"),
        (b'{"a":' + b"[" * 100_000, "the file: nested deeper than 64 levels"),
        (b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 64 levels"),
        (b"1" * 5000, "the file: not JSON: "),
        (b"", "line 1 column 1: not JSON: "),
    ],
)
def test_not_a_document(text, message):
    with pytest.raises(ConfigError, match="^cluster config f: .*" + re.escape(message)):
        parse_document(text, "f")


def test_long_values_are_cut_in_messages():
    with pytest.raises(ConfigError) as caught:
        read(DEMO | {"http": {"port": "9" * 1000}})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("engine.kv_capacity=512", 512),
        ("engine.mtp=true", True),
        ("engine.model_alias=123", "123"),
        ('engine.model_alias="a=b"', "a=b"),
        ("engine.model_alias=a=b", "a=b"),
        ("engine.kv_dtype=fp8", "fp8"),
        ("sampling.temperature=null", None),
        ('engine.default_chat_template_kwargs={"a":1}', {"a": 1}),
        ("engine.rope_scaling.factor=2", 2),
    ],
)
def test_set(assignment, value):
    override = parse_set(assignment)
    assert (override.path, override.value) == (assignment.partition("=")[0], value)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("engine.kv_capacity", '--set "engine.kv_capacity": expected path=value'),
        ("=3", '--set "=3": expected path=value'),
        (
            "engine.kv_capacit=3",
            "--set: engine.kv_capacit: unknown key (did you mean engine.kv_capacity?)",
        ),
        (
            "engine.kv_capacity=x",
            '--set: engine.kv_capacity: expected an integer in 1..1099511627776, got "x"',
        ),
    ],
)
def test_bad_set(assignment, message):
    with pytest.raises(ConfigError) as caught:
        overlay(DEMO, [parse_set(assignment)])
    assert str(caught.value) == message


def test_bad_flag_names_the_flag():
    with pytest.raises(ConfigError) as caught:
        overlay(DEMO, [parse_flag("engine.max_concurrency", "--max-concurrency", "17")])
    assert str(caught.value) == (
        "--max-concurrency: engine.max_concurrency: expected an integer in 1..16, got 17"
    )


def test_overlay_leaves_the_document_alone_and_the_last_one_wins():
    document = DEMO | {"engine": {"queue_limit": 3}}
    merged = overlay(
        document,
        [Override("engine.queue_limit", 4, "--set"), Override("engine.queue_limit", 5, "--set")],
    )
    assert merged["engine"]["queue_limit"] == 5
    assert document["engine"]["queue_limit"] == 3


def test_set_reaches_inside_an_absent_section():
    settings = read(
        DEMO,
        Override("engine.rope_scaling.factor", 2, "--set"),
        Override("engine.rope_scaling.original_max_position_embeddings", 262144, "--set"),
    )
    assert settings.engine.rope_scaling.factor == 2.0
    assert settings.engine.rope_scaling.beta_fast == 32.0


def test_no_mtp_drops_what_the_file_says_about_drafts():
    document = DEMO | {"engine": {"decode_graph": True, "mtp": True, "mtp_depth": 4}}
    assert read(document).engine.mtp_depth == 4
    off = Override("engine.mtp", False, "--no-mtp")
    assert read(document, off).engine.mtp_depth == 1
    with pytest.raises(ConfigError, match=r"engine\.mtp_depth: needs engine\.mtp"):
        read(document, off, Override("engine.mtp_depth", 2, "--mtp-depth"))
