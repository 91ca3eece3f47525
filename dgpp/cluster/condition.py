"""How each rank of a deployment is, as `dgpp status` tells it."""

from __future__ import annotations

import msgspec

from dgpp.cluster.deployment import Deployment
from dgpp.cluster.errors import ClusterError
from dgpp.cluster.messages import Answer, Look
from dgpp.cluster.node import Node, try_all
from dgpp.cluster.record import ProcessRecord, State
from dgpp.log import timestamp

LAST_BYTES = 4096


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rank. `error` says why nothing is known of it; `state` is empty where its node could
    not be asked. `last` is the last line of its log, `started` a time, empty where there is none.
    """

    rank: int
    host: str
    state: State | None = None
    pid: int = 0
    started: str = ""
    version: str = ""
    config: str = ""
    last: str = ""
    error: str = ""

    @property
    def words(self) -> str:
        """The same for people."""
        if self.state is None or self.error:
            return self.error
        if not self.pid:
            return self.state.value
        if self.state is State.RUNNING:
            since = f"since {self.started} (process {self.pid}, dgpp {self.version})"
            return f"{self.state.value} {since}"
        said = f"; it said last: {self.last}" if self.last else ""
        return f"{self.state.value} (was process {self.pid}, dgpp {self.version}){said}"


def conditions(deployment: Deployment) -> list[Condition]:
    """Of all ranks, in their order."""
    place, nodes = deployment.place, deployment.nodes
    looks = {node.rank: Look(place, node.rank, -LAST_BYTES) for node in nodes}
    return [_condition(node, answer) for node, answer in try_all(nodes, looks)]


def _condition(node: Node, answer: Answer | ClusterError) -> Condition:
    if isinstance(answer, ClusterError):
        return Condition(rank=node.rank, host=node.host, error=str(answer))
    lines = answer.text.strip().splitlines()
    last = lines[-1] if lines else ""
    if answer.unknown:
        error = f"{node.name}: {answer.unknown}"
        return Condition(rank=node.rank, host=node.host, state=answer.state, error=error, last=last)
    return of_record(node.rank, node.host, answer.state, answer.record, last)


def of_record(
    rank: int, host: str, state: State, record: ProcessRecord | None, last: str = ""
) -> Condition:
    """What a process record tells of a rank in `state`."""
    if record is None:
        return Condition(rank=rank, host=host, state=state)
    return Condition(
        rank=rank,
        host=host,
        state=state,
        pid=record.pid,
        started=timestamp(record.started),
        version=record.version,
        config=record.config,
        last=last,
    )
