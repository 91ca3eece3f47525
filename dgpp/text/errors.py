"""What can go wrong between text and token ids."""

from __future__ import annotations

from dgpp.errors import CheckpointError, DgppError


class TokenizerError(CheckpointError):
    """The model's tokenizer files are missing, malformed or of a shape that is not served."""


class TemplateError(DgppError):
    """A conversation cannot be rendered: the template refused it or exceeded its bounds."""


class NoTokenizerError(DgppError):
    """The model has no tokenizer: only token ids can be served."""

    def __init__(self) -> None:
        super().__init__("this model has no tokenizer: send token ids to /v1/completions")


class TokenRangeError(DgppError):
    """A token id lies outside the model's vocabulary."""


class PromptTooLongError(DgppError):
    """A prompt has more tokens than it may; `tokens` is how many, or a lower bound."""

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens
