"""Where turns begin, as templates of several kinds mark them."""

from __future__ import annotations

import numpy as np
import pytest

from dgpp.sched.request import unpack_ids
from dgpp.text.errors import TemplateError
from dgpp.text.guard import ControlGuard
from dgpp.text.roles import role_boundaries, role_markers

SPECIAL = {"<|im_start|>": 1, "<|im_end|>": 2, "[gMASK]": 3, "<|system|>": 4, "<|user|>": 5}
GUARD = ControlGuard(SPECIAL | {"<|assistant|>": 6})


def chatml(turns):
    return "".join(f"<|im_start|>{t['role']}\n{t['content']}<|im_end|>\n" for t in turns)


def glm(turns):
    return "[gMASK]" + "".join(f"<|{t['role']}|>\n{t['content']}" for t in turns)


def without_system(turns):
    if turns[0]["role"] == "system":
        raise TemplateError("no system role")
    return glm(turns)


@pytest.mark.parametrize(
    ("render", "markers"),
    [(chatml, {1}), (glm, {4, 5, 6}), (without_system, {5, 6}), (lambda turns: "plain", set())],
)
def test_the_token_before_each_role_is_its_marker(render, markers):
    assert role_markers(render, GUARD) == markers


def test_boundaries_are_the_markers_places_but_the_first_one_per_cut():
    ids = np.zeros(40, np.uint32)
    ids[[0, 3, 5, 17, 18, 39]] = 6
    found = role_boundaries(ids, {6, 7}, 8)
    assert unpack_ids(found).tolist() == [3, 17, 39]
    assert role_boundaries(ids, frozenset(), 8) == b""
    assert role_boundaries(np.zeros(3, np.uint32), {6}, 8) == b""


def test_a_real_template(codec):
    names = {codec.tokenizer.decode([token], skip_special=False) for token in codec.role_markers}
    assert names == {"<|im_start|>"}
