"""Which releases are installed in a folder of them."""

from __future__ import annotations

from pathlib import Path

UNFINISHED = ".unfinished"
"""In a release until all of it is there."""
HAVE_PROGRAM = "install that dgpp on every node (a release: `dgpp install`), or name --bin"
"""What to do where there is none."""


def installed(releases: Path) -> list[str]:
    """The versions in `releases`, in order of their names."""
    if not releases.is_dir():
        return []
    return sorted(
        folder.name
        for folder in releases.iterdir()
        if program_of(folder).exists() and not (folder / UNFINISHED).exists()
    )


def program_of(release: Path) -> Path:
    """Its dgpp."""
    return release / "venv" / "bin" / "dgpp"
