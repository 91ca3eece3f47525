"""What dgpp's own roles share: their boot, and a log that says who speaks."""

from __future__ import annotations

from actors.actor import Actor
from actors.boot import decode_boot
from actors.context import Context
from dgpp import log


class Role(Actor):
    """An actor of a dgpp rank."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.boot = decode_boot(context.boot)
        if self.boot.settings.engine.placement == "processes":
            # Where all roles share a process, the launcher has set up the one log they share.
            log.setup(json=self.boot.log_json, role=context.role, rank=context.rank)
