"""What a site's nodes say of how to set it up, and the `.env` file that keeps it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.cluster.messages import NodeFacts
from dgpp.cluster.site_plan import DEMO, lane_values, own_deployment, suggested, world_size
from dgpp.config.constraints import refuse_open_door, unsupported_keys
from dgpp.config.env_file import with_values, write_values
from dgpp.config.resolve import load
from dgpp.config.site import parse_env, parse_site
from dgpp.config.templates import templates
from dgpp.errors import ConfigError
from dgpp.net.roce import Gid, RoceDevice

V2 = "RoCE v2"


def device(name, *gids, state="4: ACTIVE"):
    return RoceDevice(name, state, "200 Gb/sec (4X HDR)", "Ethernet", gids)


def gid(index, host, kind=V2):
    return Gid(index, f"::ffff:{host}", kind, "eth0")


LANE_A = device("roce0", gid(3, "10.0.0.1"))
LANE_B = device("roce1", gid(3, "10.0.1.1"))
DOWN = device("roce9", gid(3, "10.0.9.1"), state="1: DOWN")
NO_ADDRESS = device("roce8", Gid(1, "fe80::1", V2, "eth0"))


def test_nodes_with_the_same_lanes_share_one_line():
    found = {"a": [DOWN, LANE_A, LANE_B], "b": [NO_ADDRESS, LANE_A, LANE_B]}
    assert lane_values(found, {}) == {
        "DGPP_ROCE_DEVICES": "roce0 roce1",
        "DGPP_ROCE_GID_INDICES": "3 3",
    }


def test_all_take_as_many_lanes_as_the_least_has_and_others_are_named_apart():
    found = {"a": [LANE_A, LANE_B], "b": [device("mlx5_0", gid(5, "10.0.0.2"))]}
    values = lane_values(found, {"b": {"HF_HUB_CACHE": "/disk"}})
    site = parse_site(values | {"DGPP_NODES": "a b"}, "test")
    assert site.DGPP_ROCE_DEVICES == ("roce0",)
    assert site.DGPP_NODE_OVERRIDES == {
        "b": {
            "HF_HUB_CACHE": "/disk",
            "DGPP_ROCE_DEVICES": "mlx5_0",
            "DGPP_ROCE_GID_INDICES": "5",
        }
    }


@pytest.mark.parametrize("bare", [[], [DOWN], [NO_ADDRESS]])
def test_a_node_without_a_lane_leaves_none(bare):
    assert lane_values({"a": [LANE_A], "b": bare}, {}) == {}


def facts(has_gpu):
    return NodeFacts("3.12.1", 1, "NVIDIA GB10", has_gpu, "/hub", 1, (), ())


def test_what_is_suggested():
    names = ["demo.json", "x-w1.json"]
    assert suggested(names, [facts(False)]) == DEMO
    assert suggested(names, [facts(True)]) == "x-w1.json"
    assert suggested(["demo.json"], [facts(True)]) == DEMO
    assert suggested(["y-w2.json"], [facts(True), facts(False)]) == "y-w2.json"
    assert suggested([], [facts(True)] * 3) == ""


@pytest.mark.parametrize("template", templates(), ids=lambda file: file.name)
def test_every_template_becomes_one_that_this_version_serves(template, tmp_path):
    config, left_out = own_deployment(template, tmp_path / "own")
    nodes = " ".join("abcd"[: world_size(template)])
    settings = load(config, environ={"DGPP_NODES": nodes})
    assert unsupported_keys(settings, several_nodes=True) == []
    refuse_open_door(settings)
    if settings.http.api_key_file:
        keys = Path(settings.http.api_key_file)
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600
        assert len(keys.read_text().strip()) >= 32
    # What a template says and this version serves is kept.
    before, after = (json.loads(file.read_text())["engine"] for file in (template, config))
    gone = {path.removeprefix("engine.") for path in left_out}
    assert after == {key: value for key, value in before.items() if key not in gone}
    # One that is there already was tuned by somebody.
    config.write_text("tuned")
    assert own_deployment(template, tmp_path / "own") == (config, [])
    assert config.read_text() == "tuned"


names = st.sampled_from(["DGPP_NODES", "HF_HOME", "OTHER", "DGPP_SSH_USER"])
words = st.text(
    st.characters(blacklist_categories=["C", "Zl", "Zp"], blacklist_characters="\"'"), max_size=20
)
lines = st.one_of(
    st.builds("{}={}".format, names, st.from_regex(r"[a-z/.]{0,8}", fullmatch=True)),
    st.builds("export {} = '{}'  # why".format, names, words),
    st.sampled_from(["", "# a comment", "  "]),
)


@given(st.lists(lines, unique_by=lambda line: line.split("=")[0]), st.dictionaries(names, words))
def test_keys_are_set_and_the_rest_stays(found, values):
    text = "".join(f"{line}\n" for line in found)
    try:
        before = parse_env(text, "before")
    except ConfigError:
        return
    written = with_values(text, values)
    assert parse_env(written, "after") == before | values
    others = [line for line in found if parse_env(line, "x").keys().isdisjoint(values)]
    assert [line for line in written.split("\n")[:-1] if line in others] == others
    assert with_values(written, values) == written


def test_a_file_is_written_whole_for_its_owner_or_not_at_all(tmp_path):
    file = tmp_path / "folder with spaces" / ".env"
    with pytest.raises(ConfigError, match="cannot be written"):
        write_values(file, {"DGPP_NODES": "a"})
    file.parent.mkdir()
    write_values(file, {"DGPP_NODES": "a $(touch oops)"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert parse_env(file.read_text(), "x") == {"DGPP_NODES": "a $(touch oops)"}
    with pytest.raises(ConfigError, match="both kinds of quotes"):
        write_values(file, {"HF_HOME": "\"'"})
    with pytest.raises(ConfigError, match="both kinds of quotes"):
        write_values(file, {"HF_HOME": "a\nDGPP_NODES=b"})
    file.write_text("nonsense")
    with pytest.raises(ConfigError, match="line 1: expected KEY=value"):
        write_values(file, {"HF_HOME": "a"})
    assert file.read_text() == "nonsense"
    assert [entry.name for entry in file.parent.iterdir()] == [".env"]
