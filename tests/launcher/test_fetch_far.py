"""`dgpp fetch` to nodes behind real ssh servers: reached, let in, without room."""

from __future__ import annotations

import subprocess

import pytest
from fetch_site import MODEL, FarSite, nothing_staged
from sshd import Machines


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    found = Machines(tmp_path_factory.mktemp("machines") / "ssh (one)")
    yield found
    found.close()


@pytest.fixture
def site(machines, hub, tmp_path):
    return FarSite(machines, hub, tmp_path)


def test_a_peer_that_does_not_know_this_key_is_named_before_a_byte_is_fetched(site, machines, hub):
    key = machines.folder / "user"
    kept = machines.folder / "kept"
    key.rename(kept)
    try:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        (machines.folder / "user.pub").rename(machines.folder / "other.pub")
        status, said = site.run("fetch", MODEL)
    finally:
        kept.replace(key)
        made = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], check=True, capture_output=True)
        (machines.folder / "user.pub").write_bytes(made.stdout)
    assert status == 1
    assert "let this user's key in there (ssh-copy-id)" in said
    assert hub.sent == {}


@pytest.mark.long
def test_fetched_once_and_sent_past_every_shell(site, hub):
    status, said = site.run("fetch", MODEL)
    assert status == 0, said
    for home in (site.home, *site.peers):
        assert site.snapshot(home) == site.wanted()
        assert site.main(home) == hub.commit(MODEL)
        assert nothing_staged(home)
        assert not list(home.rglob("oops"))
    assert hub.sent == {name: len(data) for name, data in site.wanted().items()}
