"""The logs of all ranks as one, in the order of time."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Iterator

from dgpp.cluster.deployment import Deployment
from dgpp.cluster.messages import TAIL_BYTES, Look
from dgpp.cluster.node import Node

FOLLOW_S = 1.0
"""How often logs are asked for; lines of one round are put in order among themselves."""
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z?")
_JSON_STAMP = re.compile(r'"(?:time|ts|timestamp)":\s*"([^"]+)"')


def stamped(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Each line with its time; one without, as of a traceback, has that of the line before."""
    last = ""
    for line in lines:
        if found := _STAMP.match(line) or _JSON_STAMP.search(line[:200]):
            last = found.group(found.lastindex or 0)
        yield last, line


def merged(texts: dict[int, str], *, named: bool) -> Iterator[str]:
    """The lines of all ranks by time, those of one moment by rank; `named` ones begin with it."""

    def of(rank: int, text: str) -> Iterator[tuple[str, int, int, str]]:
        for number, (moment, line) in enumerate(stamped(iter(text.splitlines()))):
            yield moment, rank, number, line

    for _, rank, _, line in heapq.merge(*(of(rank, text) for rank, text in texts.items())):
        yield f"[{rank}] {line}" if named else line


class LogReader:
    """What ranks have said since it was asked last, whole lines only."""

    def __init__(self, deployment: Deployment, nodes: list[Node], back: int = TAIL_BYTES) -> None:
        self._place = deployment.place
        self._nodes = nodes
        self._offsets = {node.rank: -back for node in nodes}
        self._rests = {node.rank: "" for node in nodes}

    def read(self) -> dict[int, str]:
        found = {}
        for node in self._nodes:
            answer = node.ask(Look(self._place, node.rank, self._offsets[node.rank]))
            if 0 <= answer.offset < self._offsets[node.rank]:
                # It was started anew, and its log with it.
                answer = node.ask(Look(self._place, node.rank, 0))
            self._offsets[node.rank] = answer.offset
            whole, cut, rest = (self._rests[node.rank] + answer.text).rpartition("\n")
            self._rests[node.rank] = rest
            found[node.rank] = whole + cut
        return found

    def follow(self, *, named: bool) -> Iterator[str]:
        """Lines as they come, until the caller has enough."""
        while True:
            yield from merged(self.read(), named=named)
            time.sleep(FOLLOW_S)
