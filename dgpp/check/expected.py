"""What a forward pass should give, and how near is near enough."""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.check.noise import Noise, stated_noise
from dgpp.errors import CheckpointError

Array = npt.NDArray[Any]


class Tolerance(msgspec.Struct, frozen=True):
    """|difference| ≤ atol + rtol · |reference|."""

    atol: float
    rtol: float

    def excess(self, got: Array, reference: Array, slack: Array | None = None) -> float:
        """Largest |difference| ÷ allowance; at most 1 passes. NaN counts as infinite. `slack`
        [rows] is allowed besides."""
        wanted = reference.astype(np.float64)
        allowed = self.atol + self.rtol * np.abs(wanted)
        if slack is not None:
            allowed = allowed + slack.reshape(-1, *(1,) * (wanted.ndim - 1))
        ratio = np.abs(got.astype(np.float64) - wanted) / allowed
        return float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0))


class Tolerances(msgspec.Struct, frozen=True):
    """`logits` for float32 arrays, `hidden` for the float16 residuals; `noise` is what bf16 may
    cost, None where that is not stated."""

    logits: Tolerance
    hidden: Tolerance
    variant: str = ""
    noise: Noise | None = None


class _Stated(msgspec.Struct):
    logits: Tolerance
    hidden: Tolerance = msgspec.field(name="hidden (float16)")


class _Entry(msgspec.Struct):
    """What is read of a fixture's entry in index.json."""

    tolerance: _Stated
    variant: str = ""


NOT_COMPARED = {
    "image*": "images are not served",
    "vision_*": "images are not served",
    "mm_*": "prompts with images are not served",
}
"""Arrays that a file may hold though nothing is compared with them, by shell-style names."""
ROUNDED = "qdq_"
"""How arrays begin that are of cached rows rounded as a release rounds them."""
BOUNDED = "bounded_"
"""How arrays begin that are of bounded prefill, after ROUNDED where rows are rounded, too."""
PARTS = (ROUNDED + BOUNDED, ROUNDED, BOUNDED)
SHARED = ("ids", "router_layers", "selected_layers", "dspark_anchor_pos", "bounded_floor")
"""Arrays that those of another beginning are about, too."""


def _part_of(name: str) -> str:
    """How the array's part begins; "" for the plain one."""
    return next((prefix for prefix in PARTS if name.startswith(prefix)), "")


def require_archive(path: Path, place: str = "") -> None:
    """Raise CheckpointError, which begins with `place`, where `path` is no .npz file."""
    if not zipfile.is_zipfile(path):
        said = "expected an .npz archive of arrays, as numpy.savez writes it"
        raise CheckpointError(f"{place}{path}: {said}")


class Expected:
    """The arrays of an expected.npz by name; which there are depends on the family. It remembers
    which of them were asked for, so that a check can say what it left out."""

    def __init__(self, path: Path, required: Sequence[str] = ("ids", "logits")) -> None:
        if path.is_file():
            require_archive(path)
        try:
            with np.load(path, allow_pickle=False) as archive:
                self.arrays: dict[str, Array] = {name: archive[name] for name in archive.files}
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error
        except (ValueError, zipfile.BadZipFile) as error:
            message = f"{path}: not a readable .npz archive: {error}"
            raise CheckpointError(message) from error
        missing = [name for name in required if name not in self.arrays]
        if missing:
            message = f"{path}: array {missing[0]} is missing"
            raise CheckpointError(message)
        self._path = path
        self._read: set[str] = set()
        self._prefix = ""

    def part(self, prefix: str) -> Expected:
        """The arrays whose names begin with `prefix`, under their names without it, beside the
        SHARED ones."""
        found = copy.copy(self)
        found._prefix = prefix
        return found

    def _name(self, name: str) -> str:
        return name if name in SHARED else self._prefix + name

    def __contains__(self, name: str) -> bool:
        return self._name(name) in self.arrays

    def __getitem__(self, name: str) -> Array:
        full = self._name(name)
        self._read.add(full)
        return self.arrays[full]

    def either(self, *names: str) -> Array:
        """The array that has one of `names`. Raises CheckpointError where none has."""
        for name in names:
            if name in self:
                return self[name]
        raise CheckpointError(f"{self._path}: array {names[0]} is missing")

    def unread(self) -> dict[str, str]:
        """Arrays that nothing asked for, with the reason in NOT_COMPARED, or none; of a part those
        that are its own."""
        return {
            name: next((why for at, why in NOT_COMPARED.items() if fnmatchcase(name, at)), "")
            for name in sorted(self.arrays.keys() - self._read)
            if name not in SHARED and _part_of(name) == self._prefix
        }


def _entry_of(expected: Path) -> dict[str, Any] | None:
    """The fixture's entry in the index.json beside its folder; None where there is none."""
    index = expected.parent.parent / "index.json"
    try:
        entries = msgspec.json.decode(index.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            told = (entry.get("path"), entry.get("expected"))
            if told == (expected.parent.name, expected.name):
                return entry
    return None


def stated_tables(expected: Path) -> Path | None:
    """The checkpoint that holds the fixture's n-gram table, where its entry names one."""
    name = (_entry_of(expected) or {}).get("ngram_table_from")
    return expected.parent.parent / name if isinstance(name, str) else None


def stated_tolerances(expected: Path) -> Tolerances | None:
    """From the index.json beside the fixture's folder; None when it has no entry for the file.

    Raises CheckpointError where that entry states no tolerances. Other index files are no matter.
    """
    entry = _entry_of(expected)
    if entry is None:
        return None
    try:
        found = msgspec.convert(entry, _Entry)
        noise = stated_noise(entry)
    except msgspec.ValidationError as error:
        index = expected.parent.parent / "index.json"
        raise CheckpointError(f"{index}: {expected.parent.name}: {error}") from error
    stated = found.tolerance
    return Tolerances(stated.logits, stated.hidden, found.variant, noise)


def uniform_tolerances(value: float) -> Tolerances:
    """One absolute tolerance for everything."""
    return Tolerances(Tolerance(value, 0.0), Tolerance(value, 0.0))
