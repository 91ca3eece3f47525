"""A site of rank 0 and two peers whose Hugging Face caches begin empty, and a hub to fetch from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import ClassVar

from fake_hub import FakeHub, model_files
from serving import ROOT
from sshd import Machines

from dgpp.checkpoint.served_files import served_files
from dgpp.cli import main as cli
from dgpp.cluster import deployment, interruption
from dgpp.cluster.agent import answer_bytes
from dgpp.cluster.messages import Answer
from dgpp.cluster.node import LocalNode, RemoteNode

MODEL = "org/tiny-model"
SHARD = "model-00001-of-00002.safetensors"
LAST_SHARD = "model-00002-of-00002.safetensors"
HOSTS = ["127.0.0.2", "127.0.0.3"]


class Site:
    """`homes` are the peers' home directories by their hosts."""

    def __init__(self, hub: FakeHub, folder: Path, homes: dict[str, Path]) -> None:
        self.hub, self.homes = hub, homes
        self.home = folder / "my home; $(touch oops)"
        for home in (self.home, *homes.values()):
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
        hub.models = {MODEL: {"main": model_files()}}
        hub.gated, hub.cut, hub.spoil, hub.sent = set(), {}, {}, {}
        self.told = {
            "HOME": str(self.home),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DGPP_NODES": " ".join(["127.0.0.1", *homes]),
        }

    @property
    def peers(self) -> list[Path]:
        return list(self.homes.values())

    def cache(self, home: Path) -> Path:
        return home / ".cache/huggingface/hub" / f"models--{MODEL.replace('/', '--')}"

    def snapshot(self, home: Path, revision: str = "main") -> dict[str, bytes]:
        folder = self.cache(home) / "snapshots" / self.hub.commit(MODEL, revision)
        return {file.name: file.read_bytes() for file in folder.iterdir()}

    def main(self, home: Path) -> str:
        file = self.cache(home) / "refs/main"
        return file.read_text() if file.exists() else ""

    def wanted(self, revision: str = "main") -> dict[str, bytes]:
        files = self.hub.models[MODEL][revision]
        return {name: files[name] for name in served_files(files)}

    def staging(self, home: Path) -> Path:
        place = self.cache(home) / ".dgpp-incoming" / self.hub.commit(MODEL)
        place.mkdir(parents=True)
        return place


def is_ours(variable: str) -> bool:
    return variable.startswith(("DGPP_", "HF_", "XDG_"))


class FarSite(Site):
    """Its nodes are behind real ssh servers, and dgpp is a process of its own."""

    def __init__(self, machines: Machines, hub: FakeHub, folder: Path) -> None:
        super().__init__(hub, folder, machines.homes)
        self.machines = machines

    def run(self, *words: str, **environment: str) -> tuple[int, str]:
        rest = {name: value for name, value in os.environ.items() if not is_ours(name)}
        done = subprocess.run(
            [sys.executable, "-m", "dgpp", *words, "--ssh-config", str(self.machines.config)],
            env=rest | self.told | {"PYTHONPATH": str(ROOT)} | environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


class NearNode(RemoteNode):
    """A peer in this process, with a home of its own; files are sent to it past an ssh that runs
    here what it is given."""

    homes: ClassVar[dict[str, Path]] = {}
    ssh_program = ""
    one_home = Lock()

    def __init__(self, rank, host, program, *, user="", ssh=()) -> None:
        super().__init__(rank, host, program, user=user, ssh=(self.ssh_program,))

    def reach(self, request, timeout_s):
        import msgspec

        with self.one_home:
            own, os.environ["HOME"] = os.environ["HOME"], str(self.homes[self.host])
            try:
                said = answer_bytes(msgspec.json.encode(request))
            finally:
                os.environ["HOME"] = own
        return msgspec.json.decode(said, type=Answer)


class HereNode(LocalNode):
    """This machine, not asked while a peer's home is this process's."""

    def reach(self, request, timeout_s):
        with NearNode.one_home:
            return super().reach(request, timeout_s)


class NearSite(Site):
    """The same without processes but rsync and tar."""

    def __init__(self, hub: FakeHub, folder: Path, monkeypatch, capsys) -> None:
        super().__init__(hub, folder, {host: folder / f"home of {host}" for host in HOSTS})
        self._monkeypatch, self._capsys = monkeypatch, capsys
        for name in filter(is_ours, list(os.environ)):
            monkeypatch.delenv(name)
        for name, value in self.told.items():
            monkeypatch.setenv(name, value)
        (self.home / ".env").write_text("")
        monkeypatch.chdir(self.home)
        ssh = folder / "ssh"
        ssh.write_text(
            "#!/bin/sh\nwhile :; do case $1 in *127.0.0.[23]) break ;; esac; shift; done\n"
            'shift\nexec sh -c "$*"\n'
        )
        ssh.chmod(0o755)
        # It would end the tests as well.
        monkeypatch.setattr(interruption, "LEFT_S", 600)
        monkeypatch.setattr(NearNode, "homes", self.homes)
        monkeypatch.setattr(NearNode, "ssh_program", str(ssh))
        monkeypatch.setattr(deployment, "RemoteNode", NearNode)
        monkeypatch.setattr(deployment, "LocalNode", HereNode)
        self.reach_hub(hub.url)

    def reach_hub(self, url: str, *, offline: bool = False) -> None:
        """What the variables of huggingface_hub say when it is loaded."""
        from huggingface_hub import constants

        self._monkeypatch.setattr(constants, "ENDPOINT", url)
        self._monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        self._monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    def fetch(self, *words: str) -> tuple[int, str]:
        status = cli.main(["fetch", *words])
        said = self._capsys.readouterr()
        return status, said.out + said.err


def nothing_staged(home: Path) -> bool:
    return not [p for p in home.rglob("*") if ".dgpp-incoming" in p.parts or p.suffix == ".new"]


def damage(file: Path) -> None:
    """One byte is another; size and time stay as they were."""
    state = file.stat()
    data = bytearray(file.read_bytes())
    data[100] ^= 4
    file.write_bytes(data)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def without_rsync(folder: Path) -> str:
    """A PATH with everything but rsync."""
    folder.mkdir()
    for name in ("ssh", "tar", "env", "git", "sh"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return str(folder)
