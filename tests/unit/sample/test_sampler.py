import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_rows import candidates

from dgpp.sample.params import SamplingParams
from dgpp.sample.rows import CandidatesMismatchError
from dgpp.sample.sampler import NeedRows, Sampled, Sampler, SamplerOrderError
from dgpp.sample.slot import PickMismatchError
from dgpp.sample.tables import TableWriter, allocate_tables
from dgpp.sched.plan import FED, DecodeRow, Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids
from dgpp.sched.verdict import Finish, SlotVerdict

VOCAB = 40
GREEDY = SamplingParams(temperature=0.0)


def submit(params=GREEDY, *, choice_id="a-0", most=50, stop_ids=(), seed=3):
    return Submit(choice_id, pack_ids([1, 2, 2]), most, params, seed, stop_ids)


def opened(*submits, slots=4):
    """A sampler whose slots 0, 1, … hold `submits`."""
    sampler = Sampler(slots)
    sampler.prepare(Plan(0, opens=tuple(Open(i, s, ()) for i, s in enumerate(submits))))
    return sampler


def decode(*slots, step=1):
    return Plan(step, decodes=tuple(DecodeRow(s, 3, 1) for s in slots))


def language(context, temperature=1.0, seed=0):
    """Logits of a toy model: they depend on the last two tokens alone."""
    key = [seed, *(t + 1 for t in context[-2:])]
    return np.random.default_rng(key).normal(0, 2.0, VOCAB).astype(np.float32)


def supply(sampler, result, rows):
    """Answer NeedRows from the whole `rows` until the step is decided."""
    asked = 0
    while isinstance(result, NeedRows):
        assert result.rows
        asked += len(result.rows)
        result = sampler.resume(np.asarray([rows[r] for r in result.rows], np.float32))
    return result, asked


def generate(params, tokens, *, drafter=None, width=VOCAB, stop_ids=(), seed=3):
    """Decode `tokens` tokens; `drafter(context, n)` proposes what is fed behind the last token."""
    sampler = opened(submit(params, most=tokens, stop_ids=stop_ids, seed=seed))
    context, reported, finish, asked = [1, 2, 2], [], Finish.NONE, 0
    turn = 0
    while finish is Finish.NONE:
        fed = drafter(context, turn) if drafter else []
        rows = [language(context + fed[:n]) for n in range(len(fed) + 1)]
        row_candidates = candidates(
            rows, [params.temperature] * len(rows), [*fed, -1], min(width, VOCAB)
        )
        result, more = supply(sampler, sampler.step(decode(0), row_candidates), rows)
        asked += more
        (step,) = result.steps
        context += step.tokens
        reported += step.logprobs
        finish = step.finish
        turn += 1
    return context[3:], reported, finish, turn, asked


SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=1.0, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.9, logprobs=0),
    SamplingParams(temperature=1.3, top_k=6, min_p=0.02),
]


@pytest.mark.parametrize("params", SAMPLINGS)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, VOCAB), max_size=4), min_size=1, max_size=6), st.data())
def test_drafts_never_change_the_answer(params, pattern, data):
    seed = data.draw(st.integers(0, 2**64 - 1))
    stop_ids = tuple(data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=2)))
    plain = generate(params, 12, stop_ids=stop_ids, seed=seed)
    answer = plain[0]

    def drafter(context, turn):
        # VOCAB stands for the right token, anything else for a guess.
        done = len(context) - 3
        guesses = pattern[turn % len(pattern)][: 12 - done - 1]
        right = [*answer[done:], *([0] * 8)]
        return [right[n] if g == VOCAB else g for n, g in enumerate(guesses)]

    drafted = generate(params, 12, drafter=drafter, stop_ids=stop_ids, seed=seed)
    assert drafted[:3] == plain[:3]


@pytest.mark.parametrize("params", SAMPLINGS)
@pytest.mark.parametrize("width", [1, 3, 12])
def test_the_width_of_the_candidates_never_changes_the_answer(params, width):
    wide = generate(params, 40)
    narrow = generate(params, 40, width=width)
    assert narrow[:3] == wide[:3]
    assert wide[4] == 0


def test_a_narrow_list_asks_for_whole_rows():
    assert generate(SamplingParams(), 40, width=3)[4] > 0


