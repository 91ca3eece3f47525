"""The version of this tree: `0.1.0`, or `0.1.0+g<sha12>[.dirty]` in a git checkout."""

import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

_GIT_TIMEOUT_S = 20


def checkout_root() -> Path | None:
    """The git checkout that this package runs from, if it does."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / ".git").exists() and (root / "pyproject.toml").is_file() else None


def stamped(base: str, described: str) -> str:
    """`base` with what `git describe --always --dirty` says of the tree."""
    sha, _, dirty = described.strip().partition("-")
    if not sha:
        return base
    return f"{base}+g{sha[:12]}" + (".dirty" if dirty else "")


@cache
def version() -> str:
    """The version that `dgpp --version`, the metrics and the journal state."""
    base = metadata.version("dgpp")
    root = checkout_root()
    if root is None:
        return base
    describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    try:
        # In a group of its own: a Ctrl-C that cut it short would make this another version.
        done = subprocess.run(
            ["git", "-C", str(root), *describe],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            process_group=0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return base
    return stamped(base, done.stdout if done.returncode == 0 else "")
