"""A node as the launcher sees it: this machine, or one behind the system's own ssh."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dgpp.cluster.agent import answer
from dgpp.cluster.clock_gap import ClockGap
from dgpp.cluster.connection import Connection, EndedError
from dgpp.cluster.errors import ClusterError, UnreachableError
from dgpp.cluster.installed import HAVE_PROGRAM
from dgpp.cluster.messages import (
    REQUEST_BYTES,
    Answer,
    Clear,
    Examine,
    List,
    Look,
    Operations,
    Request,
)
from dgpp.config.settings import is_remote_directory

CONNECT_S = 5
ALIVE_S = 3
ALIVE_TIMES = 3
"""A connection without a sign of life for so long, so many times, is given up."""
ANSWER_S = 25.0
"""The longest that a node may take to answer, its connection included."""
SSH_FAILED = 255
NOT_FOUND = (126, 127)

_REMEDIES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed: find out why, then forget the old one with ssh-keygen -R HOST",
    ),
    ("Permission denied", "let this user's key in there (ssh-copy-id), or name DGPP_SSH_USER"),
    (
        "Host key verification failed",
        "its host key is not known: ssh there once",
    ),
    ("Could not resolve hostname", "no such name; see DGPP_NODES and ~/.ssh/config"),
    ("Connection refused", "its ssh server does not run"),
    ("Connection timed out", "it is off, or a firewall is between"),
    ("No route to host", "it is off, or its network is down"),
    ("Network is unreachable", "this machine has no way there: see `ip route`"),
    ("not responding", "it went away: its power, its network"),
    ("bad configuration option", "mend that file, or name another with --ssh-config"),
    ("No module named", "install dgpp for that Python there, or name --bin"),
)


_EPILOGUE = re.compile(
    r"^Connection closed by UNKNOWN port |: terminating, \d+ bad configuration options?$"
)
"""What ssh ends with after it has said what is wrong."""
CAUSES = 2
"""As many lines before that are shown."""

_HARMLESS = (Look, Operations, Clear, List, Examine)
"""What may be asked twice where a connection broke over it."""


class Node:
    """Rank `rank` on `host`. `program` is dgpp's command there. Raises UnreachableError where it
    cannot be asked, ClusterError where it answers with an error."""

    def __init__(self, rank: int, host: str, program: Sequence[str]) -> None:
        self.rank = rank
        self.host = host
        self.program = tuple(program)
        self.clock_gap = ClockGap()

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, as this user sees it."""
        return False

    @property
    def name(self) -> str:
        return f"rank {self.rank} at {self.host}"

    def ask(self, request: Request, timeout_s: float = ANSWER_S) -> Answer:
        before = time.time()
        found = self.reach(request, timeout_s)
        self.clock_gap.narrow(before, found.now, time.time())
        if found.error:
            raise ClusterError(f"{self.name}: {found.error}")
        return found

    def reach(self, request: Request, timeout_s: float) -> Answer:
        """The node's answer, an error of its own included."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what asking has opened; asking again opens it again."""


class LocalNode(Node):
    """This machine."""

    @property
    def is_here(self) -> bool:
        return True

    def reach(self, request: Request, timeout_s: float) -> Answer:
        return answer(request)


