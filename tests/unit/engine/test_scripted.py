import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.engine.base import Engine
from dgpp.engine.script import load_script, max_drafts, parse_script
from dgpp.engine.scripted import ScriptedEngine
from dgpp.errors import ConfigError
from dgpp.sample.params import SamplingParams
from dgpp.sample.sampler import NeedRows, Sampled, Sampler
from dgpp.sample.tables import allocate_tables
from dgpp.sched.limits import EngineLimits
from dgpp.sched.outcomes import Retired
from dgpp.sched.plan import Open, Plan, PrefillChunk
from dgpp.sched.request import Record, Submit, pack_ids
from dgpp.sched.scheduler import Scheduler
from dgpp.sched.verdict import Finish
from dgpp.text.delta import RowLogprobs

VOCAB = 70
LIMITS = EngineLimits(3, VOCAB, 512, 8, 200, 16, 64, 8)
GREEDY = SamplingParams(temperature=0.0)


class World:
    """Scheduler, scripted engine and sampler, as many plans ahead as may be."""

    def __init__(self, script=b"", seed=0, depth=0):
        lines = parse_script(script, VOCAB) if script else []
        limits = msgspec.structs.replace(LIMITS, depth=depth)
        engine: Engine = ScriptedEngine(limits, lines, seed=seed)
        self.engine = engine
        self.scheduler = Scheduler(engine.limits, prefill_budget_tokens=16)
        self.sampler = Sampler(LIMITS.slots)
        self.tables = allocate_tables(LIMITS.slots, VOCAB, engine.limits.max_drafts + 1)
        self.answers: dict[str, list[int]] = {}
        self.sizes: dict[str, list[int]] = {}
        self.scored: dict[str, list[RowLogprobs]] = {}
        self.ends: dict[str, Retired] = {}
        self.rows: list[int] = []
        self.asked = 0
        self.out: list[Plan] = []
        self._record = 0

    def tick(self, *submits, masks=None, **ends):
        step = self.scheduler.tick(Record(self._record, submits, **ends))
        self._record += 1
        self._note(step.outcomes)
        for slot, mask in (masks or {}).items():
            self.tables.masked[slot] = 1
            self.tables.mask[slot] = mask
        if step.plan is not None:
            self.engine.launch(step.plan, self.tables)
            self.out.append(step.plan)
        while self.out and not self.scheduler.may_tick:
            self._decide(self.out.pop(0))

    def _decide(self, plan):
        self.sampler.prepare(plan)
        found = self.engine.collect(plan.step)
        self.rows.append(len(found.drafts))
        for told in self.sampler.scores(self.engine.scored):
            self.scored.setdefault(told.id, []).extend(told.prompt)
        result = self.sampler.step(plan, found)
        if isinstance(result, NeedRows):
            self.asked += len(result.rows)
            result = self.sampler.resume(self.engine.full_rows(plan.step, result.rows))
        assert isinstance(result, Sampled)
        for part in result.steps:
            self.answers.setdefault(part.id, []).extend(part.tokens)
            self.sizes.setdefault(part.id, []).append(len(part.tokens))
        self._note(self.scheduler.apply(result.verdict))

    def run(self, **how):
        while self.scheduler.has_work:
            self.tick(**how)

    def _note(self, outcomes):
        self.ends |= {o.id: o for o in outcomes if isinstance(o, Retired)}


def ask(choice_id, most, params=GREEDY, **rest):
    return Submit(choice_id, pack_ids(range(1, 30)), most, params, **rest)


SCRIPT = b'{"ids": [10, 11, 12, 13, 14], "per_step": [1, 3, 2]}\n\n{"ids": [20]}\n'


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_p=0.3)])
def test_lines_go_round_over_choices_and_within_themselves(params):
    world = World(SCRIPT)
    assert world.engine.limits.max_drafts == 2
    world.tick(ask("a-0", 12, params), ask("a-1", 3, params), ask("b-0", 5, params))
    world.run()
    assert world.answers == {
        "a-0": [10, 11, 12, 13, 14, 10, 11, 12, 13, 14, 10, 11],
        "a-1": [20] * 3,
        "b-0": [10, 11, 12, 13, 14],
    }
    # One with the prompt, then per_step in turn, never past the limit.
    assert world.sizes["a-0"] == [1, 1, 3, 2, 1, 3, 1]
    assert world.sizes["b-0"] == [1, 1, 3]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_p=0.3)])
@pytest.mark.parametrize("undecided", [0, 1, 2, 5])
def test_plans_ahead_of_verdicts_give_the_scripted_ids(params, undecided):
    script = f'{{"ids": [10, 11, 12, 13, 14], "undecided": {undecided}}}\n{{"ids": [20]}}'
    world = World(script.encode(), depth=1)
    for number, most in enumerate((12, 3, 7, 9)):
        world.tick(ask(f"r{number}-0", most, params, stop_ids=(14,) if number == 2 else ()))
    world.run()
    assert world.answers == {
        "r0-0": [10, 11, 12, 13, 14, 10, 11, 12, 13, 14, 10, 11],
        "r1-0": [20] * 3,
        "r2-0": [10, 11, 12, 13, 14],
        "r3-0": [20] * 9,
    }
    # A list that leaves a token open decides the greedy one all the same.
    assert (world.asked > 0) == (undecided > 0 and params is not GREEDY)
    assert world.scheduler.statistics().blocks_in_use == 0


def test_no_row_lies_beyond_the_limit():
    world = World(b'{"ids": [10], "per_step": [3]}')
    world.tick(ask("a-0", 6))
    world.run()
    # Two chunks of prompt, the second with the first token; 3 and 2 more; the close.
    assert world.rows == [0, 1, 3, 2, 0]


