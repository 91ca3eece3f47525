"""Text to token ids and back, over a model's own tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import tokenizers

from dgpp.checkpoint.json_file import read_object
from dgpp.text.bytelevel import TokenBytes
from dgpp.text.calls.format import MARKERS
from dgpp.text.errors import PromptTooLongError, TokenizerError, TokenRangeError
from dgpp.text.guard import ControlGuard


class Tokenizer:
    """A byte-level BPE vocabulary in which plain text and control tokens are kept apart.

    The library's own encoder is loaded without the added tokens, so that no text reaches them;
    `encode_rendered` places them itself. Safe to use from several threads.

    `controls`    text of each added token and its id
    `special`     the texts among them that are special: they never show in an answer
    `vocab_size`  the model's (config.json), which may be more than the ids that have a text
    `stop_ids`    ids that end a turn, united from generation_config, config and tokenizer_config
    `named`       bos_token, eos_token and the like, as templates use them
    """

    def __init__(self, spec: dict[str, Any], vocab_size: int | None = None) -> None:
        """`spec`: the content of a tokenizer.json. Raises TokenizerError on other shapes."""
        _check_shape(spec)
        added = spec.get("added_tokens") or []
        self.controls: dict[str, int] = {token["content"]: token["id"] for token in added}
        self.special = frozenset(token["content"] for token in added if token["special"])
        self.stop_ids: frozenset[int] = frozenset()
        self.named: dict[str, str] = {}
        self._plain = _plain_encoder(spec, self.controls)
        self._texts = {number: text for text, number in self.controls.items()}
        # Characters that one token stands for at most; a normaliser may join four into one.
        joined = 4 if spec.get("normalizer") else 1
        self._widest = joined * max(map(len, [*spec["model"]["vocab"], *self.controls]), default=1)
        highest = max([*spec["model"]["vocab"].values(), *self._texts], default=-1)
        self.vocab_size = highest + 1 if vocab_size is None else vocab_size
        if highest >= self.vocab_size:
            raise TokenizerError(
                f"tokenizer.json holds id {highest}, the model's vocab_size is {self.vocab_size}"
            )
        self.bytes = TokenBytes(
            self._plain.id_to_token,
            self._texts,
            frozenset(self.controls[text] for text in self.special - MARKERS),
        )
        self.guard = ControlGuard(self.controls)
        kept = self.controls.keys() - MARKERS
        self.answer_guard = ControlGuard({text: self.controls[text] for text in kept})

    @classmethod
    def load(cls, model_dir: str | Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json, config.json and generation_config.json.

        Only the first must exist. Raises TokenizerError naming the file at fault.
        """
        folder = Path(model_dir)
        spec = read_object(folder / "tokenizer.json")
        if spec is None:
            raise TokenizerError(f"no tokenizer.json in {folder}")
        model = read_object(folder / "config.json") or {}
        text_model = model.get("text_config") or model
        tokenizer = cls(spec, text_model.get("vocab_size"))
        settings = read_object(folder / "tokenizer_config.json") or {}
        tokenizer.named = _named_tokens(settings)
        generation = read_object(folder / "generation_config.json") or {}
        stops = stop_ids(model, generation)
        eos = tokenizer.named.get("eos_token")
        if eos is not None and (found := tokenizer.token_id(eos)) is not None:
            stops.add(found)
        tokenizer.stop_ids = frozenset(stops)
        tokenizer.check(tokenizer.stop_ids)
        return tokenizer

    def encode(self, text: str, *, controls: bool = False, most: int | None = None) -> list[int]:
        """Ids of `text`; the texts of control tokens in it are only read as such if asked.

        Raises PromptTooLongError where they are more than `most`.
        """
        return self._encode(self.guard.split(text, None) if controls else [text], len(text), most)

    def encode_rendered(
        self, rendered: str, sentinel: str | None, most: int | None = None
    ) -> list[int]:
        """Ids of a rendered prompt, in which `sentinel` marks client text (`ControlGuard`).

        Raises PromptTooLongError where they are more than `most`.
        """
        size = len(rendered) - (rendered.count(sentinel) if sentinel else 0)
        return self._encode(self.guard.split(rendered, sentinel), size, most)

    def _encode(self, pieces: Iterable[str | int], size: int, most: int | None) -> list[int]:
        """Ids of `pieces`, `size` characters in all, in one call that lets other threads run.

        A text that must be too long is refused before it is encoded, and one that turns out so
        before its ids become Python numbers: both would take seconds for what a client can send.
        """
        if most is not None and (least := size // self._widest) > most:
            raise PromptTooLongError(f"The prompt has at least {least} tokens", least)
        parts = list(pieces)
        texts = [part for part in parts if isinstance(part, str)]
        encoded = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        total = len(parts) - len(texts) + sum(map(len, encoded))
        if most is not None and total > most:
            raise PromptTooLongError(f"The prompt has {total} tokens", total)
        encodings = iter(encoded)
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(next(encodings).ids)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        if skip_special:
            return b"".join(map(self.bytes.raw, ids)).decode("utf-8", "replace")
        return b"".join(self.bytes.named(token)[1] for token in ids).decode("utf-8", "replace")

    def token_id(self, text: str) -> int | None:
        """The id of a control token or vocabulary entry."""
        found = self.controls.get(text)
        if found is None:
            found = self._plain.token_to_id(text)
        return found

    def check(self, ids: Iterable[int]) -> None:
        """Raises TokenRangeError where an id is not below `vocab_size`."""
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise TokenRangeError(f"token id {token} is not below {self.vocab_size}")


def _check_shape(spec: dict[str, Any]) -> None:
    model = spec.get("model") or {}
    stages = spec.get("pre_tokenizer") or {}
    last = (stages.get("pretokenizers") or [stages])[-1]
    wanted = {
        "model.type": (model.get("type"), "BPE"),
        "model.byte_fallback": (model.get("byte_fallback") or False, False),
        "model.dropout": (model.get("dropout"), None),
        "pre_tokenizer": (last.get("type"), "ByteLevel"),
        "pre_tokenizer.add_prefix_space": (last.get("add_prefix_space"), False),
        "decoder.type": ((spec.get("decoder") or {}).get("type"), "ByteLevel"),
    }
    for field, (value, served) in wanted.items():
        if value != served:
            raise TokenizerError(f"tokenizer.json: {field} is {value!r}, only {served!r} is served")
    for token in spec.get("added_tokens") or []:
        for flag in ("single_word", "lstrip", "rstrip"):
            if token.get(flag):
                name = token["content"]
                raise TokenizerError(f"tokenizer.json: {flag} of {name!r} is not served")
        if not token["content"]:
            raise TokenizerError("tokenizer.json: an added token is empty")


def _plain_encoder(spec: dict[str, Any], controls: dict[str, int]) -> tokenizers.Tokenizer:
    """The encoder without added tokens, also where the vocabulary itself lists them."""
    model = spec["model"]
    listed = controls.keys() & model["vocab"].keys()
    if listed:
        joined = {
            "".join(m) if isinstance(m, list) else m.replace(" ", "") for m in model["merges"]
        }
        kept = {text: n for text, n in model["vocab"].items() if text not in listed - joined}
        model = {**model, "vocab": kept}
    bare = {**spec, "model": model, "added_tokens": [], "post_processor": None}
    try:
        encoder: tokenizers.Tokenizer = tokenizers.Tokenizer.from_buffer(orjson.dumps(bare))
    except Exception as error:
        raise TokenizerError(f"tokenizer.json: {error}") from error
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, …: strings, or objects with a `content`."""
    named = {}
    for key, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            named[key] = text
    return named


def stop_ids(*settings: dict[str, Any]) -> set[int]:
    """What config.json, its text part and generation_config.json call end tokens."""
    parts = [part for one in settings for part in (one, one.get("text_config") or {})]
    return {token for part in parts for token in _ids(part)}


def _ids(settings: dict[str, Any]) -> list[int]:
    found = settings.get("eos_token_id")
    if found is None:
        return []
    return [found] if isinstance(found, int) else [int(token) for token in found]
