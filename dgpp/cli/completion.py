"""What the shell offers after a command's name: deployments, models, nodes, ranks, releases.

Completion never fails and prints nothing: what cannot be found out is not offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from dgpp.errors import DgppError


def complete_deployment(incomplete: str) -> list[str]:
    """JSON files and folders whose path begins so; the templates where nothing is typed yet."""
    typed = Path(incomplete).expanduser()
    folder = typed if incomplete.endswith("/") or not incomplete else typed.parent
    head = incomplete[: incomplete.rfind("/") + 1]
    found = [head + name for name in _files_and_folders(folder)]
    if not incomplete:
        found += [os.path.relpath(file) for file in _templates()]
    return sorted({path for path in found if path.startswith(incomplete)})


def _files_and_folders(folder: Path) -> Iterator[str]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield f"{entry.name}/"
        elif entry.suffix == ".json":
            yield entry.name


def _templates() -> list[Path]:
    from dgpp.config.templates import templates

    return templates()


def complete_model(incomplete: str) -> list[str]:
    """The demo model, and what the Hugging Face cache holds."""
    from dgpp.checkpoint.resolve import hub_directory

    try:
        entries = sorted(hub_directory(os.environ).glob("models--*--*"))
    except OSError:
        entries = []
    names = ["demo", *(e.name.removeprefix("models--").replace("--", "/") for e in entries)]
    return _beginning(names, incomplete)


def complete_node(incomplete: str) -> list[str]:
    """The nodes of the site; after a list of names the next one."""
    begun, _, last = incomplete.rpartition(" ")
    before = f"{begun} " if begun else ""
    taken = begun.split()
    return [before + name for name in _beginning(_nodes(), last) if name not in taken]


def complete_rank(incomplete: str) -> list[tuple[str, str]]:
    """Ranks with the nodes they are on."""
    ranks = ((str(rank), node) for rank, node in enumerate(_nodes()))
    return [(rank, node) for rank, node in ranks if rank.startswith(incomplete)]


def _nodes() -> tuple[str, ...]:
    from dgpp.cli.settings import load_site_settings

    try:
        return load_site_settings().DGPP_NODES
    except (DgppError, OSError):
        return ()


def complete_release(incomplete: str) -> list[str]:
    """The releases that are installed here."""
    from dgpp.cli.settings import load_site_alone
    from dgpp.cluster.installed import installed

    try:
        folder = Path(load_site_alone().paths.release_dir).expanduser()
        return _beginning(installed(folder), incomplete)
    except (DgppError, OSError):
        return []


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
