from __future__ import annotations

import json
from pathlib import Path

import pytest

from dgpp.text.codec import TextCodec
from dgpp.text.errors import TemplateError
from dgpp.text.messages import Message
from dgpp.text.metered import Meter
from dgpp.text.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def render(source: str, steps: int = 10_000, size: int = 20_000, **variables: object) -> str:
    return ChatTemplate(source).render(MESSAGES, variables, meter=Meter(steps, size))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ('{{ {"b": "<é>", "a": 1} | tojson }}', '{"b": "<é>", "a": 1}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        (
            (
                "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}"
                "{{ m.role }}{% endfor %}"
            ),
            "user",
        ),
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/2 2/2 "),
        (
            "{% for k, v in messages[0].items() %}{{ k ~ '=' ~ v ~ ';' }}{% endfor %}",
            "role=user;content=a;",
        ),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "b"),
        (
            (
                "{% set ns = namespace(n=0) %}{% for i in range(3) %}"
                "{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"
            ),
            "3",
        ),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a' + 'b') }}", "<ab>"),
        ("{{ messages[::-1][0].content.strip().split('|') | join(',') }}", "b"),
        (
            "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(messages | length * 10 ** 20) }}",
            "2" + "0" * 20,
        ),
        ("{{ missing is defined }}{{ bos_token }}", "False"),
    ],
)
def test_what_templates_rely_on(source: str, expected: str) -> None:
    assert render(source) == expected


def test_strftime_tells_the_callers_time() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}")
    assert template.render([], {}, now=1_700_000_000.0) == "2023"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages.nothing.role }}", "nothing"),
        ("{{ none + 'x' }}", "NoneType"),
        ("{{ 1 / 0 }}", "division"),
        ("{% for i in range(19999) %}{% for j in range(19999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ 'a' * 99999999 }}", "more than"),
        ("{{ 'a'.ljust(99999999) }}", "asks for 99999999"),
        ("{{ 9 ** 999 }}", "power"),
        (
            (
                "{% set ns = namespace(s='a') %}{% for i in range(99) %}"
                "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
            ),
            "more than",
        ),
        (
            (
                "{% set ns = namespace(s='a') %}{% for i in range(99) %}"
                "{% set ns.s = ns.s + ns.s %}{% endfor %}"
            ),
            "more than",
        ),
        ("{% for i in range(9999) %}{{ 'abcd' }}{% endfor %}", "too long"),
    ],
)
def test_faults_and_bombs_are_named(source: str, named: str) -> None:
    with pytest.raises(TemplateError, match=named):
        render(source)


def test_a_broken_template_names_its_line() -> None:
    with pytest.raises(TemplateError, match="line 2"):
        ChatTemplate("ok\n{% if %}")


def test_where_a_template_comes_from(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "c"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.load(tmp_path).source == "c"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "j"}')
    assert ChatTemplate.load(tmp_path).source == "j"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert ChatTemplate.load(tmp_path).source == "jinja"


def test_no_template_refuses_chat(codec: TextCodec) -> None:
    with pytest.raises(TemplateError, match="no chat template"):
        TextCodec(codec.tokenizer, None).chat([Message("user", "x")])


def test_the_thinking_switch_reaches_either_name(codec: TextCodec) -> None:
    for name in ("enable_thinking", "thinking"):
        template = ChatTemplate(f"{{{{ 'on' if {name} else 'off' }}}}")
        found = TextCodec(codec.tokenizer, template)
        for switch, text in ((True, "on"), (False, "off")):
            ids = found.chat([Message("user", "x")], {"enable_thinking": switch})
            assert codec.tokenizer.decode(ids) == text
