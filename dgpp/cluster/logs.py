"""The logs of all ranks as one, in the order of time."""

from __future__ import annotations

import heapq
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from dgpp.cluster.deployment import Deployment
from dgpp.cluster.errors import ClusterError
from dgpp.cluster.messages import TAIL_BYTES, Look
from dgpp.cluster.node import Node

FOLLOW_S = 1.0
"""How often logs are asked for."""
SKEW_S = 0.2
"""Clocks that differ by more are named, once."""
_STAMP = re.compile(r"(?:<\d>)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)")
_JSON_STAMP = re.compile(r'"(?:time|ts|timestamp)":\s*"([^"]+)"')

Say = Callable[[str], object]


class Line(NamedTuple):
    """A line of `rank`, said at `moment` (seconds since 1970 by this machine's clock). Lines sort
    by moment, those of one moment by rank, those of one rank as they came."""

    moment: float
    rank: int
    number: int
    text: str


def stamped(texts: Iterator[str], rank: int, ahead_s: float, since: float) -> Iterator[Line]:
    """Each line with its time; one without, as of a traceback, has that of the line before, and
    `since` where there is none. `ahead_s`: the rank's clock."""
    last = since
    for number, text in enumerate(texts):
        if found := _STAMP.match(text) or _JSON_STAMP.search(text[:200]):
            last = max(last, _seconds(found[1], last) - ahead_s)
        yield Line(last, rank, number, text)


def _seconds(stamp: str, otherwise: float) -> float:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return otherwise


class Merge:
    """Puts what ranks say in order. Lines of which older ones may still come are held back."""

    def __init__(self, *, named: bool) -> None:
        self._named = named
        self._held: list[Line] = []
        self._last: dict[int, float] = {}

    def add(
        self, texts: Mapping[int, str], ahead_s: Mapping[int, float], until: float
    ) -> list[str]:
        """`texts` of the ranks, whole lines; what of all that was said before `until`, in order."""
        fresh = []
        for rank, text in texts.items():
            since = self._last.get(rank, -math.inf)
            lines = list(stamped(iter(text.splitlines()), rank, ahead_s.get(rank, 0.0), since))
            if lines:
                self._last[rank] = lines[-1].moment
            fresh.append(lines)
        # Where two are of one moment and rank, those held are the older ones.
        lines = list(heapq.merge(self._held, *fresh, key=lambda line: line[:2]))
        self._held = [line for line in lines if line.moment >= until]
        return [self._shown(line) for line in lines if line.moment < until]

    def _shown(self, line: Line) -> str:
        return f"[{line.rank}] {line.text}" if self._named else line.text


def merged(texts: Mapping[int, str], *, named: bool) -> list[str]:
    """The lines of all ranks by time, those of one moment by rank; `named` ones begin with it."""
    return Merge(named=named).add(texts, {}, math.inf)


class LogReader:
    """What ranks have said since it was asked last, whole lines only. What keeps it from that,
    and clocks that differ, is said."""

    def __init__(
        self, deployment: Deployment, nodes: list[Node], say: Say, back: int = TAIL_BYTES
    ) -> None:
        self._place = deployment.place
        self._nodes = nodes
        self._say = say
        self._offsets = {node.rank: -back for node in nodes}
        self._rests = {node.rank: "" for node in nodes}
        self._said: set[tuple[str, int]] = set()

    @property
    def lost(self) -> bool:
        """Whether a node did not answer when it was asked last."""
        return any(what == "lost" for what, _ in self._said)

    def lines(self, *, named: bool) -> list[str]:
        """What there is now; a node that does not answer is named."""
        return Merge(named=named).add(self._texts(), self._ahead(), math.inf)

    def follow(self, *, named: bool) -> Iterator[str]:
        """Lines as they come, until the caller has enough. A node that does not answer is named
        and asked again."""
        merge = Merge(named=named)
        while True:
            # All that was said before this moment is there when a rank is asked after it.
            begun = time.time()
            yield from merge.add(self._texts(), self._ahead(), begun)
            time.sleep(FOLLOW_S)

    def _texts(self) -> dict[int, str]:
        texts = {}
        for node in self._nodes:
            try:
                texts[node.rank] = self._read(node)
            except ClusterError as error:
                self._once("lost", node, str(error))
            else:
                self._said.discard(("lost", node.rank))
        return texts

    def _read(self, node: Node) -> str:
        answer = node.ask(Look(self._place, node.rank, self._offsets[node.rank]))
        if 0 <= answer.offset < self._offsets[node.rank]:
            # It was started anew, and its log with it.
            answer = node.ask(Look(self._place, node.rank, 0))
            self._rests[node.rank] = ""
        self._offsets[node.rank] = answer.offset
        whole, cut, rest = (self._rests[node.rank] + answer.text).rpartition("\n")
        self._rests[node.rank] = rest
        return whole + cut

    def _ahead(self) -> dict[int, float]:
        """How far each clock is ahead of this one's."""
        for node in self._nodes:
            if abs(gap := node.clock_gap.sure) > SKEW_S:
                way = "ahead of" if gap > 0 else "behind"
                self._once(
                    "clock",
                    node,
                    f"{node.name}: its clock is {abs(gap):.1f} s {way} this machine's; its lines "
                    "stand where they belong",
                )
        return {node.rank: node.clock_gap.likely for node in self._nodes}

    def _once(self, what: str, node: Node, text: str) -> None:
        if (what, node.rank) not in self._said:
            self._said.add((what, node.rank))
            self._say(text)
