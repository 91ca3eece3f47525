"""What renders a model's conversations: the template of its release, or rules where it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dgpp.checkpoint.json_file import read_object
from dgpp.text.deepseek import VERSIONS, DeepSeekTemplate
from dgpp.text.template import ChatTemplate


class PromptTemplate(Protocol):
    """`source` holds every character that the template itself can write."""

    @property
    def source(self) -> str: ...

    def reads(self, name: str) -> bool:
        """Whether a variable `name` can change what is rendered."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        now: float = 0.0,
    ) -> str:
        """The prompt for `messages`, up to where the answer begins. Raises TemplateError."""
        ...


def load_template(model_dir: str | Path) -> PromptTemplate | None:
    """The template in `model_dir`, by its files, else by its config.json's `model_type`; None where
    neither tells. Raises TemplateError or TokenizerError naming the file or line at fault."""
    found = ChatTemplate.load(model_dir)
    if found is not None:
        return found
    kind = (read_object(Path(model_dir) / "config.json") or {}).get("model_type")
    version = VERSIONS.get(kind) if isinstance(kind, str) else None
    return None if version is None else DeepSeekTemplate(version)
