"""The states a server is in, and what /health answers in each.

Live is what need not be started again, ready what should be sent requests. A server that is ready
has ended a step lately, or has none to run.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec
from msgspec.structs import replace

from dgpp.serve.errors import ApiError, engine_failed, overloaded, shutting_down

STEP_SECONDS = 30.0
"""A step that takes longer makes a server not ready; one much longer ends it."""


class State(enum.StrEnum):
    """From start to end; FAILED is final. READY servers may be DEGRADED, which a load balancer need
    not mind, or STALLED. LEAVING ones take requests still, for whoever has not heard yet."""

    STARTING = "starting"
    READY = "ok"
    DEGRADED = "degraded"
    STALLED = "stalled"
    LEAVING = "leaving"
    DRAINING = "draining"
    FAILED = "failed"


class Health(msgspec.Struct, frozen=True):
    """Where the server stands; `reason` says why it is not ready, or only just."""

    model: str
    state: State = State.STARTING
    reason: str = ""

    @property
    def live(self) -> bool:
        return self.state is not State.FAILED

    @property
    def ready(self) -> bool:
        return self.state in (State.READY, State.DEGRADED)

    def object(self) -> dict[str, Any]:
        """The body of GET /health."""
        found: dict[str, Any] = {"status": str(self.state), "model": self.model}
        found |= {"live": self.live, "ready": self.ready}
        if self.reason:
            found["reason"] = self.reason
        return {**found, "error": self.reason} if self.state is State.FAILED else found

    def now(self, step_s: float, waiting: int, queue_limit: int) -> Health:
        """The same, seen closely: `step_s` is the age of the step that runs, 0 where none does."""
        if self.state is not State.READY:
            return self
        if step_s > STEP_SECONDS:
            why = f"a step has been running for {step_s:.0f} s"
            return replace(self, state=State.STALLED, reason=why)
        if waiting >= queue_limit:
            why = f"the queue is full: {waiting} requests wait"
            return replace(self, state=State.DEGRADED, reason=why)
        return self

    def refusal(self) -> ApiError | None:
        """Why a request for text is refused now, None where it is welcome."""
        if self.state is State.FAILED:
            return engine_failed(self.reason)
        if self.state is State.DRAINING:
            return shutting_down()
        if self.state is State.STARTING:
            return overloaded("The server is starting, try again later")
        return None
