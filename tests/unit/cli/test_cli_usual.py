"""Where a client looks for a server by itself: at the deployment that the site names."""

from __future__ import annotations

import json
import os

import pytest

from dgpp.cli import main as cli
from dgpp.cli.usual import usual_url
from dgpp.errors import ConfigError


@pytest.fixture
def site(tmp_path, monkeypatch):
    """`site(text, **http)`: the site's file, and the `http` of the deployment two.json."""
    for name in [name for name in os.environ if name.startswith(("DGPP_", "HF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def write(text, **http):
        (tmp_path / ".env").write_text(text)
        (tmp_path / "two.json").write_text(json.dumps({"model": "m", "http": http}))

    return write


@pytest.mark.parametrize(
    ("text", "http", "url"),
    [
        ("", {}, "http://127.0.0.1:18080"),
        ("DGPP_HTTP_PORT=9001", {}, "http://127.0.0.1:9001"),
        ("DGPP_CLUSTER_CONFIG=two.json", {"port": 9002}, "http://127.0.0.1:9002"),
        ("DGPP_CLUSTER_CONFIG=two.json\nDGPP_HTTP_PORT=9003", {}, "http://127.0.0.1:9003"),
        ("DGPP_CLUSTER_CONFIG=two.json", {"bind_host": "0.0.0.0"}, "http://127.0.0.1:18080"),
        ("DGPP_CLUSTER_CONFIG=two.json", {"bind_host": "10.1.2.3"}, "http://10.1.2.3:18080"),
        ("DGPP_CLUSTER_CONFIG=two.json", {"unix_socket": "/run/x"}, "unix:/run/x"),
        (
            "DGPP_CLUSTER_CONFIG=two.json",
            {"tls_cert": "/c", "tls_key": "/k", "port": 9004},
            "https://127.0.0.1:9004",
        ),
    ],
)
def test_the_deployments_address_is_where_clients_look(site, text, http, url):
    site(text, **http)
    assert usual_url() == url


@pytest.mark.parametrize("words", [["chat", "--once", "hi"], ["top", "--once"]])
def test_every_client_looks_there_unless_it_is_told(site, capsys, words):
    # Nobody listens on port 1.
    site("DGPP_CLUSTER_CONFIG=two.json", port=1)
    assert cli.main(words) == 1
    assert "no server answers at http://127.0.0.1:1 (" in capsys.readouterr().err
    assert cli.main([*words, "--url", "unix:/nowhere"]) == 1
    assert "no server answers at unix:/nowhere (" in capsys.readouterr().err


def test_a_deployment_that_is_gone_is_named_by_its_key(site):
    site("DGPP_CLUSTER_CONFIG=gone.json")
    with pytest.raises(ConfigError, match=r"^DGPP_CLUSTER_CONFIG: no such file: gone\.json$"):
        usual_url()
