"""What one seed stands for: a world, its load, its faults, and how it must end."""

from __future__ import annotations

import copy
import json
import random
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace
from sim_disk import PAGE_BYTES, SNAPSHOT_BYTES

from actors.boot import Boot
from dgpp.cache.cold_room import blob_pages
from dgpp.config.engine_settings import EngineSettings
from dgpp.config.settings import NvmeCacheSettings, Settings
from dgpp.engine.script import ScriptLine, parse_script
from dgpp.sample.params import SamplingParams
from dgpp.sched.limits import EngineLimits
from dgpp.sched.request import Submit, pack_ids
from dgpp.serve.served import ServedModel

VOCABULARY = 64
END = 1
BLOCK = 4

FAULTS = (
    *("none", "none", "none", "stop", "stop"),
    *("crash", "crash", "pause", "long pause", "partition", "cut"),
    *("corrupt", "duplicate", "lose", "swap", "engine", "diverge", "slow", "leave", "forced"),
    *("flip", "flip list", "full", "short write", "short read", "unreadable"),
)
DISK_FAULTS = ("flip", "flip list", "full", "short write", "short read", "unreadable")
"""Those of one rank's disk. A disk may also outlive the world: then there is a second one."""


class Request(NamedTuple):
    """One client's request: `choices` arrive at `at_s`; the client leaves at `leaves_s` if ever;
    a stop string is met after `stops_after` tokens (0: never)."""

    id: str
    choices: tuple[Submit, ...]
    at_s: float
    leaves_s: float | None
    stops_after: int


class Fault(NamedTuple):
    """`kind` of FAULTS befalls `rank` when rank 0 sends tick `tick`, or at `at_s` if `tick` < 0.
    `detail` is drawn from the seed too, for what it needs."""

    kind: str
    rank: int
    tick: int
    at_s: float
    detail: float


