"""Deployments whose ranks are small shell scripts: what the launcher does with them is real."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from dgpp.cluster.agent import answer
from dgpp.cluster.deployment import Access, Deployment
from dgpp.cluster.errors import UnreachableError
from dgpp.cluster.node import LocalNode
from dgpp.cluster.record import State, read_record, state_of
from dgpp.config.resolve import load

RANK = """#!/bin/sh
rank=0
for word; do
    [ "$before" = --rank ] && rank=$word
    case $word in paths.log_dir=*) logs=${word#*=} ;; esac
    before=$word
done
trap 'exit 0' INT
printf 'T 1 5 1\\nT 1 6 2\\n' >"$logs/serve_rank$rank.ops"
echo "2026-11-30T00:00:00.00${rank}Z INFO  main[$rank] READY — http://h/v1 (model m) — stop: Ctrl-C"
[ "$rank" = 0 ] && echo $$ >"$UP" && trap 'rm -f "$UP"' EXIT
until [ -e "$UP" ]; do sleep 0.02; done
while [ "$rank" = 0 ] || { [ -e "$UP" ] && kill -0 "$(cat "$UP")"; }; do sleep 0.02; done
"""
"""Serves until it is told to end; ranks beyond the first end with it."""


class Elsewhere(LocalNode):
    """A node with folders of its own, whose answers a test may bend. `before` and `after` are
    called around each request with its number."""

    def __init__(self, rank, host, program, home: Path) -> None:
        super().__init__(rank, host, program)
        self.home = home
        self.requests = []
        self.before = self.after = lambda number: None
        self.version = ""
        self.ahead_s = 0.0

    @property
    def is_here(self) -> bool:
        return self.rank == 0

    def own(self, place):
        if self.is_here:
            return place
        return replace(place, log_dir=str(self.home / "log"), stage_dir=str(self.home / "stage"))

    def reach(self, request, timeout_s):
        number = len(self.requests)
        self.requests.append(request)
        self.before(number)
        found = answer(replace(request, place=self.own(request.place)))
        self.after(number)
        found = replace(found, now=found.now + self.ahead_s)
        return replace(found, version=self.version) if self.version else found

    def lose(self, number) -> None:
        """As it is when the node has gone."""
        raise UnreachableError(f"{self.name}: Connection timed out (it is off)")


def fake_deployment(folder: Path, monkeypatch, count: int = 2) -> Deployment:
    """Ranks 0 to `count` - 1, each on a node of its own."""
    program = folder / "dgpp of 'here' $(oops)"
    program.write_text(RANK)
    program.chmod(0o755)
    monkeypatch.setenv("UP", str(folder / "rank0.pid"))
    config = folder / "two nodes.json"
    hosts = ["here", *(f"node{rank}" for rank in range(1, count))]
    paths = {"log_dir": str(folder / "log"), "stage_dir": str(folder / "stage")}
    config.write_text(json.dumps({"model": "m", "nodes": hosts}))
    settings = load(config, environ={}, directories=())
    settings = replace(settings, paths=replace(settings.paths, **paths))
    deployment = Deployment(config, settings, Access(program=str(program)))
    program = deployment.nodes[0].program
    deployment.nodes = [
        Elsewhere(rank, host, program, folder / host) for rank, host in enumerate(hosts)
    ]
    return deployment


def states(deployment):
    places = [node.own(deployment.place) for node in deployment.nodes]
    return [state_of(read_record(place.record(i))) for i, place in enumerate(places)]


def left(deployment):
    """What is still there of a deployment that ended: processes, and what was staged."""
    places = [node.own(deployment.place) for node in deployment.nodes]
    running = [rank for rank, state in enumerate(states(deployment)) if state is State.RUNNING]
    return running, [file for place in places for file in place.stage.glob("*")]
