"""One deployment over its nodes: who they are, and where its files lie."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import msgspec

from dgpp.cluster.node import LocalNode, Node, RemoteNode, forwarded, own_program
from dgpp.cluster.place import Place, deployment_id
from dgpp.config.resolve import to_document
from dgpp.config.settings import Settings
from dgpp.config.site import SiteSettings

LOCALHOST = "localhost"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes are reached: `program` is dgpp's command on every node (empty: this very one),
    `ssh_config` a file for ssh's -F."""

    program: str = ""
    ssh_config: str = ""

    @property
    def words(self) -> str:
        """The options that say so, for a shell, a space before each; empty where none does."""
        told = {
            "--bin": self.program,
            "--ssh-config": self.ssh_config and str(Path(self.ssh_config).absolute()),
        }
        return "".join(f" {flag} {shlex.quote(value)}" for flag, value in told.items() if value)


def _program(settings: Settings, access: Access) -> list[str]:
    if access.program:
        return [access.program]
    if settings.release:
        return [f"{settings.paths.release_dir}/{settings.release}/venv/bin/dgpp"]
    return own_program()


def reach(settings: Settings, access: Access) -> list[Node]:
    """The nodes of `settings` in the order of ranks; one where all ranks are on this machine."""
    program = _program(settings, access)
    ssh = ["ssh", "-F", access.ssh_config] if access.ssh_config else ["ssh"]
    nodes: list[Node] = []
    for rank, host in enumerate(settings.nodes):
        if rank == 0 or host == LOCALHOST:
            nodes.append(LocalNode(rank, host, program))
        else:
            nodes.append(RemoteNode(rank, host, program, user=settings.ssh_user, ssh=ssh))
    return nodes if set(settings.nodes) != {LOCALHOST} else nodes[:1]


class Deployment:
    """`settings` of the file `config`, as ranks on `nodes` run it.

    Rank 0 is on this machine. Where all ranks are, one process starts them all. `words` follow the
    name of another command that is to work on it, for a shell; a `usual` one need not be named.
    """

    def __init__(
        self, config: Path, settings: Settings, access: Access, *, usual: bool = False
    ) -> None:
        self.words = ("" if usual else f" {shlex.quote(str(config))}") + access.words
        self.config = config.expanduser().resolve()
        self.settings = settings
        paths = settings.paths
        self.place = Place(paths.log_dir, paths.stage_dir, deployment_id(config))
        self.apart = set(settings.nodes) != {LOCALHOST}
        self.nodes = reach(settings, access)

    @property
    def document(self) -> str:
        """The settings as each rank is given them: all that the site says is in there."""
        return msgspec.json.encode(to_document(self.settings)).decode()

    def environment(self, rank: int) -> dict[str, str]:
        """What a rank's process is told beside its settings."""
        return forwarded(os.environ, SiteSettings.__struct_fields__)

    def close(self) -> None:
        """Let go of the connections to its nodes."""
        for node in self.nodes:
            node.close()