class Case:
    """Everything that a run needs, drawn from `seed` alone."""

    def __init__(self, seed: int, fault: str | None = None) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.world = rng.choice((2, 2, 2, 3, 4))
        self.depth = rng.choice((0, 0, 1))
        self.loading_s = [rng.random() * 0.1 for _ in range(self.world)]
        self.step_s = rng.choice((0.0, 1e-3, 4e-3))
        self.ring_bytes = rng.choice((256, 512, 1 << 14))
        self.ahead_ticks = rng.choice((2, 4, 64))
        self.lines = [self._line(rng) for _ in range(rng.randint(1, 4))]
        drafts = max(max(line.get("per_step", [1])) for line in self.lines) - 1
        slots = rng.choice((1, 2, 4))
        blocks = rng.choice((6, 12, 40))
        self.limits = EngineLimits(
            slots=slots,
            vocab_size=VOCABULARY,
            position_ceiling=rng.choice((32, 64)),
            block_tokens=BLOCK,
            blocks=blocks,
            chunk_align=BLOCK,
            chunk_limit=4 * BLOCK,
            candidates=1,
            max_drafts=drafts,
            depth=self.depth,
            snapshots=rng.choice((0, 2, 8)),
            snapshot_bytes=rng.choice((0, 64)),
            lookahead=rng.choice((0, 1)),
        )
        self.admission = rng.choice(("full", "full", "grow"))
        self.window = rng.choice((1, 4, 256))
        self.close = rng.random() < 0.7
        # Prompts that begin alike, for the cache to find.
        self.heads = [[rng.randrange(VOCABULARY) for _ in range(24)] for _ in range(2)]
        self.queue_limit = rng.choice((1, 3, 16))
        self.gather_ms = rng.choice((0, 2))
        self.requests = [self._request(rng, number) for number in range(rng.randint(1, 7))]
        self.fault = self._fault(rng, fault)
        self.disk_s = rng.choice((0.0, 1e-3, 2e-2))
        self.lives = 1
        if self.fault.kind in DISK_FAULTS or rng.random() < 0.3:
            self._give_disks(rng)

    def again(self) -> Case:
        """The world that comes after, whose clients ask the same; nothing befalls it."""
        after = copy.copy(self)
        after.fault = Fault("none", 0, -1, 0.0, 0.0)
        return after

    def _give_disks(self, rng: random.Random) -> None:
        blob = blob_pages(SNAPSHOT_BYTES, PAGE_BYTES) if self.limits.snapshot_bytes else 0
        self.limits = replace(
            self.limits,
            snapshots=max(2, self.limits.snapshots),
            cold_pages=rng.choice((21, 40, 200)),
            cold_page_bytes=PAGE_BYTES,
            cold_blob_pages=blob,
        )
        # Some ask again when memory may have given it up.
        self.requests += [
            asked._replace(
                id=f"again{number}",
                choices=tuple(
                    replace(choice, id=f"again{number}-{k}")
                    for k, choice in enumerate(asked.choices)
                ),
                at_s=0.1 + rng.random() * 0.2,
                leaves_s=None,
            )
            for number, asked in enumerate(rng.choices(self.requests, k=rng.randint(0, 3)))
        ]
        self.lives = 1 + (self.fault.kind == "flip list" or rng.random() < 0.5)

    @cached_property
    def script(self) -> str:
        """What the engines of all ranks play: the lines themselves."""
        return "\n".join(json.dumps(line) for line in self.lines)

    @cached_property
    def played(self) -> list[ScriptLine]:
        """The same as engines have it."""
        return parse_script(self.script.encode(), VOCABULARY)

    def boot(self, rank: int) -> Boot:
        """What the roles of `rank` are told; the journal is added by the world."""
        engine = EngineSettings(
            backend="scripted",
            placement="inline",
            script=self.script,
            max_concurrency=self.limits.slots,
            queue_limit=self.queue_limit,
            admission_gather_ms=self.gather_ms,
            admission=self.admission,
            admission_window=self.window,
            prefix_min_tokens=BLOCK,
            prefix_close=self.close,
            stats_interval_s=0.0,
        )
        return Boot(
            settings=Settings(
                model="m",
                world_size=self.world,
                engine=engine,
                nvme_cache=NvmeCacheSettings(min_tokens=BLOCK),
            ),
            rank=rank,
            limits=self.limits,
            model_directory="",
            config_path="",
            text=False,
            served=ServedModel("m", VOCABULARY, 64, 64),
            backend="scripted",
            threads=1,
            device=0,
            version="0",
        )

    def expected(self, arrival: int, choice: Submit) -> list[int]:
        """The whole answer of a choice that came as number `arrival` of the journal."""
        ids = self.lines[arrival % len(self.lines)]["ids"]
        answer = [ids[n % len(ids)] for n in range(choice.max_tokens)]
        for index, token in enumerate(answer):
            if token in choice.stop_ids:
                return answer[: index + 1]
        return answer

    def _line(self, rng: random.Random) -> dict[str, Any]:
        ids = [rng.randrange(2, VOCABULARY) for _ in range(rng.randint(2, 9))]
        if rng.random() < 0.5:
            ids.append(END)
        if self.depth:
            return {"ids": ids, "undecided": rng.choice((0, 0, 3))}
        return {"ids": ids, "per_step": [rng.choice((1, 1, 2, 4)) for _ in range(3)]}

    def _request(self, rng: random.Random, number: int) -> Request:
        head = rng.choice(self.heads)[: rng.choice((0, 9, 24))]
        tail = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 12))]
        prompt = pack_ids(head + tail)
        cuts = sorted(rng.sample(range(1, len(head) + 1), min(len(head), rng.randint(0, 2))))
        choices = tuple(
            Submit(
                f"r{number}-{k}",
                prompt,
                rng.choice((1, 2, 5, 12)),
                SamplingParams(temperature=rng.choice((0.0, 1.0))),
                seed=rng.getrandbits(64),
                stop_ids=(END,),
                priority=rng.choice((0, 0, 7)),
                boundaries=pack_ids(cuts),
            )
            for k in range(rng.choice((1, 1, 1, 2, 3)))
        )
        leaves = rng.random() * 0.1 if rng.random() < 0.25 else None
        return Request(
            f"r{number}", choices, rng.random() * 0.06, leaves, rng.choice((0, 0, 0, 1, 4))
        )

    def _fault(self, rng: random.Random, wanted: str | None) -> Fault:
        kind = wanted or rng.choice(FAULTS)
        tick = rng.choice((-1, 0, 1, rng.randrange(30), rng.randrange(30), rng.randrange(30)))
        # Clients of a rank 0 that errs alone cannot know better: the others part from it.
        rank = rng.randrange(kind == "diverge", self.world)
        return Fault(kind, rank, tick, rng.random() * 0.3, rng.random())
