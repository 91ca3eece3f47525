"""The `.env` parser and the allow-list of site keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.config.site import load_site, parse_env, parse_site
from dgpp.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("K=v", "v"),
        ("  K = v  ", "v"),
        ("export K=v", "v"),
        ("K=a b # comment", "a b"),
        ("K=a#b", "a#b"),
        ("K=#b", "#b"),
        ("K= # only a comment", ""),
        ("K=", ""),
        ('K="a # b"', "a # b"),
        ("K='a \" b' # c", 'a " b'),
        ("K=$HOME/x", "$HOME/x"),
        ('K="\\n"', "\\n"),
        ("K=a=b", "a=b"),
        ("K=v\r", "v"),
    ],
)
def test_line(line, value):
    assert parse_env(f"# head\n\n{line}\n", "f") == {"K": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nA=2", "site settings f line 2: A: given twice"),
        ("A", "site settings f line 1: expected KEY=value"),
        ("1A=x", "site settings f line 1: expected KEY=value"),
        ("A='x", "site settings f line 1: A: the quote is not closed"),
        ("A='secret'x", "site settings f line 1: A: text after the closing quote"),
    ],
)
def test_bad_line(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_env(text, "f")
    assert str(caught.value) == message


def outcome(call):
    try:
        call()
    except ConfigError as error:
        return str(error)
    return None


@given(st.text())
def test_any_text_parses_or_is_refused(text):
    problem = outcome(lambda: parse_site(parse_env(text, "f"), "f"))
    assert problem is None or problem.startswith("site settings f")


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "DGPP_NODES",
                "DGPP_HTTP_PORT",
                "DGPP_NODE_OVERRIDES",
                "DGPP_MLOCK",
                "DGPP_ROCE_DEVICES",
                "DGPP_ROCE_GID_INDICES",
                "DGPP_STAGE_DIR",
            ]
        ),
        st.text() | st.from_regex(r"[a-z0-9 ,{}:\"/.~-]{0,20}"),
    )
)
def test_any_value_is_read_or_named(values):
    problem = outcome(lambda: parse_site(values, "f"))
    assert problem is None or any(name in problem for name in values)


def test_site_keys():
    site = parse_site(
        {
            "DGPP_NODES": "spark1  10.0.0.2",
            "DGPP_HTTP_PORT": "8000",
            "DGPP_ROCE_DEVICES": "rocep1s0f1 roceP2p1s0f1",
            "DGPP_ROCE_GID_INDICES": "3,3",
            "DGPP_NODE_OVERRIDES": '{"10.0.0.2": {"HF_HUB_CACHE": "/data/hub"}}',
            "DGPP_LOG_LEVEL": "DEBUG",
            "DGPP_SSH_USER": "",
            "HF_TOKEN": "secret",
        },
        "f",
    )
    assert site.DGPP_NODES == ("spark1", "10.0.0.2")
    assert site.DGPP_HTTP_PORT == 8000
    assert site.DGPP_ROCE_GID_INDICES == ("3", "3")
    assert site.DGPP_NODE_OVERRIDES["10.0.0.2"] == {"HF_HUB_CACHE": "/data/hub"}
    assert site.DGPP_LOG_LEVEL == "debug"
    assert site.DGPP_SSH_USER == ""


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("DGPP_HTTP_PORT", "x", 'expected an integer in 1..65535, got "x"'),
        ("DGPP_HTTP_PORT", "0", "expected an integer in 1..65535, got 0"),
        ("DGPP_HTTP_BIND", "::", 'expected an IPv4 address, got "::"'),
        ("DGPP_NODES", "a a", "a node is listed twice"),
        ("DGPP_NODES", "-x", "expected host names separated by spaces"),
        ("DGPP_ROCE_DEVICES", "a b c", "at most 2 devices, got 3"),
        ("DGPP_ROCE_GID_INDICES", "3", "1 GID indices for 0 devices"),
        ("DGPP_ROCE_GID_INDICES", "256", "expected integers in 0..255"),
        ("DGPP_STAGE_DIR", "/a/../b", "expected an absolute or ~/ directory"),
        ("DGPP_NODE_OVERRIDES", "[", "expected an object"),
        ("DGPP_NODE_OVERRIDES", '{"x": {}}', "not an entry of DGPP_NODES"),
        ("DGPP_SSH_USER", "a b", "expected a login name"),
    ],
)
def test_bad_value(name, value, problem):
    with pytest.raises(ConfigError) as caught:
        parse_site({name: value}, "f")
    assert str(caught.value).startswith(f"site settings f: {name}")
    assert problem in str(caught.value)


def test_exported_variables_win_and_empty_is_absent(tmp_path):
    (tmp_path / ".env").write_text("DGPP_HTTP_PORT=8000\nDGPP_SSH_USER=me\n")
    site = load_site({"DGPP_HTTP_PORT": "9000", "DGPP_SSH_USER": ""}, (tmp_path,))
    assert (site.DGPP_HTTP_PORT, site.DGPP_SSH_USER) == (9000, "")


def test_named_env_file(tmp_path):
    (tmp_path / ".env").write_text("DGPP_HTTP_PORT=1\n")
    (tmp_path / "other").write_text("DGPP_HTTP_PORT=2\n")
    named = {"DGPP_ENV_FILE": str(tmp_path / "other")}
    assert load_site(named, (tmp_path,)).DGPP_HTTP_PORT == 2
    with pytest.raises(ConfigError, match="DGPP_ENV_FILE: no such file: /nowhere"):
        load_site({"DGPP_ENV_FILE": "/nowhere"}, (tmp_path,))


def test_first_directory_with_a_file_counts(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".env").write_text("DGPP_HTTP_PORT=7\n")
    assert load_site({}, (tmp_path, tmp_path / "b")).DGPP_HTTP_PORT == 7
    assert load_site({}, (tmp_path,)).DGPP_HTTP_PORT == 0


def test_unreadable_file(tmp_path):
    (tmp_path / ".env").write_bytes(b"A=\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_site({}, (tmp_path,))
