"""Runs one case: W ranks' real actors and supervisors on one loop, and what befalls them."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace
from rank_loop import RankLoop
from sim_case import Case
from sim_disk import SimFolder
from sim_roles import Ledger
from sim_wire import Wire
from virtual_loop import VirtualLoop

from actors.inline import InlineWorld
from actors.journal import JournalLinks, link_name
from actors.supervisor import Settings, Supervisor
from actors.topology import ChannelSpec
from actors.world import topology

GARBAGE = 1000
"""Objects beyond which circles are looked for between two worlds."""
DRAIN_S = 2.0
PATIENCE_S = 200.0
"""Nothing that a case holds takes so long: a run that does hangs."""

ROLES = {
    "engine": "sim_roles:SimEngine",
    "tokenizer": "sim_roles:SimTokenizer",
    "http": "sim_roles:SimFront",
}
SCHEDULERS = ("sim_roles:SimScheduler", "sim_roles:SimFollower")


@contextmanager
def many_worlds() -> Iterator[None]:
    """Inside, worlds are played that log nothing. What they leave in circles is looked for between
    two of them alone: to do so all the time takes two fifths of it."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


class Run:
    """One case, run. `statuses` and `ended_s` are each rank's exit status and time of exit."""

    def __init__(self, case: Case, *, life: int = 1, disks=()) -> None:
        self.case = case
        self.life = life
        self.later = None
        self.ledger = Ledger(case)
        self.loop = VirtualLoop(case.seed + life - 1)
        self.statuses = {}
        self.ended_s = {}
        self.struck_s = None
        self.serving = set()
        self.worlds = {}
        self.errors = []
        self.loops = [RankLoop(self.loop, self.ledger) for _ in range(case.world)]
        self._rng = random.Random(case.seed)
        self.ledger.disks = list(disks) or [SimFolder(self._rng) for _ in range(case.world)]
        self._supervisors = {}
        self._wires = {}
        self._told_to_stop = False
        self.struck_serving = False

    def play(self, audit=lambda run: None) -> Run:
        """Runs to the end of every rank; `audit` looks at what it left. Then, where the case has
        another life, that, as `later`."""
        if gc.get_count()[0] > GARBAGE:
            gc.collect(0)
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        try:
            self.loop.run_until_complete(self._play(audit))
        finally:
            self.loop.close()
        if self.life < self.case.lives:
            self.later = self.after().play(audit)
        return self

    def after(self) -> Run:
        """The next life, on the disks of this one."""
        for disk in self.ledger.disks:
            disk.trouble, disk.cut_short = "", True
        case = self.case.again()
        return Run(case, life=self.life + 1, disks=self.ledger.disks)

    async def _play(self, audit):
        case = self.case
        for rank in range(1, case.world):
            self._wires[rank] = Wire(self.loop, self._rng, self.loops[0], self.loops[rank])
        self.all_over = self.loop.create_future()
        for rank, loop in enumerate(self.loops):
            loop.call_soon(self._begin, rank)
        self._arrange_fault()
        _, late = await asyncio.wait((self.all_over,), timeout=PATIENCE_S)
        if late:
            self.errors.append({"message": f"ranks {self._left()} never ended"})
        try:
            audit(self)
        finally:
            for loop in self.loops:
                await loop.bury()

    def _left(self):
        return [rank for rank in range(self.case.world) if rank not in self.statuses]

    def _begin(self, rank):
        task = self.loops[rank].create_task(self._live(rank))
        task.add_done_callback(partial(self._done, rank))

    async def _live(self, rank):
        case = self.case
        others = {0: b""} if rank else dict.fromkeys(range(1, case.world), b"")
        facts = {"limits": str(case.limits)}
        boot = replace(case.boot(rank), journal=JournalLinks(facts, others, case.ahead_ticks))
        plan = topology(boot)
        ends = {link_name(other): other for other in others}
        plan = replace(
            plan,
            roles=tuple(self._role(role, rank, ends) for role in plan.roles),
            channels=tuple(self._channel(channel) for channel in plan.channels),
        )
        encoded = boot.encode()
        world = InlineWorld(
            plan,
            {role.role: encoded for role in plan.roles},
            loop=self.loops[rank],
            clock_ns=self.loop.clock_ns,
            run_blocking=partial(self._compute, rank),
            connect=partial(self._connect, rank),
        )
        self.worlds[rank] = world
        drain_s = DRAIN_S if rank == 0 else DRAIN_S + 10.0
        settings = Settings(drain_timeout_s=drain_s, watchdog_s=None)
        keeper = Supervisor(world, settings, partial(self._ready, rank))
        self._supervisors[rank] = keeper
        return await keeper.run()

    def _role(self, role, rank, ends):
        if role.role == "scheduler":
            return replace(role, actor=SCHEDULERS[bool(rank)], files=ends)
        return replace(role, actor=ROLES.get(role.role, role.actor))

    def _channel(self, channel: ChannelSpec) -> ChannelSpec:
        return replace(channel, ring_bytes=self.case.ring_bytes)

    async def _compute(self, rank, function, *arguments):
        if self.case.step_s:
            await asyncio.sleep(self.loop.moment() * self.case.step_s)
        return function(*arguments)

    async def _connect(self, rank, other, factory):
        end = self._wires[rank].rank if rank else self._wires[other].leader
        end.attach(factory)

    def _ready(self, rank):
        self.serving.add(rank)
        if rank == 0:
            self.loops[0].create_task(self._clients())

    async def _clients(self):
        """The clients' side, then the end of the world."""
        case, world = self.case, self.worlds[0]
        front, tokenizer = world.actors["http"], world.actors["tokenizer"]
        for request in case.requests:
            self.loops[0].call_later(request.at_s, self._arrive, tokenizer, request)
            if request.leaves_s is not None:
                self.loops[0].call_later(
                    request.at_s + request.leaves_s, self._leave, front, request
                )
        for _ in range(int(PATIENCE_S / 0.02)):
            await asyncio.sleep(0.02)
            if self.ledger.draining or self._all_answered():
                break
        await asyncio.sleep(0.05)
        self._signal(0)

    def _all_answered(self):
        return all(
            request.id in self.ledger.requests and self.ledger.over(request)
            for request in self.case.requests
        )

    def _arrive(self, tokenizer, request):
        if not (self.ledger.draining or self.ledger.failures):
            tokenizer.submit(request)

    def _leave(self, front, request):
        if request.id in self.ledger.requests:
            front.leave(request)

    def _signal(self, rank):
        keeper = self._supervisors.get(rank)
        if keeper is None or rank in self.statuses:
            return
        if rank == 0:
            if self._told_to_stop:
                # A second signal would force the end.
                return
            self._told_to_stop = True
        keeper._signalled(2)

    def _done(self, rank, task):
        """The process of `rank` exits."""
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self.errors.append({"message": f"rank {rank} raised", "exception": error})
        self._exit(rank, None if task.exception() else task.result())

    def _exit(self, rank, status):
        self.statuses[rank] = status
        self.ended_s[rank] = self.loop.time()
        for end in self._ends(rank):
            if not end.over:
                end.over = True
                end._wire.end(end, None)
        self.loops[rank].kill()
        if not self._left() and not self.all_over.done():
            self.all_over.set_result(None)

    def _ends(self, rank):
        if rank:
            return [self._wires[rank].rank]
        return [wire.leader for wire in self._wires.values()]

    def _arrange_fault(self):
        fault = self.case.fault
        if fault.kind == "none":
            return
        if fault.kind in ("engine", "diverge"):
            self.ledger.struck = self._note
            return
        if fault.tick < 0:
            self.loop.call_later(fault.at_s, self._strike)
            return

        def on_tick(tick):
            if tick == fault.tick:
                # After what is under way: a record is on its way when its sender falls.
                self.loop.call_soon(self._strike)

        self.ledger.on_tick = on_tick

    def _strike(self):
        fault = self.case.fault
        rank = fault.rank
        if rank in self.statuses:
            return
        self._note()
        wires = [self._wires[rank]] if rank else list(self._wires.values())
        strike = getattr(self, "_strike_" + fault.kind.replace(" ", "_"))
        strike(rank, wires, fault.detail)

    def _strike_stop(self, rank, wires, detail):
        self._signal(0)

    def _strike_forced(self, rank, wires, detail):
        self._signal(0)
        if self._told_to_stop:
            self._supervisors[0]._signalled(15)

    def _strike_leave(self, rank, wires, detail):
        self._signal(rank)

    def _strike_crash(self, rank, wires, detail):
        if detail < 0.5:
            self.ledger.disks[rank].tear()
        self._exit(rank, "killed")

    def _strike_pause(self, rank, wires, detail):
        self._pause(rank, 0.2 + detail)

    def _strike_long_pause(self, rank, wires, detail):
        self._pause(rank, 4.0 + 4.0 * detail)

    def _strike_partition(self, rank, wires, detail):
        for wire in wires:
            wire.silent = True

    def _strike_cut(self, rank, wires, detail):
        wires[int(detail * len(wires))].cut()

    def _strike_slow(self, rank, wires, detail):
        for wire in wires:
            wire.delay_s = 1.2 * detail

    def _strike_corrupt(self, rank, wires, detail):
        wire = wires[int(detail * 997) % len(wires)]
        self._spoil(wire, wire.leader if detail < 0.6 else wire.rank)

    _strike_duplicate = _strike_lose = _strike_swap = _strike_corrupt

    def _strike_flip(self, rank, wires, detail):
        self._damage(rank, ".slab", detail)

    def _strike_flip_list(self, rank, wires, detail):
        self._damage(rank, ".index", detail)

    def _damage(self, rank, suffix, detail):
        """A bit now, and again and again while anything may be read."""
        self.ledger.disks[rank].flip(suffix, everywhere=suffix == ".slab" and detail < 0.5)
        if rank not in self.statuses:
            self.loop.call_later(0.02, self._damage, rank, suffix, detail)

    def _strike_full(self, rank, wires, detail):
        disk = self.ledger.disks[rank]
        disk.trouble, disk.cut_short = self.case.fault.kind, True

    _strike_short_write = _strike_short_read = _strike_unreadable = _strike_full

    def _note(self):
        """The fault befalls its rank, now for the first time."""
        if self.struck_s is None:
            self.struck_s = self.loop.time()
            self.struck_serving = len(self.serving) == self.case.world

    def _pause(self, rank, seconds):
        self.loops[rank].pause()
        self.loop.call_later(seconds, self.loops[rank].resume)

    def _spoil(self, wire, victim):
        fault = self.case.fault

        held = []

        def spoil(end, data):
            if end is not victim:
                return data
            if fault.kind == "swap" and not held:
                held.append(data)
                return b""
            wire.spoil = None
            if fault.kind == "lose":
                return b""
            if fault.kind == "swap":
                return data + held[0]
            if fault.kind == "duplicate":
                return data + data
            bit = int(fault.detail * 1e6) % (8 * len(data))
            spoiled = bytearray(data)
            spoiled[bit // 8] ^= 1 << bit % 8
            return bytes(spoiled)

        wire.spoil = spoil
