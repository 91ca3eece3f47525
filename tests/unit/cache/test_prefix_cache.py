"""What is found is what was kept, whatever came between; and the books balance."""

from __future__ import annotations

from cache_drive import Conversation, Requests
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.cache.entry import Kind
from dgpp.cache.explain import explain
from dgpp.cache.shape import CacheShape
from dgpp.sched.request import pack_ids


def shape(**changes) -> CacheShape:
    base = {
        "align": 4,
        "block_tokens": 4,
        "chunk": 16,
        "snapshots": 16,
        "min_tokens": 0,
    }
    return CacheShape(**{**base, **changes})


def tokens(*parts: tuple[int, int]) -> list[int]:
    """Parts of (seed, length), so that equal parts are equal texts."""
    return [(seed * 1009 + i * 31) % 997 for seed, length in parts for i in range(length)]


def test_the_next_turn_finds_the_last_one_with_its_answer():
    requests = Requests(shape(), 64)
    first, answer = tokens((1, 30)), tokens((2, 11))
    assert requests.serve(first, answer) == 0
    # 41 tokens, the last of which was never fed: ten units of four.
    assert requests.serve([*first, *answer, *tokens((3, 9))], [7]) == 40


def test_one_token_is_always_left_to_compute():
    requests = Requests(shape(), 64)
    prompt = tokens((1, 32))
    requests.serve(prompt, [5])
    assert requests.serve(prompt, [5]) == 28
    assert requests.serve(prompt[:31], [5]) == 28
    assert requests.serve(prompt[:28], [5]) == 24


def test_the_end_of_a_prompt_that_is_read_in_any_case_is_not_looked_up():
    requests = Requests(shape(reread=10), 64)
    prompt = tokens((1, 32))
    requests.serve(prompt, [5])
    assert requests.serve(prompt, [5]) == 20
    assert requests.serve([*prompt, *tokens((2, 9))], [5]) == 28
    assert requests.serve(prompt[:10], [5]) == 0
    assert requests.serve(prompt[:6], [5]) == 0
    # An entry serves its own cut alone: it is where the same prompt can be continued from.
    for boundaries in ([], [30], [9]):
        requests = Requests(shape(reread=10, paged_only=False, heads=False), 64)
        requests.serve(prompt, [5], boundaries=boundaries)
        cut = 8 if boundaries == [9] else 20
        assert requests.serve(prompt, [5], boundaries=boundaries) == cut


def test_a_shared_beginning_is_found_at_any_cut_of_paged_state():
    requests = Requests(shape(), 64)
    requests.serve(tokens((1, 22), (2, 20)), [5])
    assert requests.serve(tokens((1, 22), (3, 20)), [5]) == 20


def test_fixed_state_is_found_only_where_a_snapshot_was_taken():
    requests = Requests(shape(paged_only=False), 64)
    prompt = tokens((1, 22), (2, 20))
    requests.serve(prompt, [5], boundaries=[22])
    # The head at the boundary's cut, 20, serves both; nothing ends at 16.
    assert requests.serve(tokens((1, 22), (3, 20)), [5], boundaries=[22]) == 20
    assert requests.serve(tokens((1, 18), (3, 20)), [5]) == 0


def test_a_cut_inside_a_block_is_kept_in_a_block_of_its_own():
    for paged_only in (True, False):
        requests = Requests(shape(block_tokens=16, paged_only=paged_only), 64)
        first, answer = tokens((1, 21)), tokens((2, 18))
        requests.serve(first, answer)
        # 39 tokens: two whole blocks, and six rows of a third, of which four end at a cut.
        assert requests.serve([*first, *answer, *tokens((3, 9))], [7]) == 36
        # What came after it did not change the copy.
        assert requests.serve([*first, *answer, *tokens((4, 9))], [7]) == 36


def test_what_drafts_looked_ahead_at_must_match_too():
    prompt = tokens((1, 24))
    plain, ahead = Requests(shape(), 64), Requests(shape(lookahead=1), 64)
    for requests in (plain, ahead):
        requests.serve([*prompt, 500, *tokens((2, 7))], [7])
    other = [*prompt, 501, *tokens((3, 7))]
    assert plain.serve(other, [7]) == 24
    assert ahead.serve(other, [7]) == 20
    assert ahead.serve([*prompt, 500, *tokens((4, 7))], [7]) == 24


def test_prompts_below_the_least_length_leave_nothing():
    requests = Requests(shape(min_tokens=32), 64)
    requests.serve(tokens((1, 20)), [7])
    assert len(requests.cache) == 0
    requests.serve(tokens((1, 40)), [7])
    assert requests.serve(tokens((1, 40)), [7]) == 36


