"""From resolved settings to a running world, on one rank or as one of many: `dgpp run`."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from actors import launch
from actors.boot import Boot
from actors.bus import share_bus
from actors.facts import facts
from actors.following import FollowingWorld
from actors.heartbeat import HeartbeatPage, heartbeat_bytes
from actors.http.required import require_surroundings
from actors.journal import JournalLinks, link_name
from actors.journal_join import Connection, Joining, listen
from actors.leading import LeadingWorld
from actors.memory import create_memfd, map_memfd
from actors.memory_lock import raise_limit
from actors.rank_spec import RankSpec
from actors.run import make_world, run_world, supervise
from actors.service_manager import notify
from actors.supervisor import Settings as Supervision
from actors.supervisor import World
from actors.world import SLAB, topology
from dgpp import log
from dgpp.config.adopt import adopt, encode_shared
from dgpp.config.ports import LOCALHOST, is_local, journal_host
from dgpp.config.resolve import digest, to_document
from dgpp.config.settings import Settings
from dgpp.config.version import version
from dgpp.log_lines import ready_line, startup_lines
from dgpp.net.journal_join import Identity, Roster
from dgpp.net.journal_token import load_token
from dgpp.net.slab import create_slab

RANK_STALL_S = 2.6
"""How long rank 0's supervisor may stand still before the other ranks of its host end; its own
actors end a little sooner and tell the others through the journal."""

FOLLOWER_DRAIN_S = 10.0
"""What a rank beyond the first waits for rank 0's drain to end, on top of that drain's own time."""

_log = logging.getLogger("dgpp.launch")


def serve(settings: Settings, *, log_json: bool, rank: int | None = None) -> int:
    """Run the deployment until it ends; the process's exit status.

    Without `rank` all ranks run here, with it that rank alone, and the others are started
    elsewhere. Raises ConfigError, CheckpointError, MemoryPlanError or JoinError, all before any
    weight is read.
    """
    log.setup(json=log_json, role="main", rank=rank or 0)
    raise_limit()
    require_surroundings(settings, rank or 0)
    if rank:
        where = _host(settings), settings.ports.journal
        status = follow(settings, rank, *where, _token(settings), log_json=log_json)
    else:
        status = _serve_first(settings, log_json=log_json, alone=rank is not None)
    log.log_event(_log, "stopped", exit_status=status)
    return status


def _serve_first(settings: Settings, *, log_json: bool, alone: bool) -> int:
    deployment = launch.deploy(settings, log_json=log_json, apart=alone)
    boot = deployment.boot
    for line in startup_lines(settings, boot.version):
        log.log_line(_log, line.text, line.fields, level=line.level)
    launch.explain(deployment)
    ready = ready_line(settings.http, boot.served.id)

    def say_ready() -> None:
        log.log_line(_log, ready.text, ready.fields)
        notify("READY=1")

    supervision = Supervision(drain_timeout_s=settings.engine.drain_timeout_s)
    if settings.world_size > 1:
        return supervise(_leading(boot, supervision, alone=alone), supervision, say_ready)
    world = topology(boot)
    return run_world(
        world,
        _boots(boot),
        placement=settings.engine.placement,
        settings=supervision,
        on_ready=say_ready,
    )


def follow(
    settings: Settings,
    rank: int,
    host: str,
    port: int,
    token: bytes,
    *,
    log_json: bool = False,
    slab: int = -1,
    on_serving: Callable[[], object] = lambda: None,
) -> int:
    """Run rank `rank` of the world whose rank 0 listens at `host`:`port`; the exit status.

    `on_serving` is called when this rank serves."""
    identity = Identity(
        rank=rank,
        world=settings.world_size,
        version=version(),
        settings=digest(settings),
        token=token,
    )
    supervision = Supervision(drain_timeout_s=settings.engine.drain_timeout_s + FOLLOWER_DRAIN_S)
    timeout_s = settings.engine.rendezvous_timeout_ms / 1e3

    def deploy(given: bytes) -> Boot:
        adopted, changed = adopt(settings, given)
        if changed:
            _log.warning("settings of rank 0 hold: %s", ", ".join(changed))
        deployment = launch.deploy(adopted, log_json=log_json, rank=rank, apart=slab < 0)
        launch.explain(deployment)
        return _with_bus(deployment.boot, host, token)

    def make(boot: Boot, connection: Connection) -> World:
        return _inner(boot, {0: connection}, supervision, slab)

    def following() -> World:
        _log.info("rank %d looks for rank 0 at %s:%d", rank, host, port)
        joining = Joining(host, port, identity, timeout_s)
        return FollowingWorld(joining=joining, deploy=deploy, facts=facts, make_inner=make)

    def say_serving() -> None:
        _log.info("rank %d serves", rank)
        on_serving()
        notify("READY=1")

    return supervise(following, supervision, say_serving)


def _leading(boot: Boot, supervision: Supervision, *, alone: bool) -> Callable[[], World]:
    """Rank 0 of several; unless it is started alone, it starts the others of this host."""
    settings = boot.settings
    world = settings.world_size
    token = _token(settings) if alone else secrets.token_bytes(32)
    listener = listen(journal_host(settings), settings.ports.journal)
    identity = Identity(
        rank=0, world=world, version=boot.version, settings=digest(settings), token=token
    )
    boot = _with_bus(boot, journal_host(settings), token)
    roster = Roster(identity, encode_shared(settings), facts(boot))
    slab, page, specs = -1, None, []
    if not alone:
        slab = create_slab(world)
        page_fd = create_memfd("dgpp-ranks", heartbeat_bytes(world - 1))
        page = HeartbeatPage(map_memfd(page_fd))
        bare = RankSpec(
            rank=0,
            settings=msgspec.json.encode(to_document(settings)),
            host=LOCALHOST,
            port=settings.ports.journal,
            token=token,
            log_json=boot.log_json,
            parent_pid=os.getpid(),
            heartbeat=page_fd,
            stall_s=RANK_STALL_S,
            start_stall_s=supervision.start_stall_s,
            slab=slab,
        )
        specs = [replace(bare, rank=rank) for rank in range(1, world)]

    def inner(connections: dict[int, Connection]) -> World:
        return _inner(boot, connections, supervision, slab)

    return partial(
        LeadingWorld,
        listener=listener,
        roster=roster,
        timeout_s=settings.engine.rendezvous_timeout_ms / 1e3,
        specs=specs,
        page=page,
        settings=supervision,
        make_inner=inner,
    )


def _inner(
    boot: Boot, connections: dict[int, Connection], supervision: Supervision, slab: int
) -> World:
    """This rank's actors, who take over the connections and the slab."""
    unread = {rank: connection.unread for rank, connection in connections.items()}
    joined = replace(boot, journal=JournalLinks(facts(boot), unread))
    placement = boot.settings.engine.placement
    ends = {link_name(rank): _end(c.socket, placement) for rank, c in connections.items()}
    files = {"scheduler": ends, "engine": {} if slab < 0 else {SLAB: slab}}
    if boot.bus is not None:
        files["engine"], files["poller"] = share_bus(boot)
    return make_world(topology(joined, files), _boots(joined), placement, supervision)


def _with_bus(boot: Boot, host: str, token: bytes) -> Boot:
    """Told where rank 0's end of the bus is: beside its journal."""
    if boot.bus is None:
        return boot
    return replace(boot, bus=replace(boot.bus, host=host, token=token))


def _end(connection: socket.socket, placement: str) -> int:
    """The connection's fd; inline the actor gets one of its own, as a process would."""
    return os.dup(connection.fileno()) if placement == "inline" else connection.fileno()


def _boots(boot: Boot) -> dict[str, bytes]:
    encoded = boot.encode()
    return {role.role: encoded for role in topology(boot).roles}


def _token(settings: Settings) -> bytes:
    """What the ranks of different starts have in common."""
    file = settings.engine.cluster_token_file
    if not file:
        _log.warning("engine.cluster_token_file: none; whoever finds the journal's port may join")
        return b""
    return load_token(file)


def _host(settings: Settings) -> str:
    """Where rank 0's journal is."""
    return LOCALHOST if is_local(settings) else settings.nodes[0]
