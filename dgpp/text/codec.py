"""Requests to token ids: a tokenizer and the chat template that goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dgpp.text.dialect import PLAIN, THINK_OPEN, Dialect, dialect_of
from dgpp.text.efforts import both_names
from dgpp.text.errors import TemplateError
from dgpp.text.guard import choose_sentinel
from dgpp.text.messages import Message, Tool, client_texts, template_message, template_tool
from dgpp.text.prompt_template import PromptTemplate, load_template
from dgpp.text.roles import role_markers
from dgpp.text.tokenizer import Tokenizer

_ANSWER = "Zebra"
_TAIL = 16
"""Ids that the open think tag and the white space behind it may have."""
_KEEP_REASONING = {"clear_thinking": False, "drop_thinking": False, "preserve_thinking": True}
"""Switches by which templates show the reasoning of earlier turns."""


class TextCodec:
    """All that turns a request's text into ids. Safe to use from several threads.

    `stop_ids` are the tokenizer's and the control token that ends an answer in the template.
    `dialect` is how the model marks reasoning and calls, as the template shows it, `role_markers`
    the control tokens with which a role's turn begins.
    """

    def __init__(self, tokenizer: Tokenizer, template: PromptTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.stop_ids = tokenizer.stop_ids | self._end_of_turn()
        self.dialect = self._dialect()
        self.role_markers = self._role_markers()

    @classmethod
    def load(cls, model_dir: str | Path) -> TextCodec:
        """Raises TokenizerError or TemplateError naming the file or line at fault."""
        return cls(Tokenizer.load(model_dir), load_template(model_dir))

    def chat(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, bool | str] | None = None,
        *,
        tools: Sequence[Tool] = (),
        now: float = 0.0,
        most: int | None = None,
    ) -> list[int]:
        """Ids of the rendered conversation; text of the client's never becomes a control token.

        An answer's content is the exception for the markers of reasoning and calls: the model
        wrote them as such, and the history must read as it was written.
        Raises TemplateError, and PromptTooLongError where the ids are more than `most`.
        """
        if self.template is None:
            raise TemplateError("this model has no chat template")
        try:
            shown = [tool.definition for tool in tools]
            sentinel = choose_sentinel([*client_texts(messages), *shown, self.template.source])
        except ValueError as error:
            raise TemplateError(str(error)) from error
        mark = partial(self.tokenizer.guard.mark, sentinel=sentinel)
        mark_answer = partial(self.tokenizer.answer_guard.mark, sentinel=sentinel)
        given: dict[str, Any] = {**self.tokenizer.named, **both_names(variables or {})}
        if tools:
            given["tools"] = [template_tool(tool, mark) for tool in tools]
        rendered = self.template.render(
            [template_message(message, mark, mark_answer) for message in messages], given, now=now
        )
        return self.tokenizer.encode_rendered(rendered, sentinel, most)

    def prompt(self, text: str, *, most: int | None = None) -> list[int]:
        """Ids of a raw prompt; the texts of control tokens in it stay text.

        Raises PromptTooLongError where they are more than `most`.
        """
        return self.tokenizer.encode(text, most=most)

    def opens_reasoning(self, ids: Sequence[int]) -> bool:
        """Whether a prompt leaves the think tag open, so that the answer begins inside it."""
        if self.dialect.thinking is None:
            return False
        tail = b"".join(self.tokenizer.bytes.named(token)[1] for token in ids[-_TAIL:])
        return tail.rstrip().endswith(THINK_OPEN)

    def _dialect(self) -> Dialect:
        template = self.template
        if template is None:
            return PLAIN
        given: dict[str, Any] = {**self.tokenizer.named, **_KEEP_REASONING}
        return dialect_of(lambda messages: template.render(messages, given))

    def _role_markers(self) -> frozenset[int]:
        template = self.template
        if template is None:
            return frozenset()
        named = self.tokenizer.named
        return role_markers(
            lambda turns: template.render(turns, named), self.tokenizer.answer_guard
        )

    def _end_of_turn(self) -> frozenset[int]:
        """What the template puts behind an answer: the first special token there."""
        if self.template is None:
            return frozenset()
        turns = [("user", "Hi"), ("assistant", _ANSWER), ("user", "Hi")]
        try:
            rendered = self.template.render(
                [{"role": role, "content": text} for role, text in turns], self.tokenizer.named
            )
        except TemplateError:
            return frozenset()
        pieces = self.tokenizer.answer_guard.split(rendered.partition(_ANSWER)[2], None)
        return frozenset([piece for piece in pieces if isinstance(piece, int)][:1])
