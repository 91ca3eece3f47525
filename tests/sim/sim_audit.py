"""What must hold after every run, whatever befell it."""

from __future__ import annotations

from sim_case import DISK_FAULTS

from dgpp.sched.request import Submit

END_S = 3.0
"""Every rank that can is gone this long after a fault."""

HARMLESS = ("none", "pause", "slow", "stop", "leave", *DISK_FAULTS)
OUT_OF_ORDER = ("duplicate", "lose", "swap")
"""Frames that are not what was sent, or not when: whoever gets one must see it in its number."""
REFUSALS = {"overloaded", "too_many_choices", "context_length_exceeded"}
ENDS = {"eos", "length", "stop", "pool_exhausted", *REFUSALS}
LATE_ENDS = {"server_shutdown", "engine_failure"}


class AuditError(AssertionError):
    """A run broke a promise."""


def audit(run) -> None:
    """Raises AuditError naming the promise."""
    _no_surprises(run)
    _clients(run)
    _operations(run)
    _pools(run)
    _end(run)


def _require(held, what) -> None:
    if not held:
        raise AuditError(what)


def _no_surprises(run) -> None:
    for lie in run.ledger.lies:
        raise AuditError(lie)
    for context in run.errors:
        error = context.get("exception")
        raise AuditError(f"{context.get('message')}: {error!r}") from error


def _clients(run) -> None:
    """One end for each request; tokens are what the same request is told without any fault."""
    case, ledger = run.case, run.ledger
    arrivals = _arrivals(ledger)
    told_of_failure = bool(ledger.failures)
    _require(len(ledger.failures) <= 1, f"clients heard of {len(ledger.failures)} failures")
    for request in ledger.requests.values():
        whole = ledger.ends.get(request.id, [])
        _require(len(whole) <= 1, f"{request.id} ended {whole}")
        _require(set(whole) <= REFUSALS | LATE_ENDS, f"{request.id} ended {whole}")
        for choice in request.choices:
            ends = ledger.ends.get(choice.id, [])
            _require(len(ends) <= 1, f"{choice.id} ended {ends}")
            _require(set(ends) <= ENDS, f"{choice.id} ended {ends}")
            said = ledger.tokens.get(choice.id, [])
            if said:
                _require(choice.id in arrivals, f"{choice.id} spoke unasked")
                _check_tokens(case.expected(arrivals[choice.id], choice), said, ends, request)
            _require(
                ends
                or whole
                or request.id in ledger.left
                or 0 not in run.statuses
                # Nobody is left to tell where rank 0 itself fell.
                or (run.statuses[0] in ("killed", 2) and not told_of_failure),
                f"{choice.id} was never ended",
            )


def _check_tokens(expected: list[int], said: list[int], ends: list[str], request) -> None:
    who = f"{request.id}: {said} of {expected}"
    _require(said == expected[: len(said)], f"{who}: other tokens than without a fault")
    for end in ends:
        if end in ("eos", "length"):
            _require(said == expected, f"{who}: ended early by {end}")
        elif end == "stop":
            _require(len(said) == min(request.stops_after, len(expected)), f"{who}: stopped late")


def _arrivals(ledger) -> dict[str, int]:
    """Each choice's number in the journal."""
    numbers: dict[str, int] = {}
    for record in ledger.records:
        submit: Submit
        for submit in record.submits:
            numbers[submit.id] = len(numbers)
    return numbers


def _operations(run) -> None:
    """All ranks did the same, as far as each came."""
    streams = {rank: bytes(stream) for rank, stream in run.ledger.operations.items()}
    if run.case.fault.kind == "diverge":
        streams.pop(run.case.fault.rank, None)
    longest = max(streams.values(), key=len, default=b"")
    for rank, stream in streams.items():
        _require(longest.startswith(stream), f"rank {rank} did something else")
    if all(status == 0 for status in run.statuses.values()) and len(run.serving) == run.case.world:
        _require(set(streams.values()) == {longest}, "orderly end, and ranks stopped apart")


def _pools(run) -> None:
    """Blocks in use are those of the living, on every rank; none where all came to rest."""
    leader = run.worlds[0].actors.get("scheduler")
    orderly = set(run.statuses.values()) == {0}
    rested = leader is not None and leader._scheduler.idle
    # Records that take a second each may outlast the drain.
    _require(not orderly or rested or run.case.fault.kind == "slow", "never came to rest")
    for rank, world in run.worlds.items():
        actor = world.actors.get("scheduler")
        if actor is None:
            continue
        actor._scheduler.check()
        if rank in run.serving and orderly and rested:
            _rested(rank, actor)


def _rested(rank, actor) -> None:
    statistics = actor._scheduler.statistics()
    tier = actor._scheduler._memory.tier
    moved = len(set(tier.held())) if tier is not None else 0
    _require(statistics.blocks_in_use <= moved, f"rank {rank} kept blocks")
    _require(statistics.queued == 0, f"rank {rank} kept requests")
    if rank == 0:
        _require(not actor._choices, "rank 0 remembers choices")


def _end(run) -> None:
    """Each rank ends with the status that the fault stands for, in time."""
    fault, statuses = run.case.fault, run.statuses
    struck = run.struck_s is not None
    if fault.kind in HARMLESS or not struck:
        # Told to stop before it served, rank 0 leaves no world for the others.
        released = {rank: 3 for rank in statuses if rank} | {0: 0}
        fine = set(statuses.values()) == {0} or (0 not in run.serving and statuses == released)
        if fault.kind == "leave" and struck and not run.struck_serving:
            # Told to stop before all served, a rank leaves no world for the others.
            fine = statuses[fault.rank] == 0
        if fault.kind in DISK_FAULTS and struck and not run.struck_serving:
            # A disk that cannot be opened ends the start, on its own rank by 1.
            fine |= statuses[fault.rank] == 1 and 0 not in statuses.values()
        _require(fine, f"{fault}: ended {statuses}")
        return
    for rank, status in statuses.items():
        _require(status in _allowed(run, rank), f"{fault}: rank {rank} of {statuses}")
    if not run.struck_serving:
        return
    for rank, ended_s in run.ended_s.items():
        took = ended_s - run.struck_s
        waking = fault.kind == "long pause" and rank == fault.rank
        _require(waking or took <= END_S, f"{fault}: rank {rank} took {took:.2f} s")


def _allowed(run, rank):
    """The statuses with which `rank` may end after the fault."""
    fault = run.case.fault
    if (fault.kind, fault.rank) == ("crash", rank):
        return {"killed"}
    allowed = {2} if rank == 0 else {3}
    if not run.struck_serving:
        # Not all were serving: a start that fails, or whose first moments do.
        allowed |= {1}
        if fault.kind == "long pause":
            # Loading has its time: standing still in it is no fault.
            allowed |= {0}
    if run.ledger.draining or fault.kind in ("forced", *OUT_OF_ORDER):
        # It came while the world ended in order, perhaps too late for some or all.
        allowed |= {0}
    if rank and fault.kind in ("corrupt", "diverge", *OUT_OF_ORDER):
        allowed |= {1}
    if rank == fault.rank or fault.kind == "forced":
        allowed |= {2}
    return allowed
