"""Real ssh servers on loopback, each with a home of its own, for tests of the launcher."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from serving import free_ports

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


class Machines:
    """`count` addresses 127.0.0.2, …, each with its sshd; `config` is for ssh's -F.

    Commands of a machine run with HOME at `homes[host]`, which holds nothing at first.
    """

    def __init__(self, folder: Path, count: int = 1) -> None:
        if SSHD is None:
            pytest.skip("needs sshd (Debian's openssh-server)")
        self.folder = folder
        self.hosts = [f"127.0.0.{number + 2}" for number in range(count)]
        self.homes = {host: folder / f"home-{host}" for host in self.hosts}
        self.config = folder / "ssh_config"
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir()
        for key in ("user", "host"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(command, check=True)
        self._ports = dict(zip(self.hosts, free_ports(count), strict=True))
        lines = [f'UserKnownHostsFile "{folder}/known"', "StrictHostKeyChecking accept-new"]
        for host, port in self._ports.items():
            lines += [f"Host {host}", f"Port {port}", f'IdentityFile "{folder}/user"']
            lines += ["IdentitiesOnly yes"]
        self.config.write_text("\n".join(lines) + "\n")
        for host in self.hosts:
            self.start(host)

    def start(self, host: str) -> None:
        """Bring the machine's ssh server up."""
        home = self.homes[host]
        home.mkdir(exist_ok=True)
        run = self.folder / f"run-{host}"
        lines = ["#!/bin/sh", f"export HOME={shlex.quote(str(home))}", 'cd "$HOME"']
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
        with (self.folder / f"log-{host}").open("ab") as log:
            self._servers[host] = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(config)], stdout=log, stderr=log
            )
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex((host, self._ports[host])) == 0:
                    return
            time.sleep(0.02)
        pytest.fail((self.folder / f"log-{host}").read_text())

    def stop(self, host: str) -> None:
        """The machine is not reached any more."""
        server = self._servers.pop(host)
        server.terminate()
        server.wait(10)

    def close(self) -> None:
        for host in list(self._servers):
            self.stop(host)