class RemoteNode(Node):
    """A machine that `ssh` finds by the user's own configuration, keys and agent.

    One ssh and one `dgpp agent` stay open while there is something to ask. Requests travel on
    standard input; the command line holds nothing of them, and each of its words is quoted.
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
        settings = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_S,
            "ServerAliveInterval": ALIVE_S,
            "ServerAliveCountMax": ALIVE_TIMES,
        }
        options = ["-T", *(f"-o{name}={value}" for name, value in settings.items())]
        self.ssh = (*ssh, *options)
        self.user = user
        self._connection = Connection(self.command([*self.program, "agent"]))

    @property
    def target(self) -> str:
        """As ssh is told it."""
        return f"{self.user}@{self.host}" if self.user else self.host

    def command(self, words: Sequence[str]) -> list[str]:
        """What runs `words` there, each as it is."""
        return [*self.ssh, "--", self.target, remote_line(words)]

    def reach(self, request: Request, timeout_s: float) -> Answer:
        data = msgspec.json.encode(request)
        if len(data) > REQUEST_BYTES:
            raise ClusterError(f"{self.name}: a request of {len(data)} bytes is too large")
        try:
            heard = self._connection.exchange(data, timeout_s, twice=isinstance(request, _HARMLESS))
        except TimeoutError:
            raise UnreachableError(
                f"{self.name}: no answer within {timeout_s:g} s; is the machine well?"
            ) from None
        except EndedError as ended:
            raise self._failure(ended.status, ended.said) from None
        except OSError as error:
            raise UnreachableError(f"{self.name}: ssh: {error.strerror}") from error
        except ValueError as error:
            raise UnreachableError(f"{self.name}: its answer: {error}") from None
        try:
            return msgspec.json.decode(heard, type=Answer)
        except msgspec.DecodeError:
            self._connection.close()
            text = heard[:200].decode(errors="replace")
            message = "its shell prints something of its own, or another dgpp is there"
            raise UnreachableError(f"{self.name}: {message}: {text!r}") from None

    def close(self) -> None:
        self._connection.close()

    @property
    def _called(self) -> str:
        """dgpp's command, without what `env` is told before it."""
        words = [*self.program]
        if words[0] == "env":
            words = [word for word in words[1:] if "=" not in word]
        return shlex.join(words)

    def _failure(self, status: int, said: str) -> UnreachableError:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        silent = "the connection ended without a word: its agent or its ssh server was killed"
        last = telling(lines) or (silent if status == SSH_FAILED else f"status {status}")
        remedy = remedy_of(said)
        if not remedy and status in NOT_FOUND:
            remedy = f"no {self._called} there: {HAVE_PROGRAM}"
        if not remedy and status != SSH_FAILED:
            remedy = f"`{self._called} agent` failed there"
        return UnreachableError(f"{self.name}: {last}" + (f" ({remedy})" if remedy else ""))


def telling(lines: Sequence[str]) -> str:
    """What of a program's `lines` says why it ended: the last one, unless that only says that."""
    if len(lines) > 1 and _EPILOGUE.search(lines[-1]):
        return "; ".join(lines[-1 - CAUSES : -1])
    return lines[-1] if lines else ""


def remedy_of(said: str) -> str:
    """What to do about what ssh said; empty where it is nothing of its own."""
    return next((remedy for sign, remedy in _REMEDIES if sign in said), "")


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


def try_all(
    nodes: Sequence[Node], request: Mapping[int, Request]
) -> list[tuple[Node, Answer | ClusterError]]:
    """Ask every node at once; what each answers, or why it does not."""

    def ask(node: Node) -> tuple[Node, Answer | ClusterError]:
        try:
            return node, node.ask(request[node.rank])
        except ClusterError as error:
            return node, error

    if len(nodes) < 2:
        return [ask(node) for node in nodes]
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(ask, nodes))


def ask_all(nodes: Sequence[Node], request: Mapping[int, Request]) -> dict[int, Answer]:
    """Ask every node at once, by rank. Raises the first error, in the order of ranks."""
    found = {}
    for node, said in try_all(nodes, request):
        if isinstance(said, ClusterError):
            raise said
        found[node.rank] = said
    return found


def own_program() -> list[str]:
    """How this very dgpp is called, here and at the same path elsewhere."""
    import sys

    # -P: in a home, ~/dgpp with logs would stand for the package.
    program = [sys.executable, "-P", "-m", "dgpp"]
    path = os.environ.get("PYTHONPATH")
    return ["env", f"PYTHONPATH={path}", *program] if path else program
