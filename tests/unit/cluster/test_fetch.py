"""`dgpp fetch` from a hub on loopback to peers in this process: what is fetched, sent, proved."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_hub import model_files
from fetch_site import (
    LAST_SHARD,
    MODEL,
    SHARD,
    NearNode,
    NearSite,
    damage,
    nothing_staged,
    without_rsync,
)
from serving import ROOT

from dgpp.checkpoint.served_files import INDEX
from dgpp.cluster import sync, transfer
from dgpp.cluster.record import start_ticks

LONG_TAR = pytest.param("tar", marks=pytest.mark.long)


@pytest.fixture
def site(hub, tmp_path, monkeypatch, capsys):
    return NearSite(hub, tmp_path, monkeypatch, capsys)


def test_fetched_once_and_whole_everywhere(site, hub):
    status, said = site.fetch(MODEL)
    assert status == 0, said
    wanted, commit = site.wanted(), hub.commit(MODEL)
    assert "original/model.safetensors" not in wanted
    for home in (site.home, *site.peers):
        assert site.snapshot(home) == wanted
        assert site.main(home) == commit
        assert nothing_staged(home)
    # Once from the hub, and only what is served.
    assert hub.sent == {name: len(data) for name, data in wanted.items()}
    assert "rank 1 at 127.0.0.2: has org/tiny-model whole" in said
    assert not list(site.home.rglob("oops"))
    # Again: nothing is asked for, nothing is sent.
    status, said = site.fetch(MODEL)
    assert status == 0, said
    assert "sending" not in said
    assert sum(hub.sent.values()) == sum(map(len, wanted.values()))
    site.reach_hub(hub.url, offline=True)
    status, said = site.fetch(MODEL, "--verify-only")
    assert status == 0, said
    assert "whole on 3 nodes, every byte read" in said


def test_damage_is_named_and_mended_here_and_there(site, hub):
    assert site.fetch(MODEL)[0] == 0
    shard = LAST_SHARD
    commit = hub.commit(MODEL)
    damage(site.cache(site.peers[0]) / "snapshots" / commit / shard)
    (site.cache(site.peers[1]) / "snapshots" / commit / "config.json").unlink()
    status, said = site.fetch(MODEL, "--verify-only")
    assert status == 1
    assert f"rank 1 at 127.0.0.2: {shard} is damaged" in said
    assert "rank 2 at 127.0.0.3: config.json is not in its place" in said
    assert "`dgpp fetch org/tiny-model` mends it" in said
    status, said = site.fetch(MODEL, "--sync-only", "--verify")
    assert status == 0, said
    assert f"rank 1 at 127.0.0.2: {shard} is damaged there and is sent again" in said
    assert "sending 1 files" in said
    assert all(site.snapshot(home) == site.wanted() for home in site.peers)
    damage(site.cache(site.home) / "snapshots" / commit / shard)
    status, said = site.fetch(MODEL, "--sync-only", "--verify")
    assert status == 1
    assert f"{shard} is damaged; `dgpp fetch org/tiny-model` mends it" in said
    status, said = site.fetch(MODEL, "--verify")
    assert status == 0, said
    assert f"damaged and fetched again: {shard}" in said
    assert site.snapshot(site.home) == site.wanted()


def test_an_interrupted_download_goes_on(site, hub, monkeypatch):
    from huggingface_hub import file_download

    # It tries again by itself, more than once.
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    hub.cut = {SHARD: [200_000] + [0] * 30}
    status, said = site.fetch(MODEL, "--local-only")
    assert status == 1
    assert "the same command goes on from there" in said
    assert site.main(site.home) == ""
    hub.cut.clear()
    left = site.cache(site.home) / "blobs" / f"{'0' * 64}.12345678.incomplete"
    left.write_bytes(b"of a process that was killed")
    os.utime(left, (1, 1))
    status, said = site.fetch(MODEL, "--local-only")
    assert status == 0, said
    assert "fetching 300.0 kB of 8 files" in said
    assert hub.sent[LAST_SHARD] == len(site.wanted()[LAST_SHARD])
    assert not left.exists()
    assert site.snapshot(site.home) == site.wanted()
    assert not site.cache(site.peers[0]).exists()


def test_a_hub_that_sends_damaged_bytes(site, hub):
    shard = SHARD
    hub.spoil = {shard: 1}
    status, said = site.fetch(MODEL, "--local-only")
    assert status == 0, said
    assert f"damaged and fetched again: {shard}" in said
    assert site.snapshot(site.home) == site.wanted()
    shutil.rmtree(site.cache(site.home))
    hub.spoil = {shard: 5}
    status, said = site.fetch(MODEL)
    assert status == 1
    assert f"{shard} is damaged" in said
    assert site.main(site.home) == ""
    assert not site.cache(site.peers[0]).exists()


def test_revisions_and_which_one_servers_take(site, hub):
    hub.models[MODEL]["v2"] = model_files(2) | {"tokenizer.json": model_files()["tokenizer.json"]}
    assert site.fetch(MODEL)[0] == 0
    hub.sent.clear()
    status, said = site.fetch(MODEL, "--revision", "v2")
    assert status == 0, said
    assert "--activate makes them take it" in said
    assert "tokenizer.json" not in hub.sent
    main, second = hub.commit(MODEL), hub.commit(MODEL, "v2")
    for home in (site.home, *site.peers):
        assert site.main(home) == main
        assert site.snapshot(home, "v2") == site.wanted("v2")
        assert site.snapshot(home) == site.wanted()
    site.reach_hub(hub.url, offline=True)
    status, said = site.fetch(MODEL, "--revision", second, "--activate")
    assert status == 0, said
    assert {site.main(home) for home in (site.home, *site.peers)} == {second}
    status, said = site.fetch(MODEL, "--verify-only", "--revision", second)
    assert status == 0, said
    (site.cache(site.peers[1]) / "refs/main").write_text(main)
    status, said = site.fetch(MODEL, "--verify-only", "--revision", second)
    assert status == 1
    assert f"rank 2 at 127.0.0.3: refs/main names {main} there" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["org/none"], "knows no model org/none: check its name; a private one needs HF_TOKEN"),
        (["org/closed"], "org/closed is gated: accept its terms at http://127.0.0.1"),
        (["org/empty"], "org/empty: no config.json with *.safetensors at main"),
        ([MODEL, "--revision", "v9"], "org/tiny-model has no revision v9"),
        ([MODEL, "--revision", "../../x"], "--revision: '../../x' is none"),
        (["../../etc/x"], "MODEL: '../../etc/x' is no name of a model on the hub"),
        (["org/a..b"], "MODEL: 'org/a..b' is no name of a model"),
        (["tiny; rm -rf ~/x"], "is no name of a model on the hub"),
        (["gpt2"], "expected ORG/NAME"),
        ([], "MODEL: expected ORG/NAME"),
        ([MODEL, "--sync-only"], "has no whole main of it, and nothing is downloaded"),
        ([MODEL, "--sync-only", "--local-only"], "nothing would be done"),
    ],
)
def test_what_cannot_be_fetched_is_named_and_nothing_is_left(site, hub, words, message):
    hub.models["org/closed"] = {"main": model_files()}
    hub.models["org/empty"] = {"main": {"README.md": b"words"}}
    hub.gated.add("org/closed")
    status, said = site.fetch(*words)
    assert status == 1
    assert message in said
    assert hub.sent == {}
    assert not list(site.home.rglob("snapshots"))
    assert not list(site.peers[0].rglob("snapshots"))


def test_offline_and_a_hub_that_is_not_there(site):
    site.reach_hub("http://127.0.0.1:9", offline=True)
    status, said = site.fetch(MODEL)
    assert status == 1
    assert "and HF_HUB_OFFLINE is set: run `dgpp fetch org/tiny-model` where the hub" in said
    site.reach_hub("http://127.0.0.1:9")
    status, said = site.fetch(MODEL)
    assert status == 1
    assert "http://127.0.0.1:9 is not reached" in said
    assert "HTTPS_PROXY" in said


def test_without_rsync_tar_does_it_and_goes_on(site, tmp_path, monkeypatch):
    assert site.fetch(MODEL, "--local-only")[0] == 0
    shard = SHARD
    place = site.staging(site.peers[0])
    (place / shard).write_bytes(site.wanted()[shard])
    (place / LAST_SHARD).write_bytes(b"part of it")
    monkeypatch.setenv("PATH", without_rsync(tmp_path / "bin"))
    status, said = site.fetch(MODEL, "--sync-only")
    assert status == 0, said
    files = len(site.wanted())
    assert f"rank 1 at 127.0.0.2: sending {files - 1} files" in said
    assert f"rank 2 at 127.0.0.3: sending {files} files" in said
    for home in site.peers:
        assert site.snapshot(home) == site.wanted()
        assert nothing_staged(home)


@pytest.mark.parametrize("tool", ["rsync", LONG_TAR])
def test_what_arrived_damaged_is_sent_again(site, tmp_path, monkeypatch, tool):
    assert site.fetch(MODEL, "--local-only")[0] == 0
    shard = SHARD
    place = site.staging(site.peers[0])
    data = site.wanted()[shard]
    (place / shard).write_bytes(data[::-1])
    if tool == "tar":
        monkeypatch.setenv("PATH", without_rsync(tmp_path / "bin"))
    status, said = site.fetch(MODEL, "--sync-only")
    assert status == 0, said
    assert f"rank 1 at 127.0.0.2: {shard} arrived damaged" in said
    assert site.snapshot(site.peers[0]) == site.wanted()


@pytest.fixture
def hanging(tmp_path):
    """An ssh that never comes to an end, and the processes of it that there are."""
    program, pids = tmp_path / "ssh that hangs", tmp_path / "pids"
    # It has gone when it is told to end, as ssh is.
    program.write_text(f"#!/bin/sh\necho $$ >>{shlex.quote(str(pids))}\nexec /bin/sleep 60\n")
    program.chmod(0o755)

    def running() -> list[str]:
        begun = pids.read_text().split() if pids.exists() else []
        return [pid for pid in begun if start_ticks(int(pid))]

    return str(program), running


def wait_until(true, within_s: float = 20) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("tool", ["rsync", LONG_TAR])
def test_a_signal_ends_transfers_and_the_next_try_goes_on(
    site, tmp_path, monkeypatch, tool, number, hanging
):
    assert site.fetch(MODEL, "--local-only")[0] == 0
    if tool == "tar":
        monkeypatch.setenv("PATH", without_rsync(tmp_path / "bin"))
    at_once, (program, running) = NearNode.ssh_program, hanging
    monkeypatch.setattr(NearNode, "ssh_program", program)

    def stop():
        wait_until(lambda: len(running()) == 2)
        os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop)
    stopper.start()
    status, said = site.fetch(MODEL, "--sync-only")
    stopper.join()
    assert status == 128 + number, said
    assert f"stopped by {number.name}; nothing is sent any more; the same command" in said
    assert running() == []
    monkeypatch.setattr(NearNode, "ssh_program", at_once)
    status, said = site.fetch(MODEL, "--sync-only")
    assert status == 0, said
    assert site.snapshot(site.peers[1]) == site.wanted()


def test_threads_that_go_on_do_not_keep_a_command_that_was_stopped():
    """As those of a download whose hub says nothing."""
    code = (
        "import time; from concurrent.futures import ThreadPoolExecutor\n"
        "from dgpp.cli.main import leave; from dgpp.cluster import interruption\n"
        "interruption.LEFT_S = 0.1; found = interruption.Interruption('one moment')\n"
        "found.left = 'half of it is here'\n"
        "with interruption.raised(found, leave=leave), ThreadPoolExecutor(1) as pool:\n"
        "    pool.submit(time.sleep, 60)\n"
        "    print('begun', flush=True); time.sleep(60)"
    )
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    stuck = [subprocess.Popen([sys.executable, "-c", code], env=environ, **pipes) for _ in numbers]
    for process, number in zip(stuck, numbers, strict=True):
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.communicate(timeout=20)[1] == (
            f"stopping: one moment\ndgpp: error: stopped by {number.name}; half of it is here\n"
        )
        assert process.returncode == 128 + number


@pytest.mark.parametrize("tool", ["rsync", "tar"])
def test_no_sender_outlives_a_fetch_that_is_killed(tmp_path, hanging, tool):
    program, running = hanging
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    code = (
        "import sys; from pathlib import Path\n"
        "from dgpp.cluster.node import RemoteNode; from dgpp.cluster.transfer import Parcel, send\n"
        "node = RemoteNode(1, 'there', ['dgpp'], ssh=[sys.argv[1]])\n"
        "send(node, Parcel(Path(sys.argv[2]), ('file',), '/there'), [sys.argv[3]])"
    )
    command = [sys.executable, "-c", code, program, str(tmp_path), tool]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}) as sender:
        wait_until(running)
        children = Path(f"/proc/{sender.pid}/task/{sender.pid}/children").read_text().split()
        sender.kill()
    assert len(children) == {"rsync": 1, "tar": 2}[tool]
    wait_until(lambda: not any(start_ticks(int(pid)) for pid in children), 5)
    wait_until(lambda: not running(), 5)


def test_a_transfer_that_begins_while_all_are_ended_is_ended_too():
    class Peer:
        node = SimpleNamespace(close=lambda: None)

    begun, ended = time.monotonic(), []

    def late(peer):
        time.sleep(0.3)
        with transfer.running(["sleep", "30"]) as process:
            ended.append(process.wait())

    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        sync.each([Peer(), Peer()], late)
    assert time.monotonic() - begun < 10
    assert ended == [-signal.SIGTERM] * 2


def test_how_far_a_transfer_is_is_told(site, monkeypatch):
    told = []
    real = sync.send
    monkeypatch.setattr(
        sync, "send", lambda *given: real(*given[:3], lambda n: (told.append(n), given[3](n)))
    )
    assert site.fetch(MODEL)[0] == 0
    if shutil.which("rsync"):
        assert max(told) == sum(map(len, site.wanted().values()))


def test_a_folder_goes_to_the_same_place_below_every_home(site):
    folder = site.home / "models" / "my model"
    folder.mkdir(parents=True)
    for name, data in model_files().items():
        if "/" not in name:
            (folder / name).write_bytes(data)
    status, said = site.fetch(str(folder))
    assert status == 0, said
    for home in site.peers:
        there = home / "models" / "my model"
        assert {file.name for file in there.iterdir()} == set(site.wanted())
        assert all((there / name).read_bytes() == data for name, data in site.wanted().items())
        assert nothing_staged(home)
    damage(site.peers[1] / "models" / "my model" / LAST_SHARD)
    status, said = site.fetch("~/models/my model", "--verify-only")
    assert status == 1
    assert f"rank 2 at 127.0.0.3: {LAST_SHARD} is damaged" in said
    (folder / SHARD).unlink()
    status, said = site.fetch(str(folder))
    assert status == 1
    assert f"{SHARD} is missing; copy the whole model there once more" in said


@pytest.mark.parametrize(
    ("engine", "lacks", "missing"),
    [
        ({"backend": "scripted"}, ["config.json", SHARD, LAST_SHARD, INDEX], ""),
        ({"backend": "scripted"}, [SHARD, LAST_SHARD, INDEX], ""),
        ({"backend": "cpu", "load": "dummy"}, [SHARD, LAST_SHARD, INDEX], ""),
        ({"backend": "cpu", "load": "dummy"}, ["config.json"], "config.json"),
        ({"backend": "cpu"}, [SHARD, LAST_SHARD, INDEX], "*.safetensors"),
        ({"backend": "cpu"}, ["config.json"], "config.json"),
        ({"backend": "scripted"}, [SHARD], ""),
        ({"backend": "cpu"}, [SHARD], SHARD),
    ],
)
def test_a_folder_may_lack_what_its_server_does_not_read(site, engine, lacks, missing):
    folder = site.home / "a model"
    folder.mkdir()
    for name, data in model_files().items():
        if "/" not in name and name not in lacks:
            (folder / name).write_bytes(data)
    config = site.home / "two nodes.json"
    config.write_text(json.dumps({"model": str(folder), "world_size": 2, "engine": engine}))
    status, said = site.fetch("--config", str(config))
    assert status == (1 if missing else 0), said
    if missing:
        assert f"{missing} is missing; copy the whole model there once more" in said
    else:
        there = {file.name for file in (site.peers[0] / "a model").iterdir()}
        assert there == set(site.wanted()).difference(lacks)


def test_a_file_that_is_a_model_is_not_fetched(site):
    (site.home / "tiny.json").write_text("{}")
    config = site.home / "one.json"
    engine = {"backend": "cpu", "load": "dummy"}
    config.write_text(json.dumps({"model": str(site.home / "tiny.json"), "engine": engine}))
    assert site.fetch("--config", str(config)) == (0, "")


def test_all_models_of_a_deployment_and_its_nodes_alone(site, hub):
    hub.models["org/drafts"] = {"main": model_files(3, shards=1, size=5000)}
    config = site.home / "two nodes.json"
    config.write_text(
        '{"model": "org/tiny-model", "world_size": 2, "engine": {"decode_graph": true, '
        '"dflash_model": "org/drafts"}}'
    )
    status, said = site.fetch("--config", str(config))
    assert status == 0, said
    caches = [folder.name for folder in site.cache(site.peers[0]).parent.iterdir()]
    assert {"models--org--drafts", "models--org--tiny-model"} <= set(caches)
    assert not site.cache(site.peers[1]).exists()
    assert "snapshots" in said.splitlines()[0]


def test_the_cache_that_the_site_names_for_each_node(site, tmp_path):
    disks = {host: tmp_path / f"disk of {host}" for host in site.homes}
    places = ", ".join(f'"{host}": {{"HF_HUB_CACHE": "{disks[host]}"}}' for host in disks)
    (site.home / ".env").write_text(f"HF_HOME={tmp_path}/all\nDGPP_NODE_OVERRIDES='{{{places}}}'\n")
    status, said = site.fetch(MODEL)
    assert status == 0, said
    name = "models--org--tiny-model"
    assert (tmp_path / "all" / "hub" / name / "refs/main").exists()
    assert all((disk / name / "refs/main").exists() for disk in disks.values())


@pytest.fixture
def small_disk(site, request):
    """The cache of the first peer, or of who is asked for, is a disk of 2 MiB."""
    home = getattr(request, "param", "peer")
    place = site.cache(site.home if home == "here" else site.peers[0]).parent
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    # Lazily: what was reading there may not have let go yet.
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_peer_without_room_is_named_before_a_byte_is_fetched(site, hub, small_disk, monkeypatch):
    status, said = site.fetch(MODEL)
    assert status == 1
    assert "rank 1 at 127.0.0.2: 601.2 kB are to be written at" in said
    assert "make room there, or give that node another HF_HUB_CACHE" in said
    assert hub.sent == {}
    assert list(small_disk.iterdir()) == []
    # What fits when it is measured may not when it comes.
    (small_disk / "other data").write_bytes(b"x" * 1_700_000)
    monkeypatch.setattr("dgpp.cluster.sync.require_room", lambda *told: None)
    monkeypatch.setattr("dgpp.cluster.fetch.require_room", lambda *told: None)
    status, said = site.fetch(MODEL)
    assert status == 1
    assert "rank 1 at 127.0.0.2: its disk became full, what was sent is deleted again" in said
    assert not [
        file for file in small_disk.rglob("*") if file.is_file() and file.name != "other data"
    ]
    assert site.snapshot(site.peers[1]) == site.wanted()
    assert (site.main(site.home), site.main(site.peers[1])) == (hub.commit(MODEL), "")


@pytest.mark.filterwarnings("ignore:Not enough free disk space:UserWarning")
@pytest.mark.parametrize("small_disk", ["here"], indirect=True)
def test_a_disk_that_becomes_full_here_leaves_what_is_whole(site, small_disk, monkeypatch):
    status, said = site.fetch(MODEL)
    assert status == 1
    assert "org/tiny-model: 601.2 kB are to be written at" in said
    assert "make room, or name another with HF_HUB_CACHE" in said
    other = small_disk / "other data"
    other.write_bytes(b"x" * 1_700_000)
    monkeypatch.setattr("dgpp.cluster.fetch.LEAST_FREE", -(1 << 30))
    status, said = site.fetch(MODEL, "--local-only")
    assert status == 1
    assert "the disk is full: make room" in said
    assert site.main(site.home) == ""
    assert not list(small_disk.rglob("*.incomplete"))
    other.unlink()
    status, said = site.fetch(MODEL, "--local-only")
    assert status == 0, said
    assert site.snapshot(site.home) == site.wanted()
