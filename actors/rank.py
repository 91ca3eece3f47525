"""One rank beyond the first, started by rank 0's process: `python -m actors.rank RANK SPEC_FD`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, MutableMapping

from actors.heartbeat import BEAT_S, Heartbeat, HeartbeatPage, end_with_supervisor
from actors.memory import map_memfd
from actors.rank_spec import RankSpec, read_rank_spec
from actors.supervisor import RELEASED
from actors.titles import show_as, title
from dgpp import log
from dgpp.config.document import parse_document
from dgpp.config.resolve import resolve
from dgpp.config.settings import Settings
from dgpp.config.site import SiteSettings
from dgpp.errors import DgppError
from dgpp.imports import uncollected
from dgpp.parent import die_with_parent, require_parent

ORPHAN_LOOKS = int(1.0 / BEAT_S)
"""How many beats a rank whose parent is gone gets to end in order: the journal tells it too."""

_log = logging.getLogger("dgpp.launch")


def end_with_host(
    page: HeartbeatPage, spec: RankSpec, serving: threading.Event
) -> Callable[[], None]:
    """A watch: ends this process when rank 0's stands still, or is gone and nothing else did it.

    A process that loads, or compiles, holds its interpreter for seconds: `serving` says that this
    is over.
    """
    who = f"rank {spec.rank}"
    last_words = f"{who}: the supervisor of rank 0 stopped responding"

    def limit_s() -> float:
        return spec.stall_s if serving.is_set() else spec.start_stall_s

    standstill = end_with_supervisor(page, last_words, limit_s, RELEASED)
    orphaned = 0

    def look() -> None:
        nonlocal orphaned
        if os.getppid() != spec.parent_pid:
            orphaned += 1
            if orphaned > ORPHAN_LOOKS:
                os.write(2, f"{who}: the process that started it is gone\n".encode())
                os._exit(RELEASED)
        else:
            standstill()

    return look


def take_node_settings(environ: MutableMapping[str, str], settings: Settings, rank: int) -> None:
    """Where rank 0's process put its own node's settings, this rank's take their place; what was
    exported stays."""
    if not settings.node_env:
        return
    first, own = settings.node_env[0], settings.node_env[rank]
    for name in first.keys() | own.keys():
        if environ.get(name) == first.get(name):
            environ.pop(name, None)
            if name in own:
                environ[name] = own[name]


def main(arguments: list[str]) -> None:
    """Never returns: threads of libraries must not hold up the exit."""
    spec = read_rank_spec(int(arguments[2]))
    # Woken rather than killed, so that its own end is named; a stopped one wakes to see it.
    die_with_parent(signal.SIGCONT)
    require_parent(spec.parent_pid)
    assert threading.current_thread() is threading.main_thread()
    log.tell_where_on_request()
    show_as(title("rank", spec.rank))
    for fd in spec.fds():
        os.set_inheritable(fd, False)
    page = HeartbeatPage(map_memfd(spec.heartbeat))
    serving = threading.Event()
    Heartbeat(page, spec.rank, (end_with_host(page, spec, serving),)).start()
    log.setup(json=spec.log_json, role="main", rank=spec.rank)
    status = _follow(spec, serving.set)
    log.log_event(_log, "stopped", exit_status=status)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _follow(spec: RankSpec, on_serving: Callable[[], object]) -> int:
    # Imports NumPy and more: the heart beats meanwhile.
    with uncollected():
        from actors.serve import follow

    settings = resolve(parse_document(spec.settings, "ranks"), "ranks", site=SiteSettings())
    take_node_settings(os.environ, settings, spec.rank)
    try:
        return follow(
            settings,
            spec.rank,
            spec.host,
            spec.port,
            spec.token,
            log_json=spec.log_json,
            slab=spec.slab,
            on_serving=on_serving,
        )
    except DgppError as error:
        _log.error("%s: %s", type(error).__name__, error)
        return error.exit_status


if __name__ == "__main__":
    main(sys.argv)