def test_right_drafts_save_steps():
    answer = generate(GREEDY, 12)[0]
    fast = generate(GREEDY, 12, drafter=lambda c, _: answer[len(c) - 3 : len(c)][: 14 - len(c)])
    assert fast[0] == answer
    assert fast[3] == 3  # 12 tokens, four a step


def test_the_same_seed_gives_the_same_text_in_any_slot_and_company():
    params = SamplingParams(temperature=1.0)
    alone = generate(params, 10)[0]
    others = submit(params, choice_id="b-0", seed=99)
    sampler = opened(others, others, submit(params, most=10))
    context = [1, 2, 2]
    for _ in range(10):
        rows = [language([5, 6]), language(context), language([7, 8])]
        result = sampler.step(
            Plan(1, decodes=tuple(DecodeRow(s, 3, 1) for s in (0, 2, 1))),
            candidates(rows, [1.0] * 3, [-1] * 3, VOCAB),
        )
        context += result.steps[1].tokens
    assert context[3:] == alone


def one_hot(token):
    row = np.full(VOCAB, -np.inf, np.float32)
    row[token] = 0.0
    return row


def test_rows_are_numbered_prefills_first_and_drafts_stand_together():
    sampler = opened(submit(), submit(choice_id="b-0", most=1), submit(choice_id="c-0"))
    plan = Plan(
        7,
        prefills=(PrefillChunk(2, 0, 1, last=False), PrefillChunk(1, 0, 3, last=True)),
        decodes=(DecodeRow(0, 3, 1),),
    )
    rows = [one_hot(4), one_hot(5), one_hot(6), one_hot(7)]
    result = sampler.step(plan, candidates(rows, [0.0] * 4, [-1, 5, 9, -1], 8))
    assert isinstance(result, Sampled)
    assert result.verdict.step == 7
    # Row 1 gives 5 as drafted; row 2 gives 6, not the drafted 9, so row 3 does not count.
    assert result.verdict.slots == (SlotVerdict(1, (4,), Finish.LENGTH), SlotVerdict(0, (5, 6)))
    assert [s.id for s in result.steps] == ["b-0", "a-0"]


def test_an_end_token_ends_the_step():
    sampler = opened(submit(stop_ids=(5,)))
    result = sampler.step(decode(0), candidates([one_hot(5), one_hot(6)], [0.0] * 2, [5, -1], 4))
    assert result.verdict.slots == (SlotVerdict(0, (5,), Finish.EOS),)


def test_rows_behind_an_end_token_are_not_looked_at():
    params = SamplingParams(temperature=5.0, logprobs=0)
    sampler = opened(submit(params, stop_ids=(5,)))
    rows = [one_hot(5), language([1, 2]), language([2, 3])]
    # A list of one id would decide neither of the later rows.
    result = sampler.step(decode(0), candidates(rows, [5.0] * 3, [5, 9, -1], 1))
    assert isinstance(result, Sampled)
    (step,) = result.steps
    assert (step.tokens, len(step.logprobs)) == ((5,), 1)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams()])
def test_a_row_with_nothing_allowed_ends_the_choice(params):
    sampler = opened(submit(params))
    nothing = np.full(VOCAB, -np.inf, np.float32)
    result = sampler.step(
        decode(0), candidates([one_hot(5), nothing], [params.temperature] * 2, [5, -1], 4)
    )
    # EOS says that the last token is the end token, which 5 is not: the next step says it.
    assert result.verdict.slots == (SlotVerdict(0, (5,)),)
    result = sampler.step(decode(0), candidates([nothing], [params.temperature], [-1], 4))
    assert result.verdict.slots == (SlotVerdict(0, (), Finish.EOS),)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0)])
def test_what_is_stuck_is_cut_off_and_what_is_complete_ends(params):
    sampler = opened(*(submit(params, choice_id=f"{name}-0") for name in "abc"))
    nothing = np.full(VOCAB, -np.inf, np.float32)
    rows = candidates([nothing, nothing, one_hot(5)], [params.temperature] * 3, [-1] * 3, 4)
    result = sampler.step(decode(0, 1, 2), rows, {0})
    assert result.verdict.slots == (
        SlotVerdict(0, (), Finish.LENGTH),
        SlotVerdict(1, (), Finish.EOS),
        SlotVerdict(2, (5,)),
    )


