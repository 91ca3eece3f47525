"""Rotary angles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.config.engine_settings import RopeScaling
from dgpp.errors import ConfigError
from kernels_numba.backend import Backend, Tensor

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Yarn:
    """Frequencies stretched by `factor`, those that turn often over `original` positions left as
    they are: more than `beta_fast` turns; less than `beta_slow` are stretched whole."""

    factor: float
    original: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attn_factor: float = 1.0

    @property
    def attention_factor(self) -> float:
        """What families that scale cosines and sines scale them by."""
        scale = 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0
        return scale * self.attn_factor

    def band(self, rotated: int, theta: float) -> tuple[int, int]:
        """The first and last frequency that are stretched in part."""

        def turning(turns: float) -> float:
            ratio = self.original / (turns * 2 * math.pi)
            return rotated * math.log(ratio) / (2 * math.log(theta))

        low, high = math.floor(turning(self.beta_fast)), math.ceil(turning(self.beta_slow))
        return max(low, 0), min(high, rotated - 1)

    def stretched(
        self, frequencies: npt.NDArray[np.float32], theta: float
    ) -> npt.NDArray[np.float32]:
        """float32 [rotated / 2] of the same."""
        low, high = self.band(2 * frequencies.size, theta)
        width = np.float32(high - low) if high > low else np.float32(0.001)
        places = np.arange(frequencies.size, dtype=np.float32) - np.float32(low)
        ramp = (places / width).clip(0, 1)
        slow = frequencies / np.float32(self.factor)
        mixed: npt.NDArray[np.float32] = slow * ramp + frequencies * (np.float32(1.0) - ramp)
        return mixed.astype(np.float32)


def rotary_angles(
    positions: int, rotated: int, theta: float, yarn: Yarn | None = None
) -> npt.NDArray[np.float32]:
    """float32 [positions, rotated / 2]: position · theta^(−2i / rotated), rounded at each step."""
    exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
    frequencies = (np.float32(1.0) / np.power(np.float32(theta), exponents)).astype(np.float32)
    if yarn is not None:
        frequencies = yarn.stretched(frequencies, theta)
    return np.outer(np.arange(positions, dtype=np.float32), frequencies).astype(np.float32)


def rotary_table(
    ops: Backend, positions: int, rotated: int, theta: float, yarn: Yarn | None = None
) -> Tensor:
    """The backend's table of these angles; stretched ones are scaled by their attention factor,
    which reaches the rotated values of queries and keys alone."""
    angles = rotary_angles(positions, rotated, theta, yarn)
    return ops.rotary_table(angles, 1.0 if yarn is None else yarn.attention_factor)


def stretched_context(config: T, rope_scaling: RopeScaling) -> T:
    """A family's `config` with `yarn` and as many positions as `engine.rope_scaling` gives it.

    Raises ConfigError where it was trained for another context than the key says.
    """
    trained = rope_scaling.original_max_position_embeddings
    said: int = getattr(config, "max_position_embeddings")  # noqa: B009 - any family's field
    if trained != said:
        raise ConfigError(
            f"engine.rope_scaling.original_max_position_embeddings: {trained}, config.json's "
            f"max_position_embeddings is {said}"
        )
    if rope_scaling.factor < 1:
        raise ConfigError(f"engine.rope_scaling.factor: {rope_scaling.factor} shortens the context")
    yarn = Yarn(
        rope_scaling.factor,
        trained * rope_scaling.mrope_cache_factor,
        rope_scaling.beta_fast,
        rope_scaling.beta_slow,
        rope_scaling.attn_factor,
    )
    return msgspec.structs.replace(
        config, yarn=yarn, max_position_embeddings=int(trained * rope_scaling.factor)
    )
