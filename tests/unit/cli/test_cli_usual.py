"""Where a client looks for a server by itself: at the deployment that the site names."""

from __future__ import annotations

import json
import os

import pytest

from dgpp.cli import main as cli
from dgpp.cli.usual import usual_url
from dgpp.cluster.place import Place, deployment_id
from dgpp.cluster.record import ProcessRecord, boot_id, start_ticks, write_record
from dgpp.config.document import Override
from dgpp.config.resolve import load, to_document
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


def start(config, logs, stage, *, port, pid):
    """What `dgpp up CONFIG --port PORT` leaves of rank 0 while process `pid` runs."""
    place = Place(str(logs), str(stage), deployment_id(config))
    for folder in (place.logs, place.stage):
        folder.mkdir(parents=True)
    settings = load(config, overrides=[Override("http.port", port, "--port")], environ={})
    place.settings(0).write_text(json.dumps(to_document(settings)))
    command = ("profile", "run", "dgpp", "run", str(place.settings(0)), "--rank", "0")
    record = ProcessRecord(0, pid, start_ticks(pid), boot_id(), 0.0, "1", str(config), command)
    write_record(place.record(0), record)
    return place


def test_a_deployment_that_runs_is_sought_where_it_was_started(site, tmp_path):
    site(f"DGPP_CLUSTER_CONFIG=two.json\nDGPP_LOG_DIR={tmp_path}/log", port=9005)
    # It was started with another stage folder than the site names now.
    two, log = tmp_path / "two.json", tmp_path / "log"
    place = start(two, log, tmp_path / "other", port=9006, pid=os.getpid())
    assert usual_url() == "http://127.0.0.1:9006"
    # What has ended, or cannot be read, says nothing of where the next one listens.
    text = place.record(0).read_bytes()
    place.record(0).write_bytes(text.replace(boot_id().encode(), b"before"))
    assert usual_url() == "http://127.0.0.1:9005"
    place.record(0).write_bytes(text[:-9])
    assert usual_url() == "http://127.0.0.1:9005"
    place.record(0).write_bytes(text)
    assert usual_url() == "http://127.0.0.1:9006"
    place.settings(0).unlink()
    assert usual_url() == "http://127.0.0.1:9005"


def test_a_deployment_that_is_gone_is_named_by_its_key(site):
    site("DGPP_CLUSTER_CONFIG=gone.json")
    with pytest.raises(ConfigError, match=r"^DGPP_CLUSTER_CONFIG: no such file: gone\.json$"):
        usual_url()
