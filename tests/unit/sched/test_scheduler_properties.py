"""Any arrivals, cancels, stops and verdicts against what the scheduler promises."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from sched_drive import Driver, submit

from dgpp.sched.limits import EngineLimits
from dgpp.sched.outcomes import Admitted, Refused, Retired
from dgpp.sched.scheduler import Scheduler, Step
from dgpp.sched.waiting import OVERTAKES

QUEUE_LIMIT = 5


@st.composite
def engine_limits(draw):
    align = draw(st.sampled_from([4, 8]))
    return EngineLimits(
        slots=draw(st.integers(1, 4)),
        vocab_size=100,
        position_ceiling=draw(st.sampled_from([40, 90])),
        block_tokens=4,
        blocks=draw(st.integers(4, 24)),
        chunk_align=align,
        chunk_limit=align * draw(st.integers(1, 6)) + draw(st.integers(0, 3)),
        candidates=8,
    )


REQUEST = st.tuples(
    st.integers(1, 3),  # choices
    st.integers(1, 60),  # prompt
    st.integers(1, 30),  # max_tokens
    st.sampled_from([0, 0, 0, -3, 7]),  # priority
)
TICK = st.tuples(
    st.lists(REQUEST, max_size=3),
    st.lists(st.integers(0, 60), max_size=2),  # cancels, by number of the choice
    st.lists(st.integers(0, 60), max_size=2),  # stops
)
LOAD = st.lists(TICK, max_size=25)
ANSWERS = st.lists(st.lists(st.sampled_from([1, 2, 3, 99]), min_size=1, max_size=4), min_size=1)


class Audit:
    """Follows the steps from outside and checks each."""

    def __init__(self, limits: EngineLimits, scheduler: Scheduler) -> None:
        self.limits = limits
        self.scheduler = scheduler
        self.read: dict[int, int] = {}
        self.open: dict[int, tuple] = {}

    def step(self, step: Step) -> None:
        plan = step.plan
        self.scheduler.check()
        stats = self.scheduler.statistics()
        assert stats.queued <= QUEUE_LIMIT
        assert stats.active + stats.prefilling <= self.limits.slots
        if plan is None:
            assert not self.scheduler.has_work
            return
        decoding = self._decoding()
        for slot in plan.closes:
            del self.open[slot], self.read[slot]
        decoding -= set(plan.closes)
        for opened in plan.opens:
            footprint = opened.request.prompt_tokens + opened.request.max_tokens
            assert len(opened.blocks) == -(-footprint // self.limits.block_tokens)
            self.open[opened.slot] = (opened.request, opened.blocks)
            self.read[opened.slot] = 0
        blocks = [b for _, held in self.open.values() for b in held]
        assert len(blocks) == len(set(blocks))
        # Every choice whose prompt is read decodes in every step.
        assert {row.slot for row in plan.decodes} == decoding
        self._chunks(plan, bool(decoding))

    def _decoding(self) -> set[int]:
        return {s for s, (r, _) in self.open.items() if self.read[s] == r.prompt_tokens}

    def _chunks(self, plan, busy: bool) -> None:
        align = self.limits.chunk_align
        budgets = self.scheduler.budgets
        rows = 0
        for chunk in plan.prefills:
            prompt = self.open[chunk.slot][0].prompt_tokens
            assert chunk.start == self.read[chunk.slot]
            assert chunk.start % align == 0
            self.read[chunk.slot] += chunk.count
            assert self.read[chunk.slot] <= prompt
            assert chunk.last == (self.read[chunk.slot] == prompt)
            assert chunk.last or chunk.count % align == 0
            rows += -(-chunk.count // align) * align
        assert rows <= (budgets.busy if busy else budgets.idle) <= self.limits.chunk_limit
        unread = [s for s, (r, _) in self.open.items() if self.read[s] < r.prompt_tokens]
        assert not unread or plan.prefills


def play(limits, load, answers, auto):
    scheduler = Scheduler(
        limits, queue_limit=QUEUE_LIMIT, prefill_budget_tokens=-1 if auto else limits.chunk_align
    )
    turns = iter(range(10**9))
    driver = Driver(scheduler, lambda s, n: answers[next(turns) % len(answers)])
    audit = Audit(limits, scheduler)
    ids: list[str] = []
    for number, (requests, cancels, stops) in enumerate(load):
        submits = []
        for which, (choices, prompt, most, priority) in enumerate(requests):
            for k in range(choices):
                submits.append(submit(f"{number}.{which}-{k}", prompt, most, priority))
        ids += [s.id for s in submits]
        named = tuple(ids[c] for c in cancels if c < len(ids))
        stopped = tuple(ids[c] for c in stops if c < len(ids))
        audit.step(driver.tick(*submits, cancels=named, stops=stopped))
    # Bounded: each step reads an aligned unit or commits a token for every open slot.
    for _ in range(len(ids) * 100):
        if not scheduler.has_work:
            break
        audit.step(driver.tick())
    return driver, ids


@settings(max_examples=100, deadline=None)
@given(engine_limits(), LOAD, ANSWERS, st.booleans())
def test_any_load_ends_clean(limits, load, answers, auto):
    driver, ids = play(limits, load, answers, auto)
    scheduler = driver.scheduler
    assert not scheduler.has_work
    stats = scheduler.statistics()
    assert (stats.blocks_in_use, stats.active, stats.prefilling, stats.queued) == (0, 0, 0, 0)
    ends = Counter(o.id for o in driver.outcomes if isinstance(o, Retired | Refused))
    assert ends == Counter(ids)
    # All choices of one request fared alike at the door.
    refused = {o.id for o in driver.outcomes if isinstance(o, Refused)}
    cancelled = {o.id for o in driver.outcomes if isinstance(o, Retired) and o.reason == 3}
    for choice_id in refused:
        request = choice_id.rpartition("-")[0]
        assert all(i in refused | cancelled for i in ids if i.startswith(request + "-"))


@settings(max_examples=50, deadline=None)
@given(engine_limits(), LOAD, ANSWERS, st.booleans())
def test_the_same_records_and_verdicts_give_the_same_operations(limits, load, answers, auto):
    first, second = (play(limits, load, answers, auto)[0] for _ in range(2))
    assert first.scheduler.digest() == second.scheduler.digest()
    assert first.outcomes == second.outcomes


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([-5, 0, 5])), min_size=60, max_size=160)
)
def test_nobody_is_overtaken_more_than_the_bound(requests):
    limits = EngineLimits(3, 100, 64, 4, 12, 8, 64, 8)
    driver = Driver(Scheduler(limits, queue_limit=1000))
    arrived: list[str] = []
    for number, (prompt, priority) in enumerate(requests):
        arrived.append(f"r{number}-0")
        driver.tick(submit(arrived[-1], prompt, 1 + number % 7, priority))
    driver.run()
    admitted = [o.id for o in driver.outcomes if isinstance(o, Admitted)]
    assert sorted(admitted) == sorted(arrived)
    order = {choice_id: index for index, choice_id in enumerate(arrived)}
    for place, choice_id in enumerate(admitted):
        younger = sum(order[other] > order[choice_id] for other in admitted[:place])
        assert younger <= OVERTAKES
