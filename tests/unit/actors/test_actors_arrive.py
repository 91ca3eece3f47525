"""Prompts travel once, however many choices continue them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from actors.messages.tokenizer_scheduler import Arrive, ToScheduler
from actors.ticking import without_prompts
from dgpp.sched.plan import Open, Plan
from dgpp.sched.request import Submit, pack_ids


def submits(prompts, n):
    return tuple(
        Submit(f"r-{index}", prompts[index // n], 5, seed=index)
        for index in range(len(prompts) * n)
    )


@given(
    st.lists(st.lists(st.integers(0, 500), min_size=1), min_size=1, max_size=5), st.integers(1, 6)
)
def test_submissions_arrive_as_they_were(ids, n):
    prompts = tuple(map(pack_ids, ids))
    sent = submits(prompts, n)
    packed = msgspec.msgpack.encode(Arrive.of("r", sent, prompts))
    assert msgspec.msgpack.decode(packed, type=ToScheduler).submits() == sent


def test_a_message_grows_with_the_prompts_and_not_with_their_choices():
    prompt = pack_ids(range(100_000))
    packed = msgspec.msgpack.encode(Arrive.of("r", submits((prompt,), 128), (prompt,)))
    assert len(packed) < 1.1 * len(prompt)


def test_the_samplers_plan_has_no_prompts_and_all_else():
    request = Submit("r-0", pack_ids([1, 2, 3]), 5, seed=9)
    plan = Plan(4, (1,), (Open(2, request, (7, 8)),))
    bare = without_prompts(plan)
    assert bare.opens[0].request == msgspec.structs.replace(request, prompt=b"")
    assert (bare.step, bare.closes, bare.opens[0].blocks) == (4, (1,), (7, 8))
    assert without_prompts(Plan(5)) == Plan(5)
