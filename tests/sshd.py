"""Real ssh servers, each with a home of its own, for tests of the launcher."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from serving import free_ports

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


class Machines:
    """`count` addresses 127.0.0.2, …, each with its sshd; `config` is for ssh's -F.

    Commands of a machine run with HOME at `homes[host]`, which holds nothing at first. `first` is
    the address of the machine that tests start commands on, by putting `here` before them.
    """

    first = "127.0.0.1"
    here: tuple[str, ...] = ()

    def __init__(self, folder: Path, count: int = 1) -> None:
        if SSHD is None:
            pytest.skip("needs sshd (Debian's openssh-server)")
        self.folder = folder
        self._ports = self._addresses(count)
        self.hosts = list(self._ports)
        self.homes = {host: folder / f"home-{host}" for host in self.hosts}
        self.config = folder / "ssh_config"
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir()
        for key in ("user", "host"):
            self.make_key(key)
        self.configure()
        for host in self.hosts:
            self.start(host)

    def _addresses(self, count: int) -> dict[str, int]:
        """Hosts with the ports of their ssh servers."""
        ports = free_ports(count)
        return {f"127.0.0.{number}": port for number, port in enumerate(ports, start=2)}

    def _inside(self, host: str) -> tuple[str, ...]:
        """What a command is given to, to run on the machine `host`."""
        return ()

    def make_key(self, name: str) -> None:
        """A fresh pair, in place of the one that had the name."""
        file = self.folder / name
        file.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
        subprocess.run(command, check=True)

    def configure(self, user: str = "user", strict: str = "accept-new") -> None:
        """Log in with the key `user`; `strict` is ssh's StrictHostKeyChecking."""
        lines = [f'UserKnownHostsFile "{self.folder}/known"', f"StrictHostKeyChecking {strict}"]
        for host, port in self._ports.items():
            lines += [f"Host {host}", f"Port {port}", f'IdentityFile "{self.folder}/{user}"']
            lines += ["IdentitiesOnly yes"]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self, host: str, banner: str = "") -> None:
        """Bring the machine's ssh server up; its shell says `banner` first."""
        home = self.homes[host]
        home.mkdir(exist_ok=True)
        run, quoted = self.folder / f"run-{host}", shlex.quote(str(home))
        (home / "tmp").mkdir(exist_ok=True)
        lines = ["#!/bin/sh", f"export HOME={quoted} TMPDIR={quoted}/tmp", 'cd "$HOME"']
        if banner:
            lines += [f"echo {banner}"]
        run.write_text("\n".join([*lines, 'exec sh -c "$SSH_ORIGINAL_COMMAND"', ""]))
        run.chmod(0o755)
        config = self.folder / f"sshd-{host}"
        config.write_text(
            f"ListenAddress {host}\nPort {self._ports[host]}\nPidFile none\n"
            f'HostKey "{self.folder}/host"\nAuthorizedKeysFile "{self.folder}/user.pub"\n'
            f"StrictModes no\nUsePAM no\n"
            f"ForceCommand {shlex.quote(str(run))}\nPermitRootLogin prohibit-password\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        said = self.folder / f"log-{host}"
        with said.open("wb") as log:
            server = [*self._inside(host), str(SSHD), "-D", "-e", "-f", str(config)]
            self._servers[host] = subprocess.Popen(server, stdout=log, stderr=log)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if "Server listening on" in said.read_text():
                return
            time.sleep(0.02)
        pytest.fail(said.read_text())

    def stop(self, host: str) -> None:
        """The machine is not reached any more."""
        server = self._servers.pop(host)
        server.terminate()
        server.wait(10)

    def close(self) -> None:
        for host in list(self._servers):
            self.stop(host)
