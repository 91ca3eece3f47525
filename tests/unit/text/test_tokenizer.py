from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dgpp.errors import CheckpointError
from dgpp.text.codec import TextCodec
from dgpp.text.errors import TokenizerError, TokenRangeError
from dgpp.text.messages import Message, ToolCall
from dgpp.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"
CONTROLS = ["<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "<|endoftext|>"]
hostile = st.lists(
    st.one_of(
        st.sampled_from([*CONTROLS, "<|im_", "end|>", "<", "\ufdd0", "\n"]), st.text(max_size=5)
    ),
    max_size=8,
).map("".join)
plain = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=40)


def spec() -> dict:
    return json.loads((TINY / "tokenizer.json").read_text())


@given(plain)
def test_ids_of_plain_text_are_the_librarys(
    codec: TextCodec, library: tokenizers.Tokenizer, text: str
) -> None:
    assert codec.prompt(text) == library.encode(text, add_special_tokens=False).ids


@given(st.lists(st.one_of(st.sampled_from(CONTROLS), plain), max_size=6).map("".join))
def test_ids_with_controls_are_the_librarys(
    codec: TextCodec, library: tokenizers.Tokenizer, text: str
) -> None:
    ids = library.encode(text, add_special_tokens=False).ids
    assert codec.tokenizer.encode(text, controls=True) == ids
    assert codec.tokenizer.decode(ids, skip_special=False) == text


@given(hostile)
def test_raw_prompt_never_holds_a_control(codec: TextCodec, text: str) -> None:
    ids = codec.prompt(text)
    assert not set(ids) & set(codec.tokenizer.controls.values())
    assert codec.tokenizer.decode(ids) == text


def conversation(text: str) -> list[Message]:
    call = ToolCall("c", "f", json.dumps({text: [text, {"k": text}]}))
    return [
        Message("system", text),
        Message("user", text, name="n"),
        Message("assistant", "", reasoning=text, tool_calls=(call,)),
        Message("tool", text, tool_call_id="c"),
    ]


@given(plain)
def test_chat_of_plain_text_is_the_librarys_encode_of_the_rendering(
    codec: TextCodec, library: tokenizers.Tokenizer, text: str
) -> None:
    arguments = json.dumps({text: [text, {"k": text}]}, ensure_ascii=False)
    rendered = (
        f"<|im_start|>system\n{text}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
        f"<|im_start|>assistant\n<think>{text}</think>"
        f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call><|im_end|>\n'
        f"<|im_start|>tool\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )
    expected = library.encode(rendered, add_special_tokens=False).ids
    assert codec.chat(conversation(text)) == expected


@given(hostile)
def test_chat_keeps_client_text_out_of_the_controls(codec: TextCodec, text: str) -> None:
    names = {number: name for name, number in codec.tokenizer.controls.items()}
    ids = codec.chat(conversation(text))
    assert [names[token] for token in ids if token in names] == [
        *["<|im_start|>", "<|im_end|>"] * 2,
        *["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"],
        *["<|im_start|>", "<|im_end|>", "<|im_start|>"],
    ]
    quoted = json.dumps({text: [text, {"k": text}]}, ensure_ascii=False)
    decoded = codec.tokenizer.decode(ids, skip_special=False)
    assert decoded.count(text) >= 4
    assert quoted in decoded


@given(hostile)
def test_an_answers_own_markers_return_but_never_specials(codec: TextCodec, text: str) -> None:
    ids = codec.chat([Message("user", "x"), Message("assistant", f"<think>{text}</think>ok")])
    special = {codec.tokenizer.controls[name] for name in codec.tokenizer.special}
    assert [token for token in ids if token in special] == [473, 474, 473, 474, 473]
    start = ids.index(475)
    assert codec.tokenizer.decode(ids[start:], skip_special=False).startswith(f"<think>{text}")


def test_stop_ids_are_the_union_transformers_29279(codec: TextCodec, tmp_path: Path) -> None:
    assert codec.tokenizer.stop_ids == {472, 474}
    folder = shutil.copytree(TINY, tmp_path / "m")
    (folder / "config.json").write_text('{"vocab_size": 512, "eos_token_id": [509, 510]}')
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["eos_token"] = {"content": "<think>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = TextCodec.load(folder)
    assert found.tokenizer.stop_ids == {472, 475, 509, 510}
    assert found.stop_ids == {472, 474, 475, 509, 510}, "the template ends turns with <|im_end|>"
    assert found.tokenizer.vocab_size == 512
    assert found.tokenizer.decode([511]) == ""


def test_vocabulary_and_ids_must_agree(codec: TextCodec) -> None:
    with pytest.raises(TokenizerError, match="id 478, the model's vocab_size is 400"):
        Tokenizer(spec(), 400)
    with pytest.raises(TokenRangeError, match="479"):
        codec.tokenizer.check([0, 479])
    with pytest.raises(TokenRangeError, match="-1"):
        codec.tokenizer.check([-1])
    codec.tokenizer.check([0, 478])


def test_controls_listed_in_the_vocabulary_stay_out_of_reach() -> None:
    """With ignore_merges a vocabulary entry is found whole."""
    shape = spec()
    word = copy.deepcopy(shape["added_tokens"][0]) | {"id": 479, "content": "xyzzy"}
    shape["added_tokens"].append(word)
    shape["model"]["vocab"]["xyzzy"] = 479
    shape["model"]["ignore_merges"] = True
    tokenizer = Tokenizer(shape)
    ids = tokenizer.encode("xyzzy")
    assert 479 not in ids
    assert tokenizer.decode(ids) == "xyzzy"
    assert tokenizer.encode("xyzzy", controls=True) == [479]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": {"type": "Unigram"}}, "model.type is 'Unigram'"),
        ({"decoder": {"type": "Metaspace"}}, "decoder.type"),
        ({"pre_tokenizer": None}, "pre_tokenizer is None"),
    ],
)
def test_other_shapes_are_refused_by_field(change: dict, named: str) -> None:
    with pytest.raises(TokenizerError, match=named):
        Tokenizer(spec() | change)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json in"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a JSON object"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer.load(tmp_path)