def test_decode_rows_are_kept_only_where_that_is_asked_for_and_are_told_apart():
    first, answer = tokens((1, 30)), tokens((2, 11))
    following = [*first, *answer, *tokens((3, 9))]
    requests = Requests(shape(close=False), 64)
    requests.serve(first, answer)
    assert requests.serve(following, [7]) == 28
    requests = Requests(shape(), 64)
    requests.serve(first, answer)
    match = requests.cache.match(pack_ids(following), len(following))
    # Of the ten units the last three hold rows that decode wrote (30 … 39).
    assert (match.tokens, match.decoded) == (40, 12)


def test_a_victim_loses_its_end_first():
    requests = Requests(shape(), 32)
    long = tokens((1, 90))
    requests.serve(long, [7])
    requests.serve(tokens((2, 60)), [7])
    # 32 blocks: 16 are the second request's, so 16 of the first's 22 units were left.
    assert requests.cache.counters.evictions == 1
    assert requests.serve(long, [7]) == 64


def test_a_long_prompt_of_fixed_state_leaves_a_body_for_another_question():
    requests = Requests(shape(paged_only=False), 64)
    requests.serve(tokens((1, 70), (2, 10)), [7])
    kinds = {entry.position: entry.kind for entry in requests.cache.entries()}
    # 80 tokens are five chunks of 16: the body ends one chunk before the last whole one.
    assert kinds == {64: Kind.BODY, 76: Kind.TAIL, 80: Kind.CLOSE}
    assert requests.serve(tokens((1, 70), (3, 10)), [7]) == 64


def test_misses_are_explained():
    requests = Requests(shape(), 40)
    cache = requests.cache

    def why(prompt: list[int]) -> str:
        packed, count = pack_ids(prompt), len(prompt)
        match = cache.match(packed, count)
        return explain(cache, packed, count, match, cache.missed(packed, count, match))

    prompt = tokens((1, 61))
    assert why(prompt) == "the cache is empty"
    requests.serve(prompt, [7])
    assert why(prompt) == ""
    assert why(tokens((9, 30))) == "nothing in common with the 1 entries"
    assert why([*prompt[:33], *tokens((5, 20))]) == "it differs from what is cached at token 33"
    requests.serve(tokens((2, 158)), [7])
    assert why(prompt) == "an entry of 60 tokens was evicted, 1 evictions ago"


def test_misses_of_fixed_state_and_of_drafts_are_explained():
    requests = Requests(shape(paged_only=False, lookahead=1), 64)
    cache = requests.cache
    prompt = tokens((1, 42))
    requests.serve(prompt, [7])

    def why(asked: list[int]) -> str:
        packed = pack_ids(asked)
        return explain(cache, packed, len(asked), cache.match(packed, len(asked)))

    assert (
        why(prompt[:30]) == "28 tokens are the same as before, but no entry ends at a cut of them"
    )
    changed = [*prompt[:4], 998, *tokens((3, 9))]
    assert why(changed) == "what follows token 4 is another, and drafts depend on it"


SHAPES = st.builds(
    shape,
    align=st.sampled_from([4, 8]),
    block_tokens=st.sampled_from([4, 8, 16]),
    snapshots=st.integers(1, 12),
    paged_only=st.booleans(),
    lookahead=st.integers(0, 1),
    min_tokens=st.sampled_from([0, 20]),
    heads=st.booleans(),
    close=st.booleans(),
)
TURNS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40)


@settings(max_examples=120, deadline=None)
@given(SHAPES, TURNS, st.integers(24, 90))
def test_any_mix_of_conversations_finds_only_what_it_said(shape, turns, blocks):
    requests = Requests(shape, blocks)
    system = tokens((77, 18))
    conversations: dict[int, Conversation] = {}
    room = blocks * shape.block_tokens
    for who, back in turns:
        talk = conversations.setdefault(who, Conversation(who, system if who % 2 else [], 7))
        prompt, answer, boundaries = talk.turn()
        if len(prompt) + len(answer) > room:
            del conversations[who]
            continue
        if back:
            prompt = prompt[: max(1, len(prompt) - back * 5)]
            boundaries = [b for b in boundaries if b < len(prompt)]
        requests.serve(prompt, answer, boundaries)
    while requests.pool.reclaimable:
        requests.cache.begin_tick()
        assert requests.cache.reclaim(requests.pool.free + 1)
        requests.check()
    assert requests.pool.free == blocks
    assert requests.cache.tree.nodes == 0


@settings(max_examples=30, deadline=None)
@given(SHAPES, TURNS)
def test_the_same_requests_give_the_same_decisions(shape, turns):
    digests = []
    for _ in range(2):
        requests = Requests(shape, 48)
        for who, _ in turns:
            requests.serve(*Conversation(who, [], 9).turn())
        requests.cache.decisions.fold()
        digests.append((requests.cache.decisions.digest(), requests.cache.counters))
    assert digests[0] == digests[1]
