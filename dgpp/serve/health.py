"""The states a server is in, and what /health answers in each."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from dgpp.serve.errors import ApiError, engine_failed, overloaded, shutting_down


class State(enum.StrEnum):
    """From start to end; FAILED is final."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Health(msgspec.Struct, frozen=True):
    """Where the server stands; `reason` names what died, where it has failed."""

    model: str
    state: State = State.STARTING
    reason: str = ""

    @property
    def status(self) -> int:
        """The HTTP status of GET /health."""
        return 200 if self.state is State.READY else 503

    def object(self) -> dict[str, Any]:
        """The body of GET /health."""
        if self.state is State.READY:
            return {"status": "ok", "model": self.model}
        found = {"status": str(self.state), "model": self.model}
        return {**found, "error": self.reason} if self.state is State.FAILED else found

    def refusal(self) -> ApiError | None:
        """Why a request for text is refused now, None where it is welcome."""
        if self.state is State.FAILED:
            return engine_failed(self.reason)
        if self.state is State.DRAINING:
            return shutting_down()
        if self.state is State.STARTING:
            return overloaded("The server is starting, try again later")
        return None
