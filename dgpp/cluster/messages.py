"""What the launcher asks of a node, and what the node answers. One request, one answer, as JSON."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dgpp.checkpoint.receive import Copy, Depth, Held
from dgpp.cluster.place import Place
from dgpp.cluster.record import ProcessRecord, State
from dgpp.net.listening import Listen
from dgpp.net.roce import RoceDevice

REQUEST_BYTES = 16 << 20
TAIL_BYTES = 256 << 10
BLOCK_BYTES = 1 << 20


class Look(msgspec.Struct, frozen=True, tag=True):
    """How is `rank`, and what has its log said from byte `offset` on? At most `TAIL_BYTES` of it;
    a negative offset counts from the end."""

    place: Place
    rank: int
    offset: int = 0


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start `rank` with the settings `config` (a JSON document) and the ranks' `token`, empty where
    it is alone. `command` precedes `dgpp run`'s arguments; `environment` is added; `run` is another
    one at every start of the deployment."""

    place: Place
    rank: int
    config: str
    token: str
    command: tuple[str, ...]
    environment: dict[str, str]
    source: str
    apart: bool
    run: str = ""


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Send signal `number` to the process of `rank`, if it is still the one that was started."""

    place: Place
    rank: int
    number: int


class Operations(msgspec.Struct, frozen=True, tag=True):
    """What did `rank` do? A digest of each block of `BLOCK_BYTES` of its operation stream; or,
    where `block` is not negative, the text of that block alone."""

    place: Place
    rank: int
    block: int = -1


class Clear(msgspec.Struct, frozen=True, tag=True):
    """Remove what `rank` was started with: its settings, its token."""

    place: Place
    rank: int


class List(msgspec.Struct, frozen=True, tag=True):
    """Which deployments are there, and how is `rank` of each?"""

    log_dir: str
    rank: int


class Examine(msgspec.Struct, frozen=True, tag=True):
    """Is this node fit to run `rank` of `world`? `backend` is engine.backend; `rdma`: the ranks
    speak RoCE over `devices` from their addresses `gids`. `listens`: what must be free
    here. `collective` is engine.collective; `apart`: the ranks are not all on one host;
    `weights`: they read the model's. `gpus` are those of the ranks that are started here;
    `told` is engine.devices."""

    place: Place
    rank: int
    world: int
    backend: str
    rdma: bool
    devices: tuple[str, ...]
    gids: tuple[int, ...]
    model: str
    hub: str
    listens: tuple[Listen, ...]
    collective: str = "auto"
    apart: bool = False
    weights: bool = True
    gpus: tuple[int, ...] = (0,)
    told: tuple[int, ...] = ()


class Survey(msgspec.Struct, frozen=True, tag=True):
    """What is this node, and what room has it at the Hugging Face cache `hub` (empty: its own)?"""

    hub: str


class Hold(msgspec.Struct, frozen=True, tag=True):
    """How much of `copy` is here? With `open`, a folder is made that the rest can be sent to."""

    copy: Copy
    depth: Depth
    open: bool = False


class Adopt(msgspec.Struct, frozen=True, tag=True):
    """Put in its place what was sent of `copy`; `main`: a server takes that commit from now on."""

    copy: Copy
    main: bool


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Forget what was sent of `copy`."""

    copy: Copy


Request: TypeAlias = (
    Look | Start | Signal | Operations | Clear | List | Examine | Survey | Hold | Adopt | Drop
)


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at: `level` is ok, warning or error."""

    level: str
    what: str
    remedy: str = ""

    @property
    def words(self) -> str:
        """Both, what mends it once."""
        said = not self.remedy or self.remedy in self.what
        return self.what if said else f"{self.what} — {self.remedy}"


class NodeFacts(msgspec.Struct, frozen=True):
    """A machine: `memory` and `free` (at `hub`) in bytes, `gpu` by its name or why there is none;
    `programs` that models can be sent with."""

    python: str
    memory: int
    gpu: str
    has_gpu: bool
    hub: str
    free: int
    devices: tuple[RoceDevice, ...]
    programs: tuple[str, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is why nothing else is there, `unknown` why a `state` is not. `now` is the node's
    clock, the rest what was asked for."""

    version: str
    now: float
    error: str = ""
    state: State = State.ABSENT
    record: ProcessRecord | None = None
    unknown: str = ""
    text: str = ""
    offset: int = 0
    done: bool = False
    digests: tuple[str, ...] = ()
    size: int = 0
    findings: tuple[Finding, ...] = ()
    facts: NodeFacts | None = None
    held: Held | None = None
    wrong: tuple[str, ...] = ()
    deployments: tuple[tuple[str, State, ProcessRecord | None, str], ...] = ()