def test_an_end_id_inside_a_step_ends_it():
    world = World(SCRIPT)
    world.tick(ask("a-0", 50, stop_ids=(12,)))
    world.run()
    assert world.answers["a-0"] == [10, 11, 12]
    assert world.ends["a-0"].reason.name == "EOS"


def test_random_ids_depend_on_seed_and_number_alone():
    def play(seed):
        world = World(seed=seed)
        world.tick(ask("a-0", 30), ask("b-0", 30))
        world.run()
        return world.answers

    first = play(1)
    assert first == play(1)
    assert first != play(2)
    assert first["a-0"] != first["b-0"]
    assert all(0 <= t < VOCAB for t in first["a-0"])
    assert len(set(first["a-0"])) > 10


def mask_of(*allowed):
    words = np.zeros(-(-VOCAB // 32), np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << (token % 32))
    return words


@pytest.mark.parametrize("lowest", [0, 31, 32, 69])
def test_a_forbidden_id_becomes_the_lowest_allowed(lowest):
    world = World(b'{"ids": [10, 11, 12, 13], "per_step": [3]}')
    world.tick(ask("a-0", 6), masks={0: mask_of(lowest, 69, 11)})
    world.run(masks={0: mask_of(lowest, 69, 11)})
    low = min(lowest, 11)
    assert world.answers["a-0"] == [low, 11, low, low, low, 11]


def test_a_mask_that_forbids_all_ends_the_choice():
    world = World(b'{"ids": [10]}')
    world.tick(ask("a-0", 6))
    world.run(masks={0: mask_of()})
    assert world.ends["a-0"].reason.name == "EOS"


def test_rows_in_full_are_what_the_candidates_say():
    engine = ScriptedEngine(LIMITS, parse_script(b'{"ids": [10]}', VOCAB))
    request = ask("a-0", 6)
    plan = Plan(0, (), (Open(0, request, ()),), (PrefillChunk(0, 0, 29, last=True),))
    engine.launch(plan, allocate_tables(3, VOCAB))
    c = engine.collect(0)
    assert (c.ids.tolist(), c.held.tolist(), c.drafts.tolist()) == ([[10]], [1], [-1])
    (row,) = engine.full_rows(0, [0])
    assert row[10] == 0.0
    assert np.isneginf(np.delete(row, 10)).all()
    assert row.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
            st.lists(st.integers(1, 4), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.integers(1, 20), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.7]),
)
def test_steps_of_any_size_give_the_scripted_ids(script, lengths, temperature):
    text = "\n".join(
        f'{{"ids": {ids}, "per_step": {per_step}}}' for ids, per_step in script
    ).encode()
    world = World(text)
    params = SamplingParams(temperature=temperature)
    for number, most in enumerate(lengths):
        world.tick(ask(f"r{number}-0", most, params))
    world.run()
    for number, most in enumerate(lengths):
        ids = script[number % len(script)][0]
        assert world.answers[f"r{number}-0"] == [ids[n % len(ids)] for n in range(most)]
    assert world.scheduler.statistics().blocks_in_use == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no line with ids"),
        (b'{"ids": [1]}\n{"ids": []}', "line 2: ids is empty"),
        (b'{"ids": [70]}', r"line 1: ids\[0\] = 70 is outside 0..69"),
        (b'{"ids": [1, -1]}', r"ids\[1\] = -1"),
        (b'{"ids": [1], "per_step": [0]}', r"per_step\[0\] = 0 is outside 1..16"),
        (b'{"ids": [1], "per_step": [17]}', r"per_step\[0\] = 17"),
        (b'{"ids": [1], "per_step": []}', "per_step is empty"),
        (b'{"ids": [1], "undecided": -1}', r"undecided\[0\] = -1"),
        (b'{"ids": "x"}', r"line 1: .*ids"),
        (b'{"ids": [1.5]}', r"line 1: .*ids"),
        (b'{"per_step": [1]}', "line 1: .*ids"),
        (b'{"ids": [1], "speed": 2}', "line 1: .*speed"),
        (b'{"ids": [1]', "line 1: "),
        (b"\xff", "line 1: "),
    ],
)
def test_faults_of_a_script_are_named(text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_script(text, VOCAB, "f.jsonl")
    assert "engine.script = f.jsonl" in str(caught.value)


def test_a_script_is_read_from_its_file(tmp_path):
    path = tmp_path / "script.jsonl"
    path.write_bytes(SCRIPT)
    lines = load_script(path, VOCAB)
    assert [line.ids for line in lines] == [(10, 11, 12, 13, 14), (20,)]
    assert max_drafts(lines) == 2
    with pytest.raises(ConfigError, match="No such file"):
        load_script(tmp_path / "none.jsonl", VOCAB)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_that_is_only_read_ends_with_its_last_row(depth):
    script = b'{"ids": [10, 11, 12, 13, 14]}'
    world = World(script, depth=depth)
    world.tick(ask("mate-0", 9))
    world.tick(ask("read-0", 0, scored=2), ask("unscored-0", 0), ask("one-0", 1, scored=0))
    world.run()
    assert world.answers["read-0"] == world.answers["unscored-0"] == []
    assert world.answers["mate-0"] == [10, 11, 12, 13, 14, 10, 11, 12, 13]
    assert world.ends["read-0"] == Retired("read-0", Finish.LENGTH, 0)
    assert len(world.answers["one-0"]) == 1
    row = RowLogprobs(-math.log(VOCAB), (0, 1), (-math.log(VOCAB),) * 2)
    assert world.scored == {
        "read-0": [row] * 28,
        "one-0": [RowLogprobs(-math.log(VOCAB))] * 28,
    }
    world.scheduler.check()
    assert world.scheduler.statistics().blocks_in_use == 0
