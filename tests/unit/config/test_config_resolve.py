"""Precedence, both forms of file, constraints between keys, digest, and what run refuses."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.config.check import Reader
from dgpp.config.constraints import refuse_open_door, refuse_unsupported, unsupported_keys
from dgpp.config.document import Override, parse_document
from dgpp.config.key import Kind, leaves
from dgpp.config.reference import configuration_page
from dgpp.config.resolve import digest, load, resolve, site_alone, to_document
from dgpp.config.settings import Settings
from dgpp.config.site import SiteSettings, parse_site
from dgpp.errors import ConfigError

ROOT = Path(__file__).parents[3]
FULL = {
    "model": "nvidia/GLM-4.7-NVFP4",
    "world_size": 4,
    "release": "0.1.0",
    "http": {"bind_host": "0.0.0.0", "port": 8000, "sse_ping_interval": -1},
    "ports": {"metrics": 9100},
    "engine": {
        "max_concurrency": 4,
        "kv_capacity": 262144,
        "bf16_weights": "bf12+bf16",
        "decode_graph": True,
        "mtp": True,
        "mtp_depth": 2,
        "mtp_schedule": True,
        "prefill_budget_tokens": 256,
        "prefill_idle_budget_tokens": 2048,
        "dense_weights": "fp8",
        "fp8_head": "mma",
        "rope_scaling": {"factor": 2, "original_max_position_embeddings": 262144},
        "file_inputs": {"workers": 2},
        "default_chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"},
    },
    "nvme_cache": {"enabled": False, "capacity_gib": 64},
    "paths": {"resident_cache": "/data/resident"},
    "sampling": {"temperature": 0.0},
}
NODES = parse_site({"DGPP_NODES": "n0 n1 n2 n3 n4"}, "env")
MINIMAL = {"model": "m", "world_size": 1}
LOCAL = {"model": "m", "nodes": ["localhost"]}


def read(document, site=None, *overrides):
    return resolve(document, "f", site=site or SiteSettings(), overrides=overrides)


def engine(**keys):
    return MINIMAL | {"engine": keys}


def test_precedence():
    site = parse_site({"DGPP_HTTP_PORT": "1", "DGPP_HTTP_BIND": "10.0.0.1"}, "env")
    assert read(MINIMAL).http.port == 18080
    assert read(MINIMAL, site).http.port == 1
    document = MINIMAL | {"http": {"port": 2}}
    assert read(document, site).http.port == 2
    assert read(document, site).ports.http == 2
    assert read(document, site).http.bind_host == "10.0.0.1"
    chosen = Override("http.port", 3, "--set")
    flag = Override("http.port", 4, "--port")
    assert read(document, site, chosen).http.port == 3
    assert read(document, site, chosen, flag).http.port == 4


def test_world_on_this_host_and_on_nodes():
    assert read(MINIMAL).nodes == ("localhost",)
    assert read(MINIMAL | {"world_size": 2}).nodes == ("localhost", "localhost")
    assert read(FULL, NODES).nodes == ("n0", "n1", "n2", "n3")
    with pytest.raises(ConfigError, match="world_size: 6 ranks, but DGPP_NODES has 5 nodes"):
        read(MINIMAL | {"world_size": 6}, NODES)


def test_node_env_merges_site_and_overrides():
    site = parse_site(
        {
            "DGPP_NODES": "a b",
            "HF_HOME": "/hf/",
            "DGPP_ROCE_DEVICES": "r0 r1",
            "DGPP_NODE_OVERRIDES": '{"b": {"DGPP_ROCE_DEVICES": "s0", "HF_HUB_CACHE": "/b"}}',
        },
        "env",
    )
    assert read(MINIMAL | {"world_size": 2}, site).node_env == (
        {"DGPP_ROCE_DEVICES": "r0 r1", "HF_HUB_CACHE": "/hf/hub"},
        {"DGPP_ROCE_DEVICES": "s0", "HF_HUB_CACHE": "/b"},
    )


def test_node_env_carries_log_level_and_mlock():
    site = parse_site({"DGPP_LOG_LEVEL": "debug", "DGPP_MLOCK": "off"}, "env")
    assert read(MINIMAL, site).node_env == ({"DGPP_LOG_LEVEL": "debug", "DGPP_MLOCK": "off"},)


def test_site_resident_cache_wins_over_the_deployment():
    site = parse_site({"DGPP_RESIDENT_CACHE_DIR": "/site"}, "env")
    document = MINIMAL | {"paths": {"resident_cache": "/file"}}
    assert read(document).paths.resident_cache == "/file"
    assert read(document, site).paths.resident_cache == "/site"


@pytest.mark.parametrize("site", [SiteSettings(), NODES], ids=["local", "nodes"])
def test_resolved_json_reads_back_equal_on_any_site(site):
    settings = read(FULL, site)
    document = parse_document(json.dumps(to_document(settings)).encode(), "resolved")
    other = parse_site({"DGPP_HTTP_PORT": "5", "DGPP_NODES": "x", "DGPP_LOG_DIR": "/l"}, "env")
    assert read(document, other) == settings
    assert "world_size" not in document


def test_demo_deployment_is_served():
    settings = load(ROOT / "deploy" / "demo.json", environ={})
    refuse_unsupported(settings)
    assert settings.model == "dgpp/demo"
    assert settings.engine.kv_capacity == 16384


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="absent: cannot be read: No such file or directory"):
        load(tmp_path / "absent", environ={})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (engine(mtp_depth=2), "engine.mtp_depth: needs engine.mtp"),
        (
            engine(mtp_schedule=True, decode_graph=False),
            "engine.mtp_schedule: needs engine.decode_graph",
        ),
        (
            engine(mtp_schedule=True, decode_graph=True),
            "engine.mtp_schedule: needs engine.mtp or engine.dflash_model",
        ),
        (
            engine(mtp=True, mtp_depth=2, mtp_schedule_min_depth=3),
            "engine.mtp_schedule_min_depth: at most engine.mtp_depth (2), got 3",
        ),
        (engine(mtp=True, dflash_model="a/b"), "engine.dflash_model: needs engine.mtp off"),
        (
            engine(dflash_model="a/b", decode_graph=True, mtp_schedule=True, dflash_batch_rows=8),
            "engine.dflash_batch_rows: excludes engine.mtp_schedule",
        ),
        (
            engine(dflash_model="a/b", decode_graph=False) | {"world_size": 2},
            "engine.dflash_model: needs engine.decode_graph in a world",
        ),
        (
            engine(prefill_budget_tokens=0, prefill_idle_budget_tokens=1),
            "engine.prefill_idle_budget_tokens: needs engine.prefill_budget_tokens",
        ),
        (
            engine(prefill_budget_tokens=256, prefill_idle_budget_tokens=128),
            "engine.prefill_idle_budget_tokens: at least engine.prefill_budget_tokens (256)",
        ),
        (engine(fp8_head="mma"), "engine.fp8_head: needs engine.dense_weights fp8"),
        (engine(prefill_fp8_gemm=True), "engine.prefill_fp8_gemm: needs engine.dense_weights fp8"),
        (
            engine(max_concurrency=2, graph_batch_min_live=3),
            "engine.graph_batch_min_live: at most engine.max_concurrency (2), got 3",
        ),
        (engine(script="x"), "engine.script: needs engine.backend scripted"),
        (engine(step_ms=1), "engine.step_ms: needs engine.backend scripted"),
        (engine(backend="scripted", threads=1), "engine.threads: needs engine.backend cpu"),
        (
            engine(default_chat_template_kwargs={"thinking": True, "enable_thinking": False}),
            "engine.default_chat_template_kwargs.thinking: contradicts enable_thinking",
        ),
        (
            MINIMAL | {"http": {"tls_cert": "x"}},
            "http.tls_key: required, tls_cert and tls_key go together",
        ),
        (
            MINIMAL | {"ports": {"metrics": 29970}},
            "ports.metrics: must differ from ports.fabric, both are 29970",
        ),
        (
            MINIMAL | {"world_size": 2, "http": {"port": 29971}},
            "http.port: must differ from ports.journal, both are 29971",
        ),
        (
            MINIMAL | {"world_size": 4, "ports": {"metrics": 18079}},
            "ports.metrics + 1: must differ from http.port, both are 18080",
        ),
        (
            MINIMAL | {"world_size": 4, "ports": {"metrics": 65534}},
            "ports.metrics: 3 ranks of one host need 3 ports from it on, got 65534",
        ),
        ({"model": "m", "nodes": []}, "nodes: expected at least one node"),
        ({"model": "m", "nodes": ["a", "b", "a"]}, "nodes: a is listed twice"),
        (
            {"model": "m", "nodes": ["a", "b"], "node_env": [{}]},
            "node_env: expected one entry per node, 1 for 2",
        ),
        (
            {"model": "m", "nodes": ["a"], "node_env": [{"PATH": "x"}]},
            "node_env[0].PATH: unknown key, expected one of DGPP_ROCE_DEVICES",
        ),
    ],
)
def test_constraints(document, message):
    with pytest.raises(ConfigError) as caught:
        read(document)
    assert str(caught.value).startswith(f"cluster config f: {message}")


def test_one_rank_may_share_the_journal_port():
    assert read(MINIMAL | {"http": {"port": 29971}}).http.port == 29971


@pytest.mark.parametrize(
    ("document", "keys"),
    [
        (engine(mtp=False, prefix_cache_gib=0, kv_dtype="bf16", admission_window=256), []),
        (engine(backend="scripted", step_ms=2.5), []),
        (engine(backend="cuda"), []),
        (engine(prefix_cache_gib=2, prefix_min_tokens=9, prefix_close=False), []),
        (engine(admission="grow", mtp=True), ["engine.mtp"]),
        (MINIMAL | {"world_size": 2}, []),
        (
            MINIMAL | {"nvme_cache": {"enabled": False, "path": "/x", "capacity_gib": 9}},
            [],
        ),
        (MINIMAL | {"nvme_cache": {"enabled": True, "min_tokens": 9, "keep": False}}, []),
        (MINIMAL | {"release": "9.9"}, []),
        (MINIMAL | {"ports": {"metrics": 9100}}, []),
        (engine(admission_window=7), []),
        (
            engine(bulk_inflight=4, bulk_pace_gbps=1, rendezvous_timeout_ms=9),
            [],
        ),
        (LOCAL | {"ssh_user": "me"}, []),
        (
            LOCAL | {"ports": {"fabric": 1, "journal": 2}},
            [],
        ),
        (
            LOCAL | {"paths": {"log_dir": "/x", "stage_dir": "/x", "release_dir": "/x"}},
            [],
        ),
        (
            LOCAL | {"node_env": [{"DGPP_BUS_TIMELINE": "1", "HF_HUB_CACHE": "/h"}]},
            ["node_env[0].DGPP_BUS_TIMELINE"],
        ),
    ],
)
def test_unsupported(document, keys):
    settings = read(document)
    assert unsupported_keys(settings) == keys
    if keys:
        with pytest.raises(ConfigError) as caught:
            refuse_unsupported(settings)
        assert str(caught.value) == "not supported yet: " + ", ".join(keys)


@pytest.mark.parametrize(
    ("http", "ports", "refused"),
    [
        ({}, {}, False),
        ({"bind_host": "127.1.2.3"}, {}, False),
        ({"bind_host": "0.0.0.0"}, {}, True),
        ({"bind_host": "10.0.0.1"}, {}, True),
        ({"bind_host": "0.0.0.0", "api_key_file": "k"}, {}, False),
        ({"bind_host": "0.0.0.0", "insecure_no_auth": True}, {}, False),
        ({"bind_host": "0.0.0.0", "unix_socket": "/s"}, {}, False),
        # A further rank answers its metrics on that address all the same.
        ({"bind_host": "0.0.0.0", "unix_socket": "/s"}, {"metrics": 9}, True),
    ],
)
def test_run_opens_no_door_to_other_machines_unasked(http, ports, refused):
    settings = read(MINIMAL | {"http": http, "ports": ports})
    if not refused:
        refuse_open_door(settings)
        return
    with pytest.raises(ConfigError, match=r"http.bind_host: .* http.api_key_file, or say --insec"):
        refuse_open_door(settings)


@pytest.mark.parametrize("nodes", [["gpu-box-7"], ["127.0.0.1"]])
def test_run_serves_this_host_alone(nodes):
    with pytest.raises(ConfigError, match=r"^not supported yet: nodes \(dgpp run serves this host"):
        refuse_unsupported(read({"model": "m", "nodes": nodes}))
    site = parse_site({"DGPP_NODES": " ".join(nodes)}, "env")
    with pytest.raises(ConfigError, match="not supported yet: nodes"):
        refuse_unsupported(read(MINIMAL, site), site_alone(site))


SITE = parse_site(
    {
        "DGPP_SSH_USER": "me",
        "DGPP_FABRIC_PORT": "1",
        "DGPP_JOURNAL_PORT": "2",
        "DGPP_LOG_DIR": "/l",
        "DGPP_STAGE_DIR": "/s",
        "DGPP_RELEASE_DIR": "/r",
        "DGPP_RESIDENT_CACHE_DIR": "/c",
        "DGPP_ROCE_DEVICES": "r0",
        "DGPP_MLOCK": "off",
        "HF_HUB_CACHE": "/h",
    },
    "env",
)


def test_what_the_site_says_is_no_request():
    settings = read(MINIMAL, SITE)
    assert settings.ports.fabric == 1
    refuse_unsupported(settings, site_alone(SITE))
    refuse_unsupported(read(to_document(settings), SITE), site_alone(SITE))


def test_what_differs_from_the_site_is_refused():
    document = to_document(read(MINIMAL, SITE))
    document["engine"]["mtp"] = True
    document["node_env"][0]["DGPP_BUS_TIMELINE"] = "1"
    keys = ["node_env[0].DGPP_BUS_TIMELINE", "engine.mtp"]
    assert unsupported_keys(read(document, SITE), site_alone(SITE)) == keys


LATER_KEYS = [f for f in leaves(Settings).values() if f.key.now == () and f.section is None]


def in_range(field, value):
    try:
        Reader("x").value(field, value)
    except ConfigError:
        return False
    return True


def other_value(field):
    """A value in range that is not the default."""
    match field.kind:
        case Kind.BOOLEAN:
            return not field.default
        case Kind.INTEGER | Kind.NUMBER:
            tried = (1, 0.5, 2)
            return next(n for n in tried if n != field.default and in_range(field, n))
        case Kind.CHOICE:
            return next(choice for choice in field.choices if choice != field.default)
        case Kind.STRINGS:
            return ["elsewhere"]
        case _:
            return next(s for s in ("/x/y", "a/b", "x") if in_range(field, s))


@pytest.mark.parametrize("field", LATER_KEYS, ids=lambda field: field.path)
def test_every_later_key_is_refused_by_its_name(field):
    document = json.loads(json.dumps(LOCAL))
    put(document, field.path, other_value(field))
    settings = Reader("x").section(Settings, document)
    for several_nodes in (False, True):
        assert unsupported_keys(settings, several_nodes=several_nodes) == [field.path]


def test_the_http_port_has_one_value():
    with pytest.raises(ConfigError, match=r"ports.http: must equal http.port \(5\), got 6"):
        read(LOCAL | {"http": {"port": 5}, "ports": {"http": 6}})
    with pytest.raises(ConfigError, match=r"--set: ports\.http: follows http\.port"):
        read(MINIMAL, None, Override("ports.http", 6, "--set"))
    assert read(LOCAL | {"ports": {"http": 6}}).http.port == 6


def test_digest_covers_what_ranks_share():
    base = digest(read(MINIMAL))
    assert len(base) == 16
    for local in (
        MINIMAL | {"http": {"port": 5}},
        engine(max_connections=7),
        MINIMAL | {"sampling": {"temperature": 0.5}},
    ):
        assert digest(read(local)) == base
    for shared in (
        MINIMAL | {"model": "n"},
        MINIMAL | {"world_size": 2},
        engine(queue_limit=63),
        engine(decode_graph=False),
        engine(file_inputs={"workers": 3}),
    ):
        assert digest(read(shared)) != base


def test_configuration_page_is_current():
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == configuration_page(), "python -m dgpp.config.reference > docs/configuration.md"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
PATHS = [*sorted(leaves(Settings)), "engine", "http", "engine.unknown", "x"]


def put(document, path, value):
    *parents, name = path.split(".")
    section = document
    for parent in parents:
        section = section.setdefault(parent, {})
        if not isinstance(section, dict):
            return
    section[name] = value


@given(st.lists(st.tuples(st.sampled_from(PATHS), JSON), min_size=1, max_size=3))
def test_any_mutation_keeps_its_meaning_or_is_refused_by_name(mutations):
    document = json.loads(json.dumps(FULL))
    for path, value in mutations:
        put(document, path, value)
    try:
        settings = read(document, NODES)
    except ConfigError as error:
        message = str(error)
    else:
        message = None
        again = parse_document(json.dumps(to_document(settings)).encode(), "again")
        assert read(again) == settings
    known = [*PATHS, "nodes", "world_size", "node_env"]
    assert message is None or message.startswith("cluster config f: ")
    assert message is None or any(path in message for path in known)


@given(st.binary(max_size=40), st.integers(0, 2000), st.integers(0, 30))
def test_damaged_bytes_parse_or_are_refused(junk, at, removed):
    data = json.dumps(FULL).encode()
    damaged = data[:at] + junk + data[at + removed :]
    try:
        read(parse_document(damaged, "f"), NODES)
    except ConfigError as error:
        message = str(error)
    else:
        message = "cluster config f: "
    assert message.startswith("cluster config f: ")


@given(
    st.sampled_from([f for f in leaves(Settings).values() if f.kind is Kind.INTEGER]), st.integers()
)
def test_an_integer_is_kept_or_refused(field, number):
    if field.path.startswith(("engine.rope", "engine.file", "ports")):
        return
    document = json.loads(json.dumps(MINIMAL))
    put(document, field.path, number)
    try:
        settings = read(document)
    except ConfigError:
        return
    value = settings
    for name in field.path.split("."):
        value = getattr(value, name)
    assert value == number


def test_settings_are_frozen():
    settings = read(MINIMAL)
    with pytest.raises(AttributeError):
        settings.model = "x"
    assert msgspec.structs.replace(settings, model="x").model == "x"
