"""A node as the launcher sees it: this machine, or one behind the system's own ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dgpp.cluster.agent import answer
from dgpp.cluster.errors import ClusterError, UnreachableError
from dgpp.cluster.messages import REQUEST_BYTES, Answer, Request
from dgpp.config.settings import is_remote_directory

CONNECT_S = 5
ANSWER_S = 25.0
"""The longest that a node may take to answer, its connection included."""
SSH_FAILED = 255
NOT_FOUND = (126, 127)

_REMEDIES = (
    ("Permission denied", "let this user's key in there (ssh-copy-id), or name DGPP_SSH_USER"),
    ("Host key verification failed", "its host key is not known, or has changed: ssh there once"),
    ("Could not resolve hostname", "no such name; see DGPP_NODES and ~/.ssh/config"),
    ("Connection refused", "its ssh server does not run"),
    ("Connection timed out", "it is off, or a firewall is between"),
    ("No route to host", "it is off, or its network is down"),
)


class Node:
    """Rank `rank` on `host`. `program` is dgpp's command there. Raises UnreachableError where it
    cannot be asked, ClusterError where it answers with an error."""

    def __init__(self, rank: int, host: str, program: Sequence[str]) -> None:
        self.rank = rank
        self.host = host
        self.program = tuple(program)

    @property
    def name(self) -> str:
        return f"rank {self.rank} at {self.host}"

    def ask(self, request: Request, timeout_s: float = ANSWER_S) -> Answer:
        found = self.reach(request, timeout_s)
        if found.error:
            raise ClusterError(f"{self.name}: {found.error}")
        return found

    def reach(self, request: Request, timeout_s: float) -> Answer:
        """The node's answer, an error of its own included."""
        raise NotImplementedError


class LocalNode(Node):
    """This machine."""

    def reach(self, request: Request, timeout_s: float) -> Answer:
        return answer(request)


class RemoteNode(Node):
    """A machine that `ssh` finds by the user's own configuration, keys and agent.

    What is sent on is a request on standard input; the command line holds nothing of it, and each
    of its words is quoted.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        program: Sequence[str],
        *,
        user: str = "",
        ssh: Sequence[str] = ("ssh",),
    ) -> None:
        super().__init__(rank, host, program)
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
        target = f"{user}@{host}" if user else host
        self._command = [*ssh, *options, "--", target, remote_line([*self.program, "agent"])]

    def reach(self, request: Request, timeout_s: float) -> Answer:
        data = msgspec.json.encode(request)
        if len(data) > REQUEST_BYTES:
            raise ClusterError(f"{self.name}: a request of {len(data)} bytes is too large")
        try:
            done = subprocess.run(
                self._command, input=data, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(
                f"{self.name}: no answer within {timeout_s:g} s; is the machine well?"
            ) from None
        except OSError as error:
            raise UnreachableError(f"{self.name}: ssh: {error.strerror}") from error
        if done.returncode == 0:
            try:
                return msgspec.json.decode(done.stdout, type=Answer)
            except msgspec.DecodeError:
                text = done.stdout[:200].decode(errors="replace")
                message = "its shell prints something of its own, or another dgpp is there"
                raise UnreachableError(f"{self.name}: {message}: {text!r}") from None
        raise self._failure(done.returncode, done.stderr.decode(errors="replace"))

    def _failure(self, status: int, said: str) -> UnreachableError:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = lines[-1] if lines else f"status {status}"
        remedy = next((remedy for sign, remedy in _REMEDIES if sign in said), "")
        if not remedy and status in NOT_FOUND:
            remedy = f"no {self.program[0]} there: install that dgpp on every node, or name --bin"
        if not remedy and status != SSH_FAILED:
            remedy = f"`{shlex.join(self.program)} agent` failed there"
        return UnreachableError(f"{self.name}: {last}" + (f" ({remedy})" if remedy else ""))


def remote_line(words: Sequence[str]) -> str:
    """One line for a shell: every word as it is, but for a `~/` before a plain path, which is that
    shell's own to read."""
    plain = (is_remote_directory(word) and word.startswith("~/") for word in words)
    return " ".join(
        word if home else shlex.quote(word) for word, home in zip(words, plain, strict=True)
    )


def forwarded(environ: Mapping[str, str], site_keys: Sequence[str]) -> dict[str, str]:
    """What of `environ` goes along to the ranks: switches of ours that no site setting covers."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith("DGPP_") and name not in site_keys and name != "DGPP_ENV_FILE"
    }


def ask_all(nodes: Sequence[Node], request: Mapping[int, Request]) -> dict[int, Answer]:
    """Ask every node at once, by rank. Raises the first error, in the order of ranks."""
    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        asked = [(node.rank, pool.submit(node.ask, request[node.rank])) for node in nodes]
        return {rank: waiting.result() for rank, waiting in asked}


def own_program() -> list[str]:
    """How this very dgpp is called, here and at the same path elsewhere."""
    import sys

    program = [sys.executable, "-m", "dgpp"]
    path = os.environ.get("PYTHONPATH")
    return ["env", f"PYTHONPATH={path}", *program] if path else program
