"""The roles of a simulated rank: the real ones, and stand-ins for clients, files and models."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from msgspec.structs import replace
from sim_case import END
from sim_disk import SimColdDisk
from sim_memory import VOID_TOKEN, SimMemory

from actors.actor import Actor
from actors.cold_disk import ColdFiles, ColdMover
from actors.engine import EngineActor
from actors.follower import FollowerActor
from actors.messages.http_scheduler import Cancel
from actors.messages.sampler_tokenizer import Committed
from actors.messages.scheduler_http import Queued, Refused
from actors.messages.tokenizer_scheduler import Arrive, Stopped
from actors.scheduler import SchedulerActor
from dgpp.engine.scripted import ScriptedEngine
from dgpp.errors import WorldFailedError
from dgpp.sched.admission import request_of


class EngineBrokenError(WorldFailedError):
    """What a simulated engine raises when its case says so."""

    traced = False


class Ledger:
    """What clients asked for and what they were told, and what every rank decided."""

    def __init__(self, case) -> None:
        self.case = case
        self.requests = {}
        self.tokens = defaultdict(list)
        self.ends = defaultdict(list)
        self.left = set()
        self.failures = []
        self.draining = False
        self.operations = {}
        self.records = []
        self.steps = 0
        self.lies = []
        self.cold = Counter()
        self.disks = []
        self.on_tick = lambda tick: None
        self.struck = lambda: None

    def over(self, request) -> bool:
        """Whether nothing more is owed to the request's client."""
        if request.id in self.left or self.ends.get(request.id):
            return True
        return all(self.ends.get(choice.id) for choice in request.choices)


def ledger_of(actor) -> Ledger:
    """The run's, which every rank's loop carries."""
    return actor.context.loop.ledger


class MemoryFile:
    """Stands in for the file of a rank's operation stream."""

    def __init__(self, actor) -> None:
        self._bytes = bytearray()
        ledger_of(actor).operations[actor.context.rank] = self._bytes

    def write(self, text):
        self._bytes += text

    def close(self):
        """Nothing to let go of."""


class SimScheduler(SchedulerActor):
    def operations_file(self):
        return MemoryFile(self)

    def taken(self, taken, before):
        super().taken(taken, before)
        ledger = ledger_of(self)
        ledger.records.append(taken.record)
        ledger.on_tick(taken.record.tick)


class SimFollower(FollowerActor):
    def operations_file(self):
        return MemoryFile(self)


class SimEngine(EngineActor):
    """Scripted; `engine.script` holds the lines themselves."""

    async def start(self):
        ledger = ledger_of(self)
        await asyncio.sleep(ledger.case.loading_s[self.context.rank])
        limits = self.boot.limits
        self._engine = BreakingEngine(limits, ledger.case.played, self.context.rank, ledger)
        if limits.cold_pages:
            self._cold = self._disk(ledger, limits)
        if self._depth:
            self.context.spawn(self._collect())

    def _disk(self, ledger, limits):
        folder = ledger.disks[self.context.rank]
        files = ColdFiles(folder, 0, limits.cold_page_bytes, limits.cold_pages, b"sim")
        mover = ColdMover(files, self._engine.memory, self.context.clock_ns)
        return SimColdDisk(mover, folder, self.context.loop, self._cold_ended, ledger)


class BreakingEngine(ScriptedEngine):
    """Fails at the fault's step, or computes something else from it on. Its `memory` checks what
    every row finds there."""

    def __init__(self, limits, lines, rank, ledger) -> None:
        super().__init__(limits, lines)
        self._ledger = ledger
        fault = ledger.case.fault
        self._kind = fault.kind if fault.rank == rank else ""
        self._step_of_fault = max(0, fault.tick)
        self.memory = SimMemory(limits)
        self._picks = {}
        self._drafts = {}

    def launch(self, plan, tables):
        if plan.step >= self._step_of_fault and plan.sampled_slots():
            if self._kind == "engine":
                self._ledger.struck()
                raise EngineBrokenError(f"step {plan.step}: no memory")
            if self._kind == "diverge":
                self._ledger.struck()
                self._lines = [replace(line, ids=(END,)) for line in self._lines]
                for slot in self._slots.values():
                    slot.line = self._lines[0]
        self._drafts.clear()
        super().launch(plan, tables)
        try:
            self.memory.run(plan, self._picks, self._drafts)
        except AssertionError as error:
            self._ledger.lies.append(f"step {plan.step} found other rows than it wrote: {error}")
            raise
        picks = self._steps[-1].candidates.picks.tolist()
        if self.limits.depth:
            self._picks = {
                **self._picks,
                **{
                    slot: VOID_TOKEN if pick < 0 else pick
                    for slot, pick in zip(plan.sampled_slots(), picks, strict=True)
                },
            }

    def _play(self, rows, slot, produced, count):
        before = len(rows)
        super()._play(rows, slot, produced, count)
        if produced:
            self._drafts[slot] = [row.token for row in rows[before:-1]]


class _ClientSide(Actor):
    def __init__(self, context) -> None:
        super().__init__(context)
        self.ledger = ledger_of(self)


class SimTokenizer(_ClientSide):
    """Sends the requests as they would come out of encoding, and meets stop strings."""

    def submit(self, request):
        self.ledger.requests[request.id] = request
        choices = request.choices
        prompts = tuple(dict.fromkeys(choice.prompt for choice in choices))
        self.context.post("tokenizer>scheduler", Arrive.of(request.id, choices, prompts))

    def receive(self, channel, message, arrays):
        assert isinstance(message, Committed)
        for item in message.items:
            request = self.ledger.requests[request_of(item.id)]
            ends = self.ledger.ends
            if ends.get(item.id) or ends.get(request.id) or request.id in self.ledger.left:
                continue
            said = self.ledger.tokens[item.id]
            said.extend(item.tokens)
            limit = request.stops_after
            if limit and len(said) >= limit:
                del said[limit:]
                self.ledger.ends[item.id].append("stop")
                if not item.finish:
                    self.context.post("tokenizer>scheduler", Stopped(item.id))
            elif item.finish:
                self.ledger.ends[item.id].append(item.finish.name.lower())


class SimFront(_ClientSide):
    """Clients leave and are refused here, and hear of the world's end."""

    def leave(self, request):
        if not self.ledger.over(request):
            self.ledger.left.add(request.id)
            self.context.post("http>scheduler", Cancel(request.id))

    def receive(self, channel, message, arrays):
        match message:
            case Queued():
                assert message.id in self.ledger.requests
            case Refused():
                self.ledger.ends[message.id].append(message.code)

    async def drain(self, timeout_s):
        self.ledger.draining = True
        end = self.context.clock() + timeout_s - 0.5
        while any(not self.ledger.over(request) for request in self.ledger.requests.values()):
            if self.context.clock() >= end:
                for request in self.ledger.requests.values():
                    if not self.ledger.over(request):
                        self.ledger.ends[request.id].append("server_shutdown")
                        self.context.post("http>scheduler", Cancel(request.id))
                return
            await asyncio.sleep(0.01)

    async def fail(self, cause, code, age_s):
        self.ledger.failures.append(cause)
        for request in self.ledger.requests.values():
            if not self.ledger.over(request):
                self.ledger.ends[request.id].append(code)
