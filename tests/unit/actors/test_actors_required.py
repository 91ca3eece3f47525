"""What a start needs from its surroundings is named before any actor starts."""

from __future__ import annotations

import socket

import pytest

from actors.http.required import require_surroundings
from dgpp.config.document import Override
from dgpp.config.resolve import resolve
from dgpp.config.site import parse_site
from dgpp.errors import ConfigError


@pytest.fixture
def taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def settings_of(world_size=1, ports=None, **http):
    document = {"model": "m", "world_size": world_size, "http": http}
    laid = [Override(f"ports.{name}", port, "test") for name, port in (ports or {}).items()]
    return resolve(document, "test", site=parse_site({}, ""), overrides=laid)


def test_ports_that_are_taken(taken):
    busy = f"cannot listen on 127.0.0.1:{taken}: Address already in use"
    with pytest.raises(ConfigError, match=f"^http.port: {busy}$"):
        require_surroundings(settings_of(port=taken), 0)
    # Ranks beyond the first have no front end.
    require_surroundings(settings_of(2, port=taken), 1)
    with pytest.raises(ConfigError, match=f"^ports.journal: {busy}$"):
        require_surroundings(settings_of(2, {"journal": taken}, unix_socket="/tmp/s"), 0)
    metrics = settings_of(3, {"metrics": taken - 1}, port=1)
    with pytest.raises(ConfigError, match=f"^ports.metrics: {busy}$"):
        require_surroundings(metrics, 2)
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:1: Cannot assign requested address"):
        require_surroundings(settings_of(port=1, bind_host="192.0.2.1"), 0)


def test_files_that_are_none(tmp_path):
    absent = str(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"http.api_key_file"):
        require_surroundings(settings_of(api_key_file=absent), 0)
    with pytest.raises(ConfigError, match=r"http.tls_cert = .*: No such file"):
        require_surroundings(settings_of(tls_cert=absent, tls_key=absent), 0)
    with pytest.raises(ConfigError, match=r"http.unix_socket = .*: its folder does not exist"):
        require_surroundings(settings_of(unix_socket=f"{absent}/s"), 0)
    (tmp_path / "s").write_text("mine")
    with pytest.raises(ConfigError, match=r"http.unix_socket = .*: there is a file that is no"):
        require_surroundings(settings_of(unix_socket=str(tmp_path / "s")), 0)
    assert (tmp_path / "s").read_text() == "mine"
