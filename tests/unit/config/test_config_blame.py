"""Errors in what the site says name the place that says it: its file, or an exported variable."""

import re

import pytest

from dgpp.config.document import Override
from dgpp.config.resolve import load
from dgpp.config.site import load_site
from dgpp.errors import ConfigError

BAD = {
    "DGPP_NODES": "a;b",
    "DGPP_HTTP_PORT": "70000",
    "DGPP_HTTP_BIND": "here",
    "DGPP_RELEASE_DIR": "releases",
    "DGPP_ROCE_GID_INDICES": "3",
    "DGPP_NODE_OVERRIDES": '{"nowhere": {}}',
    "DGPP_LOG_LEVEL": "loud",
}


@pytest.mark.parametrize("key", BAD)
def test_a_value_that_will_not_do_is_blamed_on_the_file_or_the_environment_that_says_it(
    tmp_path, key
):
    env = tmp_path / ".env"
    env.write_text("DGPP_SSH_USER=me\n")
    with pytest.raises(ConfigError, match=f"^site settings environment: {key}"):
        load_site({key: BAD[key]}, (tmp_path,))
    env.write_text(f"DGPP_SSH_USER=me\n{key}='{BAD[key]}'\n")
    with pytest.raises(ConfigError, match=f"^site settings {re.escape(str(env))}: {key}"):
        load_site({"DGPP_LOG_DIR": "/l"}, (tmp_path,))
    # What is exported wins, whatever the file says.
    assert load_site({key: ""}, (tmp_path,)).DGPP_SSH_USER == "me"


def test_what_the_site_says_is_blamed_on_where_it_says_it(tmp_path):
    """A file, an exported variable, a flag: each error names the one to change."""
    config, env = tmp_path / "c.json", tmp_path / ".env"
    config.write_text('{"model": "m", "world_size": 2}')
    both = "ports.journal: must differ from ports.fabric, both are 29970"
    one = "world_size: 2 ranks, but DGPP_NODES"
    for text, exported, overrides, said in (
        ("DGPP_JOURNAL_PORT=29970", {}, (), f"site settings {env}: DGPP_JOURNAL_PORT: {both}"),
        (
            "DGPP_JOURNAL_PORT=1",
            {"DGPP_JOURNAL_PORT": "29970"},
            (),
            f"site settings environment: DGPP_JOURNAL_PORT: {both}",
        ),
        (
            "DGPP_JOURNAL_PORT=1",
            {},
            [Override("ports.journal", 29970, "--set")],
            f"cluster config {config}: {both}",
        ),
        (
            "DGPP_JOURNAL_PORT=29970",
            {"DGPP_JOURNAL_PORT": ""},
            [Override("ports.fabric", 29971, "--set")],
            f"cluster config {config}: {both[:-1]}1",
        ),
        ("DGPP_NODES=a", {}, (), f"cluster config {config}: {one} ({env}) has 1 node"),
        (
            "DGPP_NODES='a b'",
            {"DGPP_NODES": "c"},
            (),
            f"cluster config {config}: {one} (environment) has 1 node",
        ),
    ):
        env.write_text(text)
        with pytest.raises(ConfigError) as found:
            load(config, overrides=overrides, environ=exported, directories=(tmp_path,))
        assert str(found.value) == said
