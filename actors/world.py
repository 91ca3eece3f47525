"""The actors of a rank and the channels between them, sized from the deployment's limits."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from actors.boot import Boot
from actors.messages.engine_sampler import FromEngine
from actors.messages.engine_scheduler import ColdEnded
from actors.messages.http_scheduler import Cancel
from actors.messages.http_tokenizer import FromHttp
from actors.messages.sampler_engine import FromSampler
from actors.messages.sampler_tokenizer import Committed
from actors.messages.scheduler_http import FromScheduler
from actors.messages.tokenizer_http import FromTokenizer
from actors.messages.tokenizer_scheduler import ToScheduler
from actors.metrics import ENGINE, HTTP, SAMPLER, SCHEDULER
from actors.topology import ChannelSpec, RoleSpec, Topology
from dgpp.config.ports import metrics_port
from dgpp.sched.limits import EngineLimits
from dgpp.sched.plan import Plan
from dgpp.sched.verdict import Verdict

KIB = 1 << 10
SPIN_US = 15
"""How long the two ends of a decode step poll before they sleep, where CPUs are to spare."""

# One BLAS thread in every process but the engine's own pool: two fight on a small machine.
# OPENBLAS_CORETYPE would pin an older machine's kernels; OpenBLAS knows better itself.
# Large blocks go back to the system when they are freed: bodies come in all sizes.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "262144",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}
_UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


SLAB = "slab"
"""The engine's file that is the shared memory of the ranks' collectives."""

Files = Mapping[str, dict[str, int]]
"""By role, the open files that are handed to it."""


def topology(boot: Boot, files: Files | None = None) -> Topology:
    """One rank's world. Roles start in this order and stop in reverse: the front end first."""
    roles = tuple(
        replace(role, files=(files or {}).get(role.role, {}))
        for role in _roles(boot)
        if role.role in _placed(boot)
    )
    names = {role.role for role in roles}
    channels = tuple(c for c in _channels(boot.limits) if {c.source, c.target} <= names)
    return Topology(roles=roles, channels=channels, rank=boot.rank, depth=boot.limits.depth)


def _placed(boot: Boot) -> tuple[str, ...]:
    """The roles that this rank has."""
    bus = () if boot.bus is None else ("poller",)
    if boot.rank == 0:
        return (*bus, *_EVERYWHERE, "tokenizer", "http")
    return (*bus, *_EVERYWHERE, *(("metrics",) if metrics_port(boot.settings, boot.rank) else ()))


_EVERYWHERE = ("engine", "sampler", "scheduler")


def _roles(boot: Boot) -> tuple[RoleSpec, ...]:
    engine_environment = _ENVIRONMENT | {"OMP_NUM_THREADS": str(boot.threads)}

    def role(name: str, actor: str, **more: object) -> RoleSpec:
        fields = {"environment": _ENVIRONMENT, "unset": _UNSET} | more
        return RoleSpec(role=name, actor=actor, **fields)  # type: ignore[arg-type]

    return (
        role("poller", "actors.poller:PollerActor"),
        role(
            "engine",
            "actors.engine:EngineActor",
            statistics=ENGINE,
            environment=engine_environment,
        ),
        role("sampler", "actors.sampler:SamplerActor", statistics=SAMPLER),
        role(
            "scheduler",
            "actors.follower:FollowerActor" if boot.rank else "actors.scheduler:SchedulerActor",
            statistics=SCHEDULER,
            faces_outside=boot.settings.world_size > 1,
        ),
        role("metrics", "actors.peer_metrics:PeerMetricsActor"),
        role("tokenizer", "actors.tokenizer:TokenizerActor"),
        role("http", "actors.http.actor:HttpActor", statistics=HTTP, faces_outside=True),
    )


def _channels(limits: EngineLimits) -> tuple[ChannelSpec, ...]:
    rows = limits.slots * (1 + limits.max_drafts)
    candidates = rows * (8 * limits.candidates + 20) + KIB
    row = 4 * limits.vocab_size + KIB
    masks = limits.slots * 4 * (-(-limits.vocab_size // 32)) + KIB
    return (
        ChannelSpec(source="http", target="tokenizer", messages=FromHttp, ring_bytes=256 * KIB),
        ChannelSpec(
            source="tokenizer",
            target="http",
            messages=FromTokenizer,
            ring_bytes=256 * KIB,
            always_drain=True,
        ),
        ChannelSpec(
            source="tokenizer", target="scheduler", messages=ToScheduler, ring_bytes=256 * KIB
        ),
        ChannelSpec(source="http", target="scheduler", messages=Cancel, ring_bytes=16 * KIB),
        ChannelSpec(
            source="scheduler",
            target="http",
            messages=FromScheduler,
            ring_bytes=64 * KIB,
            always_drain=True,
        ),
        ChannelSpec(source="scheduler", target="engine", messages=Plan, ring_bytes=256 * KIB),
        ChannelSpec(source="scheduler", target="sampler", messages=Plan, ring_bytes=256 * KIB),
        ChannelSpec(
            source="engine",
            target="sampler",
            messages=FromEngine,
            ring_bytes=16 * KIB,
            slot_bytes=max(candidates, row),
            slots=4 + limits.depth,
            spin_us=SPIN_US,
        ),
        ChannelSpec(
            source="engine",
            target="scheduler",
            messages=ColdEnded,
            ring_bytes=64 * KIB,
            always_drain=True,
        ),
        ChannelSpec(
            source="sampler",
            target="engine",
            messages=FromSampler,
            ring_bytes=16 * KIB,
            slots=2,
            slot_bytes=masks,
        ),
        ChannelSpec(
            source="sampler",
            target="scheduler",
            messages=Verdict,
            ring_bytes=64 * KIB,
            spin_us=SPIN_US,
        ),
        ChannelSpec(source="sampler", target="tokenizer", messages=Committed, ring_bytes=256 * KIB),
    )
