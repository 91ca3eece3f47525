"""Machines with a network of their own each: namespaces of this kernel, joined by a cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sshd import Machines

NFT = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class NetworkedMachines(Machines):
    """Two machines, 10.77.0.1 (`first`) and 10.77.0.2, the second with an ssh server at port 22."""

    first = "10.77.0.1"
    second = "10.77.0.2"

    def __init__(self, folder: Path) -> None:
        self._spaces = [f"dgpp-{os.getpid()}-{number}" for number in range(2)]
        self.here = ("ip", "netns", "exec", self._spaces[0])
        _require_namespaces(self._spaces[0])
        try:
            self._join()
            super().__init__(folder)
        except BaseException:
            self._delete()
            raise

    def _join(self) -> None:
        _ip("netns", "add", self._spaces[1])
        cable = [f"d{os.getpid()}{side}" for side in "ab"]
        _ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        addresses = (self.first, self.second)
        for space, end, address in zip(self._spaces, cable, addresses, strict=True):
            _ip("link", "set", end, "netns", space)
            _ip("-n", space, "link", "set", end, "name", "cable")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", space, "link", "set", device, "up")

    def _delete(self) -> None:
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def _addresses(self, count: int) -> dict[str, int]:
        return {self.second: 22}

    def _inside(self, host: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._spaces[1])

    def pull_cable(self) -> None:
        _ip("-n", self._spaces[1], "link", "set", "cable", "down")

    def drop(self, rule: str = "") -> None:
        """The first machine's firewall drops what comes in, or what of it `rule` says."""
        if NFT is None:
            pytest.skip("needs nft (Debian's nftables)")
        lines = (
            "add table inet fire",
            "add chain inet fire in { type filter hook input priority 0; }",
            f"add rule inet fire in iifname cable {rule} drop",
        )
        command = [*self.here, NFT, "-f", "-"]
        subprocess.run(command, input="\n".join(lines), text=True, check=True)

    def mend(self) -> None:
        """Cable and firewall as they were, and the ways between them found again."""
        if NFT is not None:
            subprocess.run([*self.here, NFT, "flush", "ruleset"], check=True)
        _ip("-n", self._spaces[1], "link", "set", "cable", "up")
        connect = f"import socket; socket.create_connection(({self.second!r}, 22), 1)"
        end = time.monotonic() + 10
        while subprocess.run(
            [*self.here, sys.executable, "-c", connect], capture_output=True, check=False
        ).returncode:
            assert time.monotonic() < end
            time.sleep(0.1)

    def close(self) -> None:
        super().close()
        self._delete()


def _require_namespaces(name: str) -> None:
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, for network namespaces")
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
