"""Rewrite the list of modules in docs/structure.md from the modules' own first lines.

usage: python scripts/list_modules.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "structure.md"
PACKAGES = ("dgpp", "actors", "kernels_numba")
BEGIN, END = "<!-- modules -->\n", "<!-- end of modules -->"


def modules(package: str) -> Iterator[Path]:
    """Every module of `package` that has something in it, packages' own files first."""
    files = (ROOT / package).rglob("*.py")
    for path in sorted(files, key=lambda path: (path.parent, path.name)):
        if path.read_text(encoding="utf-8").strip():
            yield path.relative_to(ROOT)


def summary(path: Path) -> str:
    """The first line of the module's docstring; empty when it has none."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return docstring.split("\n", 1)[0] if docstring else ""


def listing() -> str:
    """The list as it belongs into the page, a heading per folder."""
    lines: list[str] = []
    folder = None
    for package in PACKAGES:
        for path in modules(package):
            if path.parent != folder:
                folder = path.parent
                lines += ["", f"**{folder}/**", ""]
            lines.append(f"- `{path.name}` {summary(path)}")
    return "\n".join(lines) + "\n\n"


def rewritten(page: str) -> str:
    """`page` with a fresh list between its two marks."""
    head, rest = page.split(BEGIN)
    _old, tail = rest.split(END)
    return head + BEGIN + listing() + END + tail


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
