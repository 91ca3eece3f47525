"""Tool calls and reasoning in every format: however the bytes are cut, one answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.sched.verdict import Finish
from dgpp.text.bytelevel import TokenBytes
from dgpp.text.calls.format import DSML_V4, DSML_V41, FORMATS, GLM, MIMO, QWEN, ToolFormat
from dgpp.text.calls.values import ToolSchema
from dgpp.text.delta import ArgumentsPart, CallPart, ReasoningPart, RowLogprobs, TextPart
from dgpp.text.dialect import Dialect, Thinking
from dgpp.text.output import OutputOptions, OutputStream

BYTES = TokenBytes(lambda _: None, {}, frozenset())
BYTES._raw.update({n: bytes([n]) for n in range(256)})
BYTES._named.update({n: (bytes([n]).decode("utf-8", "replace"), bytes([n])) for n in range(256)})
"""A vocabulary of single bytes: every place is a token's end."""

TOOLS = {
    schema.name: schema
    for schema in (
        ToolSchema("now", None),
        ToolSchema("get_weather", {"properties": {
            "city": {"type": "string"}, "days": {"type": "integer"},
            "units": {"type": "array"}, "wet": {"type": ["boolean", "null"]},
        }}),
        ToolSchema("write_file", {"properties": {
            "path": {"type": "string"}, "content": {"type": "string"},
        }}),
        ToolSchema("open", {"type": "object"}),
        ToolSchema("run_code", None, custom=True),
    )
}  # fmt: skip


@dataclass
class Call:
    id: str
    name: str
    custom: bool
    arguments: str = ""


@dataclass
class Answer:
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    shown: bytes = b""
    finish: str | None = None
    finishes: list[str] = field(default_factory=list)
    tokens: int = 0
    reasoning_tokens: int = 0
    sizes: list[int] = field(default_factory=list, compare=False)


def dialect(form: ToolFormat) -> Dialect:
    exact = form in (MIMO, DSML_V4, DSML_V41)
    after = gap = b"\n\n" if form is QWEN else b""
    if form in (DSML_V4, DSML_V41):
        gap = b"\n\n"
    return Dialect(Thinking(trimmed=form is QWEN, after=after), form, trimmed=not exact, gap=gap)


def run(
    text: str,
    form: ToolFormat = GLM,
    cuts: list[int] | None = None,
    finish: Finish = Finish.EOS,
    **options: object,
) -> Answer:
    """The answer to `text`, fed in steps of `cuts` bytes (one step when None)."""
    asked = OutputOptions(dialect=dialect(form), tools=TOOLS, **options)  # type: ignore[arg-type]
    stream = OutputStream(BYTES, "r", 0, asked)
    tokens = [*text.encode(), *([0] if finish is Finish.EOS else [])]
    bounds, at = [], 0
    for size in cuts or []:
        if at + size >= len(tokens):
            break
        bounds.append((at, at + size))
        at += size
    answer = Answer()
    for low, high in [*bounds, (at, len(tokens))]:
        step = tokens[low:high]
        rows = [RowLogprobs(-0.5)] * len(step)
        delta = stream.feed(step, finish if high == len(tokens) else Finish.NONE, rows)
        if delta is None:
            continue
        for part in delta.parts:
            match part:
                case TextPart():
                    answer.text += part.text
                case ReasoningPart():
                    answer.reasoning += part.text
                case CallPart():
                    assert part.index == len(answer.calls)
                    answer.calls.append(Call(part.id, part.name, part.custom))
                case ArgumentsPart():
                    assert part.index == len(answer.calls) - 1
                    answer.calls[-1].arguments += part.text
                    answer.sizes.append(len(part.text))
        answer.shown += b"".join(entry.raw for entry in delta.logprobs)
        answer.finish = delta.finish
        answer.finishes += [delta.finish] if delta.finish else []
        answer.tokens, answer.reasoning_tokens = delta.completion_tokens, delta.reasoning_tokens
    assert answer.shown.decode("utf-8", "replace") == answer.text
    assert len(answer.finishes) == 1
    assert stream.feed(tokens, finish) is None
    return answer


def calls_text(form: ToolFormat, *calls: tuple[str, dict[str, object]]) -> str:
    return form.block(calls)


def named(answer: Answer) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


every = pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
WEATHER = ("get_weather", {"city": "Köln 🌧", "days": 3, "units": ["mm", "°C"], "wet": None})

