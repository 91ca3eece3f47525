"""One actor in a process of its own: `python -m actors.child ROLE RANK SPEC_FD`."""

from __future__ import annotations

import sys

from dgpp.parent import die_with_parent


def main(arguments: list[str]) -> None:
    """Never returns. What takes long to import comes when a parent's death is heard of already."""
    die_with_parent()
    from actors.child_actor import run_child

    run_child(int(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
