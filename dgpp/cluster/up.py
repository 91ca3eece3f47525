"""Bring a deployment up: check its nodes, start its ranks, wait until it serves; or undo it all."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from dgpp.cluster.deployment import Deployment
from dgpp.cluster.down import end_ranks, kill_ranks
from dgpp.cluster.errors import AlreadyUpError, ClusterError, StartError
from dgpp.cluster.interruption import NOTHING_LEFT, Interruption, noted
from dgpp.cluster.messages import Answer, Examine, Finding, Look, Start
from dgpp.cluster.node import Node, ask_all, try_all
from dgpp.cluster.place import locked
from dgpp.cluster.record import State
from dgpp.config.ports import listens, sums_over_roce
from dgpp.config.settings import Settings

READY = "READY — "
LOOK_S = 0.2
LOOK_FAR_S = 2.0
SKEW_S = 2.0
"""Clocks that differ by more make merged logs hard to read."""
LAST_LINES = 12
RUN_BYTES = 8
"""Of a run's name: enough that no two are called the same."""
UNSTARTED = "nothing was started"
SOMETHING_LEFT = "what may still run is named above"

Say = Callable[[str], object]


class Up(msgspec.Struct, frozen=True, kw_only=True):
    """How to start: `replace` what runs, without `checks`, give up after `timeout_s`; `wrap`
    precedes rank 0's command."""

    replace: bool = False
    checks: bool = True
    timeout_s: float = 600.0
    wrap: tuple[str, ...] = ()


def bring_up(deployment: Deployment, wanted: Up, say: Say) -> str:
    """The line in which rank 0 says that it serves. Raises ClusterError: then nothing of the
    deployment runs."""
    interruption = Interruption()
    interruption.left = UNSTARTED
    with locked(deployment.place), noted(interruption):
        running = _running(deployment)
        if running and not wanted.replace:
            raise AlreadyUpError(
                f"{', '.join(running)}: up already; `dgpp down{deployment.words}` ends it, "
                "--replace starts it anew"
            )
        interruption.check()
        if running:
            say(f"ending {', '.join(running)}")
            end_ranks(deployment, say, interruption)
            interruption.left = UNSTARTED
            interruption.check()
        if wanted.checks:
            require_fit(deployment, say)
        interruption.check()
        try:
            _start(deployment, wanted, say, interruption)
            ready = _wait(deployment, wanted.timeout_s, interruption)
            interruption.check()
        except BaseException:
            interruption.left = _undone(deployment, say)
            raise
        return ready


def stopped_by_down(ready: str, deployment: Deployment) -> str:
    """Rank 0's line for who has no terminal of it: the command that ends it."""
    return ready.replace("stop: Ctrl-C", f"stop: dgpp down{deployment.words}")


def _undone(deployment: Deployment, say: Say) -> str:
    """What is left of the start, in words."""
    try:
        return NOTHING_LEFT if kill_ranks(deployment, say) else SOMETHING_LEFT
    except ClusterError as error:
        say(str(error))
        return SOMETHING_LEFT


def examine(deployment: Deployment) -> dict[str, tuple[Finding, ...]]:
    """What there is to say of each node, by name. What cannot be asked is a finding too."""
    settings = deployment.settings
    rdma = sums_over_roce(settings)
    nodes, world = deployment.nodes, settings.world_size
    requests = {
        node.rank: Examine(
            deployment.place,
            node.rank,
            world,
            settings.engine.backend,
            rdma,
            tuple(_listed(settings, node.rank, "DGPP_ROCE_DEVICES")),
            tuple(int(gid) for gid in _listed(settings, node.rank, "DGPP_ROCE_GID_INDICES")),
            settings.model,
            _told(settings, node.rank).get("HF_HUB_CACHE", ""),
            listens(settings, node.rank),
            settings.engine.collective,
            deployment.apart,
            settings.engine.load != "dummy",
            # Where all ranks are on this machine, one node stands for them.
            tuple(map(settings.device, [node.rank] if deployment.apart else range(world))),
            tuple(settings.engine.devices),
        )
        for node in nodes
    }
    return {node.name: _findings(node, answer) for node, answer in try_all(nodes, requests)}


def _told(settings: Settings, rank: int) -> dict[str, str]:
    return settings.node_env[rank] if settings.node_env else {}