pieces = st.sampled_from([
    "a", " ", "\n", "é", "👩‍👩‍👧", "<", ">", "&lt;", "</", '"', "\\", "<think>", "</think>", "STOP",
    "{", "}",
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<function=", "</function>", "<parameter=", "</parameter>", "get_weather", "now", "city",
    "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "<｜DSML｜ calls>",
    '<｜DSML｜invoke name="now">',
    "</｜DSML｜invoke>", '<｜DSML｜parameter name="city" string="true">', "</｜DSML｜parameter>",
    *(calls_text(form, ("now", {})) for form in FORMATS),
    *(calls_text(form, ("write_file", {"path": "a", "content": "\nx\n"})) for form in FORMATS),
    *(calls_text(form, WEATHER) for form in FORMATS),
])  # fmt: skip


@settings(max_examples=150)
@given(
    st.sampled_from(FORMATS),
    st.lists(pieces, max_size=12).map("".join),
    st.lists(st.integers(1, 9), max_size=60),
    st.sampled_from([Finish.EOS, Finish.LENGTH, Finish.CANCELLED, Finish.POOL_EXHAUSTED]),
    st.booleans(),
    st.lists(st.sampled_from(["STOP", "<tool", "a\n", "</think>", "né"]), max_size=2, unique=True),
)
def test_any_cutting_gives_the_same_answer(form, text, cuts, finish, reasoning, stop):
    options = {"reasoning": reasoning, "stop": tuple(stop), "finish": finish}
    whole = run(text, form, **options)
    assert run(text, form, cuts, **options) == whole
    assert run(text, form, [1] * (4 * len(text)), **options) == whole


@every
def test_a_call_is_told_with_its_values_as_declared(form):
    text = calls_text(form, WEATHER)
    for cut in range(1, 12):
        answer = run(text, form, [cut] * len(text.encode()))
        assert named(answer) == [WEATHER]
        assert (answer.text, answer.finish) == ("", "tool_calls")


@every
def test_calls_without_arguments_and_several_of_them(form):
    gap = dialect(form).gap.decode() or "\n"
    answer = run("Look." + gap + calls_text(form, ("now", {}), WEATHER, ("now", {})), form)
    assert named(answer) == [("now", {}), WEATHER, ("now", {})]
    assert len({call.id for call in answer.calls}) == 3
    assert answer.text == ("Look.\n" if form is MIMO else "Look.")


@every
@pytest.mark.parametrize(
    "content",
    ["\nfoo\n", "a &lt; b", "</parameter>", "x</arg_value>y", "</｜DSML｜parameter>", "", " ", "\n",
     '"quoted"', "1", "null", "</parameter>\n</parameter>", "<tool_call>now</tool_call>", "\\n"],
)  # fmt: skip
def test_string_values_are_byte_exact(form, content):
    call = ("write_file", {"path": content, "content": content})
    text = calls_text(form, call)
    assert named(run(text, form, [1] * len(text.encode()))) == [call]


@every
@pytest.mark.parametrize(
    "shape", ["{}", "say {}<function= and {}", "{}\n\n", "{}get_weather is nice"]
)
def test_markers_in_prose_are_text(form, shape):
    text = shape.replace("{}", form.opening.decode())
    answer = run(text, form, [1] * len(text.encode()))
    assert (answer.text, answer.calls, answer.finish) == (text, [], "stop")


@every
def test_without_tools_a_call_is_text(form):
    text = calls_text(form, WEATHER)
    stream = OutputStream(BYTES, "r", 0, OutputOptions(dialect=dialect(form)))
    delta = stream.feed([*text.encode(), 0], Finish.EOS)
    assert delta is not None
    assert (delta.text, delta.finish) == (text, "stop")


@every
def test_an_unknown_function_is_text(form):
    text = calls_text(form, ("rm_rf", {"city": "x"}))
    assert run(text, form).text == text


