"""Rows of tables that the last tokens name, against Python's own integers."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_oracles import random_part

from kernels_numba.tables import NgramHash
from kernels_numba.weights import Form, Part

VOCAB, RESET, PAD = 40, 7, 3
CLASSES = np.random.default_rng(1).integers(0, 30, VOCAB).astype(np.int32)
# 2-, 3- and 4-grams of two heads each; the products reach 2^62.
HOW = NgramHash(
    multipliers=(115_292_150_460_684_697, 98_765_432_109_876_543, 3, 77_777_777_777_777_777),
    primes=(11, 13, 17, 19, 23, 29),
    pad=PAD,
    reset=RESET,
)


def ids_of(how: NgramHash, text: list[int], at: int) -> list[int]:
    """The rows that token `at` of `text` names, in the words of the description."""
    classes = range(VOCAB) if how.classes is None else how.classes.tolist()
    mix, found, seen = classes[text[at]] * how.multipliers[0], [], []
    for back in range(1, len(how.multipliers)):
        seen.append(text[at - back] if at >= back else how.reset)
        value = how.pad if how.reset in seen else classes[seen[-1]]
        mix ^= value * how.multipliers[back]
        found.append(mix)
    each = len(how.primes) // len(found)
    return [
        found[head // each] % prime + how.offsets[head] for head, prime in enumerate(how.primes)
    ]


TEXT = st.lists(st.sampled_from([RESET, *range(VOCAB)]), min_size=1, max_size=25)
CUTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8)


@pytest.mark.parametrize("how", [HOW, replace(HOW, classes=CLASSES), replace(HOW, reset=-1)])
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=st.tuples(TEXT, TEXT), cuts=CUTS)
def test_ngrams_of_any_chunks(extended, how, texts, cuts) -> None:
    ngrams, rows = extended.ngrams(how), extended.rows(2, 4)
    ring = extended.store(2, how.history, 1, wide=True)
    read = [0, 0]
    found: list[list[list[int]]] = [[], []]
    for counts in [*cuts, (25, 25)]:
        ends = [min(len(text), at + n) for at, n, text in zip(read, counts, texts, strict=True)]
        rows.count = 0
        for slot in range(2):
            for at in range(read[slot], ends[slot]):
                rows.tokens[rows.count] = texts[slot][at]
                rows.positions[rows.count], rows.slots[rows.count] = at, slot
                rows.count += 1
        extended.begin(rows)
        extended.find_ngrams(rows, ngrams, ring)
        got = extended.read_ngrams(ngrams, rows.count).tolist()
        found[0] += got[: ends[0] - read[0]]
        found[1] += got[ends[0] - read[0] :]
        read = ends
    for slot, text in enumerate(texts):
        assert found[slot] == [ids_of(how, text, at) for at in range(len(text))]


def in_a_file(tmp_path: Path, part: Part) -> Part:
    """The part's codes at an odd offset of a mapped file, and nothing behind them."""
    path = tmp_path / "codes"
    path.write_bytes(b"odd" + part.data.tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    flat = np.frombuffer(mapped, part.data.dtype, part.data.size, 3)
    return replace(part, data=flat.reshape(part.data.shape))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("columns", [8, 160])
@pytest.mark.parametrize("form", [Form.BF16, Form.FP8_CHANNEL])
def test_rows_are_looked_up(extended, tmp_path, form, columns, mapped) -> None:
    sizes, parts, values = (50, 50, 12), [], []
    for number, size in enumerate(sizes):
        part, _ = random_part(form, size, columns, number)
        if form is Form.FP8_CHANNEL:
            # One scale for the whole part, as tables have it.
            part = replace(part, scale=np.broadcast_to(part.scale[:1], part.scale.shape))
        values.append(decoded(part))
        if number == 1 and mapped:
            part = in_a_file(tmp_path, part)
        parts.append(part)
    wanted = np.concatenate(values)
    table = extended.table(parts, mapped=mapped)
    ngrams = extended.ngrams(HOW)
    heads, count = len(HOW.primes), 9
    ids = np.random.default_rng(4).integers(-3, 120, (count, heads)) + 1000
    ids[0] = [1000, 1049, 1050, 1099, 1100, 1111]
    ngrams.ids[:count] = ids
    rows = extended.rows(1, 1)
    rows.count = count
    extended.begin(rows)
    out = extended.tensor(heads * columns, wide=True)
    extended.look_up(rows, ngrams, table, out, first=1000)
    got = extended.read(out, count).reshape(count, heads, columns)
    place = ids - 1000
    there = (place >= 0) & (place < sum(sizes))
    expected = np.where(there[:, :, None], wanted[np.where(there, place, 0)], 0)
    np.testing.assert_array_equal(got, expected.astype(np.float32))


def decoded(part: Part) -> np.ndarray:
    """Values of bf16 and e4m3 codes, by the formats' own definitions."""
    if part.form is Form.BF16:
        return (part.data.astype(np.uint32) << 16).view(np.float32)
    code = part.data.astype(np.int64)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent, np.ldexp(8 + mantissa, exponent - 10), np.ldexp(mantissa, -9))
    return (np.where(code < 128, size, -size) * part.scale).astype(np.float32)


def test_dummy_tables(extended) -> None:
    rows, ngrams = extended.rows(1, 1), extended.ngrams(HOW)
    rows.count = 1
    extended.begin(rows)
    ngrams.ids[0] = [0, 1, 2, 97, 98, 99]
    out = extended.tensor(6 * 24, wide=True)
    found = []
    for mapped in (False, True):
        table = extended.dummy_table(Form.FP8_CHANNEL, 100, 24, 5, mapped=mapped)
        extended.look_up(rows, ngrams, table, out)
        found.append(extended.read(out, 1)[0])
    assert 0.01 < found[0].std() < 0.04
    assert not found[1].any()


def test_a_form_whose_rows_lean_on_others_is_refused(extended) -> None:
    part, _ = random_part(Form.FP8_BLOCK, 128, 32, 0)
    with pytest.raises(ValueError, match="FP8_BLOCK"):
        extended.table([part], mapped=False)