def _listed(settings: Settings, rank: int, name: str) -> list[str]:
    return _told(settings, rank).get(name, "").replace(",", " ").split()


def _findings(node: Node, answer: Answer | ClusterError) -> tuple[Finding, ...]:
    if isinstance(answer, ClusterError):
        return (Finding("error", str(answer)),)
    gap = node.clock_gap.sure
    if abs(gap) > SKEW_S:
        way = "ahead of" if gap > 0 else "behind"
        what = f"its clock is {abs(gap):.1f} s {way} this machine's"
        return (*answer.findings, Finding("warning", what, "synchronise clocks (NTP)"))
    return answer.findings


def require_fit(deployment: Deployment, say: Say) -> None:
    """Say what was found amiss; raises StartError, which names the nodes that are not fit."""
    wrong = []
    for name, findings in examine(deployment).items():
        for finding in findings:
            if finding.level != "ok":
                say(f"{finding.level}: {name}: {finding.words}")
        if any(finding.level == "error" for finding in findings):
            wrong.append(name)
    if wrong:
        raise StartError(f"not started: {', '.join(wrong)}: not fit, as said above")


def _running(deployment: Deployment) -> list[str]:
    looks = {node.rank: Look(deployment.place, node.rank, -1) for node in deployment.nodes}
    found = ask_all(deployment.nodes, looks)
    mine = deployment.nodes[0]
    for node in deployment.nodes:
        if found[node.rank].version != found[mine.rank].version:
            raise StartError(
                f"{node.name} has dgpp {found[node.rank].version}, this is "
                f"{found[mine.rank].version}: install one version everywhere"
            )
        if found[node.rank].unknown:
            raise StartError(f"{node.name}: {found[node.rank].unknown}")
    return [node.name for node in deployment.nodes if found[node.rank].state is State.RUNNING]


def _start(deployment: Deployment, wanted: Up, say: Say, interruption: Interruption) -> None:
    """Rank 0 first: the others find its journal waiting."""
    token = secrets.token_hex(32) if deployment.apart else ""
    if deployment.settings.engine.cluster_token_file:
        token = ""
    run = secrets.token_hex(RUN_BYTES)
    requests = {
        node.rank: Start(
            place=deployment.place,
            rank=node.rank,
            config=deployment.document,
            token=token,
            command=(*(wanted.wrap if node.rank == 0 else ()), *node.program),
            environment=deployment.environment(node.rank),
            source=str(deployment.config),
            apart=deployment.apart,
            run=run,
        )
        for node in deployment.nodes
    }
    first, *others = deployment.nodes
    for nodes in ([first], others):
        interruption.check()
        for rank, answer in ask_all(nodes, requests).items():
            pid = answer.record.pid if answer.record else 0
            say(f"rank {rank} started on {deployment.nodes[rank].host} (process {pid})")


class _Watch:
    """What a rank has said so far."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.text = ""
        self._offset = 0

    def look(self, deployment: Deployment) -> Answer:
        answer = self.node.ask(Look(deployment.place, self.node.rank, self._offset))
        self._offset = answer.offset
        self.text += answer.text
        return answer

    def require_alive(self, deployment: Deployment) -> None:
        if self.look(deployment).state is State.RUNNING:
            return
        self.look(deployment)
        last = self.text.strip().splitlines()[-LAST_LINES:]
        said = "\n  ".join(last) or "it said nothing"
        raise StartError(f"{self.node.name} ended before it served:\n  {said}")


def _wait(deployment: Deployment, timeout_s: float, interruption: Interruption) -> str:
    first, *others = (_Watch(node) for node in deployment.nodes)
    end = time.monotonic() + timeout_s
    far = time.monotonic() + LOOK_FAR_S
    while time.monotonic() < end:
        interruption.check()
        first.require_alive(deployment)
        for line in first.text.splitlines():
            if READY in line:
                return READY + line.partition(READY)[2]
        if time.monotonic() >= far:
            for watch in others:
                watch.require_alive(deployment)
            far = time.monotonic() + LOOK_FAR_S
        time.sleep(LOOK_S)
    raise StartError(f"rank 0 does not serve after {timeout_s:g} s; see {deployment.place.log(0)}")
