"""What ranks left on their own machines, copied to rank 0's, where it can be read side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dgpp.cluster.errors import ClusterError
from dgpp.cluster.messages import Look, Operations
from dgpp.cluster.node import Node
from dgpp.cluster.place import Place

LOG_BYTES = 16 << 20
"""The last of each log; what is before that stays where it is."""

Say = Callable[[str], object]


def forget_collected(place: Place, say: Say) -> None:
    """Remove what was collected of an earlier run, which nothing tells from this one's."""
    for file in [*place.collected.glob("rank*.log"), *place.collected.glob("serve_rank*.ops")]:
        try:
            file.unlink()
        except OSError as error:
            say(f"{file} is of an earlier run and cannot be removed: {error.strerror}")


def collect_logs(place: Place, nodes: Sequence[Node], say: Say) -> None:
    """The logs of the nodes that are not this one. What fails is said, and is no failure."""
    for node in nodes:
        _collect(node, place.collected / place.log(node.rank).name, _log(place, node), say)


def collect_operations(place: Place, nodes: Sequence[Node], say: Say) -> None:
    """The operation streams of the nodes that are not this one."""
    for node in nodes:
        file = place.collected / place.operations(node.rank).name
        _collect(node, file, _operations(place, node), say)


def _collect(node: Node, file: Path, texts: Iterator[str], say: Say) -> None:
    if node.is_here:
        return
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with file.open("w", encoding="utf-8") as out:
            out.writelines(texts)
    except (OSError, ClusterError) as error:
        say(f"{node.name}: {file.name} was not collected: {error}")


def _log(place: Place, node: Node) -> Iterator[str]:
    offset = -LOG_BYTES
    while (answer := node.ask(Look(place, node.rank, offset))).text:
        yield answer.text
        offset = answer.offset


def _operations(place: Place, node: Node) -> Iterator[str]:
    block = 0
    while text := node.ask(Operations(place, node.rank, block)).text:
        yield text
        block += 1
