"""The deployments that come with dgpp: those of the checkout, or of the release it runs from."""

import sys
from pathlib import Path

from dgpp.config.version import checkout_root


def templates_folder() -> Path | None:
    """`deploy` of the checkout, or beside a release's virtual environment; None with neither."""
    root = checkout_root() or Path(sys.prefix).parent
    folder = root / "deploy"
    return folder if folder.is_dir() else None


def templates() -> list[Path]:
    """Its deployment files in the order of their names."""
    folder = templates_folder()
    return sorted(folder.glob("*.json")) if folder else []
