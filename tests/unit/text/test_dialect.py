"""The dialect of a model is read off its template."""

from __future__ import annotations

import json
from functools import partial

import pytest
import vendors

from dgpp.text.calls.format import DSML_V4, DSML_V41, FORMATS, GLM, MIMO, QWEN
from dgpp.text.dialect import Dialect, Thinking, dialect_of
from dgpp.text.template import ChatTemplate

VENDORS = {
    "GLM-5.3": Dialect(Thinking(False, b""), GLM, trimmed=True),
    "GLM-5.3-Flash": Dialect(Thinking(False, b""), GLM, trimmed=True),
    "GLM-4.7-Flash": Dialect(Thinking(True, b""), GLM, trimmed=True),
    "MiMo-V2.6": Dialect(Thinking(False, b""), MIMO, trimmed=False),
    "Qwen3.8": Dialect(Thinking(True, b"\n\n"), QWEN, trimmed=True, gap=b"\n\n"),
    "deepseek_v4": Dialect(Thinking(False, b""), DSML_V4, trimmed=False, gap=b"\n\n"),
    "deepseek_v41": Dialect(Thinking(False, b""), DSML_V41, trimmed=False, gap=b"\n\n"),
}


def found(source: str) -> Dialect:
    return dialect_of(partial(ChatTemplate(source).render, variables={}))


@vendors.needed
@pytest.mark.parametrize("name", VENDORS)
def test_vendors_templates(name):
    assert vendors.codec(name).dialect == VENDORS[name]


def test_a_template_without_tools_or_reasoning():
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert found(source) == Dialect()
    assert found(source.replace("m.content", "m.content | trim")).trimmed


def test_a_template_that_refuses_calls_is_no_error():
    source = "{% if messages[-1].tool_calls %}{{ raise_exception('no') }}{% endif %}hi"
    assert found(source) == Dialect()


@pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
def test_each_format_is_told_apart(form):
    text = json.dumps(form.write("probe_fn", {"alpha": "Wombat", "beta": 3}), ensure_ascii=False)
    source = "{% for m in messages %}{% if m.tool_calls %}{{ " + text + " }}{% endif %}{% endfor %}"
    assert found(source).calls is form