@every
def test_a_call_cut_off_anywhere_is_no_error(form):
    data = calls_text(form, ("now", {}), WEATHER).encode()
    for end in range(len(data)):
        text = data[:end].decode("utf-8", "ignore")
        answer = run(text, form, finish=Finish.LENGTH)
        assert answer.finish == "length"
        assert run(text, form, [1 + end // 9] * 9, finish=Finish.LENGTH) == answer
        for call in answer.calls:
            for marker in ("arg_value", "parameter", "DSML"):
                assert marker not in call.arguments
        ended = run(text, form)
        assert all(isinstance(json.loads(call.arguments), dict) for call in ended.calls)


@every
def test_a_long_string_streams_as_it_comes(form):
    text = calls_text(form, ("write_file", {"path": "p", "content": "long \n" * 2000}))
    answer = run(text, form, [10] * len(text))
    assert len(answer.sizes) > 1000
    assert max(answer.sizes) < 60


@every
def test_whole_arguments_come_in_one_piece(form):
    text = calls_text(form, WEATHER, ("now", {}))
    answer = run(text, form, [1] * len(text.encode()), whole_arguments=True)
    assert named(answer) == [WEATHER, ("now", {})]
    assert len(answer.sizes) == 2


@every
def test_a_custom_tool_gets_its_text_bare(form):
    answer = run(calls_text(form, ("run_code", {"input": 'print("é")\n'})), form, [1] * 999)
    assert answer.calls[0].custom
    assert answer.calls[0].arguments == 'print("é")\n'


@every
def test_a_named_tool_ends_with_stop(form):
    assert run(calls_text(form, WEATHER), form, forced=True).finish == "stop"


@every
@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_is_split_from_the_answer(form, opened):
    text = ("" if opened else "<think>") + "hm é</think>Yes."
    answer = run(text, form, [1] * 99, reasoning=opened)
    assert (answer.reasoning, answer.text) == ("hm é", "Yes.")
    assert answer.reasoning_tokens == len(text.encode()) - len("Yes.")


def test_white_space_of_the_template_is_no_text():
    answer = run("\nwell\n\n</think>\n\n  code", QWEN, reasoning=True)
    assert (answer.reasoning, answer.text) == ("well", "  code")
    answer = run("\nwell\n</think>\n\n  code\n", MIMO, reasoning=True)
    assert (answer.reasoning, answer.text) == ("\nwell\n", "\n\n  code\n")


@pytest.mark.parametrize("form", [QWEN, MIMO], ids=["qwen", "mimo"])
def test_a_call_inside_the_reasoning_is_a_call(form):
    answer = run("let me see " + calls_text(form, WEATHER), form, [1] * 999, reasoning=True)
    assert answer.reasoning.strip() == "let me see"
    assert named(answer) == [WEATHER]
    assert answer.finish == "tool_calls"


@pytest.mark.parametrize("form", [GLM, DSML_V4, DSML_V41], ids=["glm", "v4", "v4.1"])
def test_elsewhere_it_is_part_of_the_reasoning(form):
    text = calls_text(form, WEATHER)
    answer = run(text + "</think>ok", form, reasoning=True)
    assert (answer.reasoning, answer.text, answer.calls) == (text, "ok", [])


@every
def test_stop_strings_count_in_the_text_alone(form):
    call = calls_text(form, ("write_file", {"path": "STOP", "content": "STOP"}))
    text = f"STOP</think>go {call}STOP on"
    answer = run(text, form, [1] * 999, reasoning=True, stop=("STOP",))
    assert answer.reasoning == "STOP"
    assert answer.text.strip() == "go"
    assert named(answer) == [("write_file", {"path": "STOP", "content": "STOP"})]
    assert answer.finish == "tool_calls"


def test_arguments_that_no_schema_declares_keep_their_json():
    answer = run(calls_text(GLM, ("open", {"n": 1.0, "s": "x", "o": {"a": [1e3]}, "t": True})), GLM)
    assert answer.calls[0].arguments == '{"n": 1.0, "s": "x", "o": {"a": [1000.0]}, "t": true}'


def test_json_that_the_schema_forbids_is_text():
    answer = run(calls_text(GLM, ("get_weather", {"city": 5, "days": "soon"})), GLM)
    assert named(answer) == [("get_weather", {"city": "5", "days": "soon"})]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=75)
@given(
    st.sampled_from(FORMATS),
    st.text(max_size=30),
    st.lists(values.filter(lambda v: not isinstance(v, str)), max_size=2),
    st.integers(1, 40),
)
def test_what_a_template_writes_is_read_back(form, content, others, cut):
    arguments: dict[str, object] = {f"k{i}": value for i, value in enumerate(others)}
    arguments |= {"path": content}
    schema = ToolSchema("f", {"properties": {"path": {"type": "string"}, "k0": {}, "k1": {}}})
    text = calls_text(form, ("f", arguments))
    stream = OutputStream(BYTES, "r", 0, OutputOptions(dialect=dialect(form), tools={"f": schema}))
    data = text.encode()
    told = ""
    for at in range(0, len(data), cut):
        delta = stream.feed(list(data[at : at + cut]))
        if delta is not None:
            told += "".join(p.text for p in delta.parts if isinstance(p, ArgumentsPart))
    delta = stream.feed([0], Finish.EOS)
    assert delta is not None
    assert json.loads(told) == arguments
