"""End a deployment in order, and see that nothing is left and that all ranks did the same."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from dgpp.cluster.deployment import Deployment
from dgpp.cluster.errors import ClusterError
from dgpp.cluster.messages import Answer, Look, Operations, Signal
from dgpp.cluster.node import Node, ask_all
from dgpp.cluster.place import locked
from dgpp.cluster.record import State

FIRST_S = 240.0
"""What rank 0 may take to answer its clients and to end; its own limits are shorter."""
OTHERS_S = 60.0
"""What the other ranks may take after rank 0."""
KILLED_S = 5.0
LOOK_S = 0.1

Say = Callable[[str], object]


def bring_down(deployment: Deployment, say: Say, first_s: float = FIRST_S) -> bool:
    """False where ranks did not do the same, or had to be killed. Raises ClusterError."""
    with locked(deployment.place):
        return end_ranks(deployment, say, first_s)


def end_ranks(deployment: Deployment, say: Say, first_s: float = FIRST_S) -> bool:
    """The same for whoever holds the lock."""
    first, *others = deployment.nodes
    ran = [node for node in deployment.nodes if _state(deployment, node) is State.RUNNING]
    if not ran:
        say("not running")
        return True
    orderly = _end(deployment, [first], signal.SIGINT, first_s, say)
    # Rank 0's end is theirs too; who has lost it ends by itself.
    orderly &= _end(deployment, others, 0, OTHERS_S if orderly else KILLED_S, say)
    return _compare(deployment, say) and orderly


def _state(deployment: Deployment, node: Node) -> State:
    return node.ask(Look(deployment.place, node.rank, -1)).state


def _end(
    deployment: Deployment, nodes: Sequence[Node], number: int, within_s: float, say: Say
) -> bool:
    """Signal `nodes` (0: just wait) and kill who is there after `within_s`. True where none was."""
    place = deployment.place
    if number:
        ask_all(nodes, {node.rank: Signal(place, node.rank, number) for node in nodes})
    left = _await(deployment, nodes, within_s)
    for node in left:
        say(f"{node.name} did not end within {within_s:g} s: killed")
        node.ask(Signal(place, node.rank, signal.SIGKILL))
    if still := _await(deployment, left, KILLED_S):
        names = ", ".join(node.name for node in still)
        raise ClusterError(f"{names}: still there {KILLED_S:g} s after SIGKILL")
    return not left


def _await(deployment: Deployment, nodes: Sequence[Node], within_s: float) -> list[Node]:
    """Who still runs after that time, or at once where nobody does."""
    end = time.monotonic() + within_s
    left = list(nodes)
    while True:
        left = [node for node in left if _state(deployment, node) is State.RUNNING]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(LOOK_S)


def _compare(deployment: Deployment, say: Say) -> bool:
    """Whether the operation streams of all ranks are one."""
    if not deployment.apart:
        say("ended")
        return True
    asked = {node.rank: Operations(deployment.place, node.rank) for node in deployment.nodes}
    found: dict[int, Answer] = ask_all(deployment.nodes, asked)
    for node in deployment.nodes:
        answer = found[node.rank]
        said = f"{answer.digest[:32]}  {answer.size} bytes" if answer.done else "missing"
        say(f"{node.name}: op stream {said}")
    alike = len({(answer.done, answer.digest) for answer in found.values()}) == 1
    missing = not all(answer.done for answer in found.values())
    if alike and not missing:
        say(f"op streams: identical across {len(found)} ranks")
        return True
    say("op streams: " + ("missing" if missing else "DIFFER") + "; keep them, see the logs")
    return False
