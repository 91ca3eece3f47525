"""tokenizer → scheduler."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from dgpp.sched.request import Submit


class Arrive(msgspec.Struct, frozen=True, tag=True):
    """All choices of request `id`, to be queued or refused together.

    Each prompt travels once, whatever `n` is: `choices` have none of their own, the first
    len(choices) / len(prompts) of them continue prompt 0, the next as many prompt 1, and so on.
    """

    id: str
    prompts: tuple[bytes, ...]
    choices: tuple[Submit, ...]

    @classmethod
    def of(cls, request: str, submits: tuple[Submit, ...], prompts: tuple[bytes, ...]) -> Arrive:
        return cls(request, prompts, tuple(replace(submit, prompt=b"") for submit in submits))

    def submits(self) -> tuple[Submit, ...]:
        """The choices with their prompts, which those of one prompt share."""
        each = len(self.choices) // len(self.prompts)
        return tuple(
            replace(choice, prompt=self.prompts[index // each])
            for index, choice in enumerate(self.choices)
        )


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """A stop string was met in submission `id`: its later tokens are not wanted."""

    id: str


ToScheduler = Arrive | Stopped