def test_a_row_of_nans_ends_the_choice_and_nothing_else():
    sampler = opened(submit(SamplingParams()), submit(choice_id="b-0"))
    rows = [np.full(VOCAB, np.nan, np.float32), one_hot(3)]
    c = candidates(rows, [1.0, 0.0], [-1, -1], 4)
    c.present[0] = VOCAB
    c.lse[0] = np.nan
    result, _ = supply(sampler, sampler.step(decode(0, 1), c), rows)
    assert result.verdict.slots == (SlotVerdict(0, (), Finish.EOS), SlotVerdict(1, (3,)))


def test_asking_for_rows_leaves_every_stream_where_it_was():
    params = SamplingParams(temperature=5.0)
    sampler = opened(submit(params), submit(params, choice_id="b-0", seed=8))
    rows = [language([1, 2]), language([3, 4])]
    narrow = candidates(rows, [5.0] * 2, [-1, -1], 1)
    asked = sampler.step(decode(0, 1), narrow)
    assert isinstance(asked, NeedRows)
    again = sampler.resume(np.asarray([rows[r] for r in asked.rows]))
    fresh = opened(submit(params), submit(params, choice_id="b-0", seed=8))
    whole = fresh.step(decode(0, 1), candidates(rows, [5.0] * 2, [-1, -1], VOCAB))
    assert again == whole
    assert [s.draws for s in sampler._slots[:2]] == [1, 1]


def ahead(*slots, step=1):
    return Plan(step, decodes=tuple(DecodeRow(s, 3, FED) for s in slots))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams()])
def test_rows_ahead_count_while_the_engine_feeds_its_own_picks(params):
    sampler = opened(submit(params), submit(params, choice_id="b-0"))
    rows = [one_hot(5), one_hot(6)]
    temperatures = [params.temperature] * 2
    # Slot 1's pick was not made, so that what ran ahead of it says nothing until it is fed again.
    result = sampler.step(decode(0, 1), candidates(rows, temperatures, [-1] * 2, 4, [5, -1]))
    assert result.verdict.slots == (
        SlotVerdict(0, (5,), Finish.NONE, True),
        SlotVerdict(1, (6,), Finish.NONE, False),
    )
    for picks in ([5, 6], [5, -1]):
        result = sampler.step(ahead(0, 1), candidates(rows, temperatures, [-1] * 2, 4, picks))
        assert result.verdict.slots == (SlotVerdict(0, (5,), fed=True), SlotVerdict(1, ()))
        assert [s.id for s in result.steps] == ["a-0"]
    plan = Plan(4, decodes=(DecodeRow(0, 3, FED), DecodeRow(1, 3, 6)))
    result = sampler.step(plan, candidates(rows, temperatures, [-1] * 2, 4, [5, 6]))
    assert [v.tokens for v in result.verdict.slots] == [(5,), (6,)]
    assert [s.produced for s in sampler._slots[:2]] == [4, 2]


def test_rows_behind_the_end_of_a_choice_are_void():
    sampler = opened(submit(stop_ids=(5,)))
    once = candidates([one_hot(5)], [0.0], [-1], 4, [5])
    assert sampler.step(decode(0), once).verdict.slots[0].finish is Finish.EOS
    result = sampler.step(ahead(0), once)
    assert result.verdict.slots == (SlotVerdict(0, ()),)
    assert result.steps == []


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(logprobs=2)])
def test_an_engine_that_feeds_another_token_is_named(params):
    sampler = opened(submit(params))
    wrong = candidates([one_hot(5)], [params.temperature], [-1], 4, [6])
    with pytest.raises(PickMismatchError, match=r"'a-0': the engine picked 6 as token 0.* gives 5"):
        sampler.step(decode(0), wrong)


def test_a_pick_may_stand_where_only_the_report_needs_the_whole_row():
    params = SamplingParams(temperature=0.0, logprobs=5)
    sampler = opened(submit(params))
    row = language([1, 2])
    best = int(row.argmax())
    asked = sampler.step(decode(0), candidates([row], [0.0], [-1], 2, [best]))
    assert isinstance(asked, NeedRows)
    result = sampler.resume(row[None])
    assert result.verdict.slots == (SlotVerdict(0, (best,), fed=True),)


def test_tables_follow_the_slots():
    params = SamplingParams(
        temperature=0.0, presence_penalty=1.0, logit_bias=((7, 2.5), (3, -100.0))
    )
    writer = TableWriter(allocate_tables(3, VOCAB))
    tables = writer.tables
    opens = (Open(0, submit(params), ()), Open(1, submit(choice_id="b-0"), ()))
    writer.advance(Plan(0, opens=opens))
    assert tables.counts[0, [1, 2, 3]].tolist() == [1, 2, 0]
    assert tables.bias[0, [3, 7, 8]].tolist() == [-100.0, 2.5, 0.0]
    assert not tables.counts[1].any()

    for step, token in enumerate((2, 4), 1):
        fed = (DecodeRow(0, 2 + step, token), DecodeRow(1, 2 + step, 9))
        writer.advance(Plan(step, decodes=fed))
    assert tables.counts[0, [1, 2, 4]].tolist() == [1, 3, 1]
    assert not tables.counts[1].any()
    assert [(c.opening, c.ids) for c in tables.changes] == [(1, [2, 4]), (1, []), (0, [])]

    writer.advance(Plan(3, closes=(0, 1), opens=(Open(0, submit(choice_id="c-0"), ()),)))
    assert not tables.counts.any()
    assert not tables.bias.any()
    assert (tables.changes[0].opening, tables.changes[0].ids) == (2, [])


def test_no_end_comes_before_the_least_number_of_tokens():
    params = SamplingParams(min_tokens=2, logit_bias=((7, 2.5),))
    writer = TableWriter(allocate_tables(3, VOCAB))
    bias = writer.tables.bias
    asked = submit(params, stop_ids=(7, 9))
    writer.advance(Plan(0, opens=(Open(0, asked, ()), Open(1, submit(params), ()))))
    # The row at the end of the prompt draws token 1, the one behind it token 2.
    for step, row in enumerate((None, DecodeRow(0, 3, 1)), 1):
        writer.advance(Plan(step, decodes=() if row is None else (row,)))
        assert (bias[0, [7, 9]] < -1e29).all()
        assert bias[0, 8] == 0.0
    writer.advance(Plan(3, decodes=(DecodeRow(0, 4, 1),)))
    assert bias[0, [7, 8, 9]].tolist() == [2.5, 0.0, 0.0]
    assert writer.tables.changes[0].ids == [7, 9]
    # Without an end token there is nothing to rule out.
    assert bias[1, [7, 9]].tolist() == [2.5, 0.0]
    # Who ends early leaves nothing to whoever comes next.
    writer.advance(Plan(4, closes=(0,), opens=(Open(0, asked, ()),)))
    writer.advance(Plan(5, closes=(0,), opens=(Open(0, submit(), ()),)))
    assert not bias[0].any()
    writer.advance(Plan(6, decodes=(DecodeRow(0, 9, 1),)))
    assert not bias[0].any()


def test_breaches_of_the_order_are_named():
    sampler = opened(submit())
    with pytest.raises(SamplerOrderError, match="slot 2"):
        sampler.step(decode(2), candidates([one_hot(1)], [0.0], [-1], 4))
    with pytest.raises(CandidatesMismatchError, match="end 1 slots, the plan samples 2"):
        sampler.step(decode(0, 1), candidates([one_hot(1)], [0.0], [-1], 4))
    with pytest.raises(CandidatesMismatchError):
        sampler.step(decode(0), candidates([one_hot(1), one_hot(1)], [0.0] * 2, [-1, 3], 4))
    with pytest.raises(SamplerOrderError, match="1 whole rows came, asked for: 0"):
        sampler.resume(np.zeros((1, VOCAB), np.float32))


def test_a_plan_that_samples_nothing_has_an_empty_verdict():
    sampler = opened(submit())
    empty = candidates(np.zeros((0, VOCAB)), [], [], 4)
    result = sampler.step(Plan(3, closes=(0,)), empty)
    assert result.verdict.slots == ()
    assert result.verdict.step == 3
