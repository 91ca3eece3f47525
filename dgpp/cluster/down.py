"""End a deployment in order, and see that nothing is left and that all ranks did the same."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from dgpp.cluster.collect import collect_logs, collect_operations, forget_collected
from dgpp.cluster.deployment import Deployment
from dgpp.cluster.errors import ClusterError
from dgpp.cluster.interruption import Interruption, noted
from dgpp.cluster.messages import Clear, Look, Signal
from dgpp.cluster.node import Node, try_all
from dgpp.cluster.op_streams import compare
from dgpp.cluster.place import locked
from dgpp.cluster.record import State

FIRST_S = 240.0
"""What rank 0 may take to answer its clients and to end; its own limits are shorter."""
OTHERS_S = 60.0
"""What the other ranks may take after rank 0."""
ALONE_S = 10.0
"""What they may take where rank 0 was gone before."""
KILLED_S = 5.0
LOOK_S = 0.1

UNTOLD = "no rank was told to end"
TOLD = (
    "ranks were told to end and go on doing so: `dgpp status` says who runs, `dgpp down` ends them "
    "at once"
)
ENDED = "its ranks have ended; they were not compared"
COMPARED = "its ranks have ended and were compared"
"""What a signal leaves behind, by the time at which it came."""

Say = Callable[[str], object]


def bring_down(deployment: Deployment, say: Say, first_s: float = FIRST_S) -> bool:
    """False where ranks did not do the same, had to be killed, or could not be reached. Raises
    ClusterError."""
    interruption = Interruption("what was asked last is answered first")
    with locked(deployment.place), noted(interruption):
        orderly = end_ranks(deployment, say, interruption, first_s)
        interruption.check()
        return orderly


def end_ranks(
    deployment: Deployment, say: Say, interruption: Interruption, first_s: float = FIRST_S
) -> bool:
    """The same for whoever holds the lock and notes signals. Raises StoppedError after one."""
    ending = Ending(deployment, say, interruption)
    interruption.left = UNTOLD
    running = ending.running(deployment.nodes)
    if not running:
        ending.clear()
        say("not running" if not ending.lost else "nothing was seen running")
        return not ending.lost
    first, *others = deployment.nodes
    if first in running:
        orderly = ending.end([first], signal.SIGINT, first_s)
        # Rank 0's end is theirs too; who has lost it ends by itself.
        orderly &= ending.end(others, 0, OTHERS_S if orderly else KILLED_S)
    else:
        # They wait for a rank 0 that was never there.
        orderly = ending.end(others, signal.SIGINT, ALONE_S)
    ending.clear()
    interruption.left = ENDED
    same = ending.compare()
    interruption.left = COMPARED
    return same and orderly and not ending.lost


def kill_ranks(deployment: Deployment, say: Say) -> bool:
    """After a start that failed: exactly the processes that it started, and what they were given.
    What cannot be reached is said, and makes it False. Raises ClusterError."""
    # It is what signals end in, so that none ends it.
    ending = Ending(deployment, say, Interruption())
    ending.end(deployment.nodes, signal.SIGKILL, KILLED_S)
    ending.clear()
    return not ending.lost


class Ending:
    """The end of one deployment's ranks. A node that cannot be asked, or does not know its rank, is
    `lost`: it is named once and asked no more, and the others' end goes on. After a signal nobody
    is asked any more."""

    def __init__(self, deployment: Deployment, say: Say, interruption: Interruption) -> None:
        self._deployment = deployment
        self._interruption = interruption
        self._place = deployment.place
        self._say = say
        self.lost: set[int] = set()

    def _left(self, nodes: Sequence[Node]) -> list[Node]:
        return [node for node in nodes if node.rank not in self.lost]

    def _lose(self, node: Node, error: ClusterError) -> None:
        self.lost.add(node.rank)
        self._say(f"{error}; its rank may still run there: `dgpp down` once it answers")

    def running(self, nodes: Sequence[Node]) -> list[Node]:
        found = []
        asked = {node.rank: Look(self._place, node.rank, -1) for node in nodes}
        for node, answer in try_all(self._left(nodes), asked):
            if isinstance(answer, ClusterError):
                self._lose(node, answer)
            elif answer.unknown:
                self.lost.add(node.rank)
                self._say(f"{node.name}: {answer.unknown}")
            elif answer.state is State.RUNNING:
                found.append(node)
        return found

    def end(self, nodes: Sequence[Node], number: int, within_s: float) -> bool:
        """Signal `nodes` (0: just wait) and kill who is there after `within_s`. True where none
        was. Raises ClusterError where even that does not help."""
        if number:
            self._signal(nodes, number)
        left = self._await(nodes, within_s)
        if not left:
            return True
        for node in left:
            self._say(f"{node.name} did not end within {within_s:g} s: killed")
        self._signal(left, signal.SIGKILL)
        if still := self._await(left, KILLED_S):
            names = ", ".join(node.name for node in still)
            raise ClusterError(
                f"{names}: still there {KILLED_S:g} s after SIGKILL; see the kernel's log there"
            )
        return False

    def _signal(self, nodes: Sequence[Node], number: int) -> None:
        self._interruption.check()
        self._interruption.left = TOLD
        asked = {node.rank: Signal(self._place, node.rank, number) for node in nodes}
        for node, answer in try_all(self._left(nodes), asked):
            if isinstance(answer, ClusterError):
                self._lose(node, answer)
            elif answer.done and number == signal.SIGKILL:
                self._say(f"{node.name}: killed")

    def _await(self, nodes: Sequence[Node], within_s: float) -> list[Node]:
        """Who still runs after that time, or at once where nobody does."""
        end = time.monotonic() + within_s
        left = list(nodes)
        while True:
            self._interruption.check()
            left = self.running(left)
            if not left or time.monotonic() >= end:
                return left
            time.sleep(LOOK_S)

    def clear(self) -> None:
        """Remove what the ranks were started with."""
        nodes = self._left(self._deployment.nodes)
        for node, answer in try_all(nodes, {n.rank: Clear(self._place, n.rank) for n in nodes}):
            if isinstance(answer, ClusterError):
                self._lose(node, answer)

    def compare(self) -> bool:
        """Whether the operation streams of all ranks are one; logs of other machines, and streams
        that differ, come here to be looked at."""
        if not self._deployment.apart:
            self._say("ended")
            return True
        self._interruption.check()
        nodes = self._of_one_run()
        forget_collected(self._place, self._say)
        self._interruption.check()
        collect_logs(self._place, nodes, self._say)
        self._interruption.check()
        apart = compare(self._place, nodes, self._say)
        collect_operations(self._place, apart, self._say)
        return not apart and len(nodes) == len(self._left(self._deployment.nodes))

    def _of_one_run(self) -> list[Node]:
        """The nodes that were started with the first one that is left. What lies on another is of
        an earlier run; it is named."""
        nodes = self._left(self._deployment.nodes)
        runs = {}
        for node, answer in try_all(nodes, {n.rank: Look(self._place, n.rank, -1) for n in nodes}):
            if isinstance(answer, ClusterError):
                self._lose(node, answer)
            else:
                runs[node.rank] = answer.record.run if answer.record else None
        nodes = self._left(nodes)
        found = [node for node in nodes if runs[node.rank] == runs[nodes[0].rank]]
        if strangers := [node.name for node in nodes if node not in found]:
            self._say(
                f"{', '.join(strangers)}: not started by the `dgpp up` that started "
                f"{nodes[0].name}, so not compared: did DGPP_NODES name others then?"
            )
        return found
