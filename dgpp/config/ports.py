"""Which TCP ports each rank of a deployment listens on, and where clients find it."""

from __future__ import annotations

from dgpp.config.settings import HttpSettings, Settings
from dgpp.net.listening import Listen

EVERYWHERE = "0.0.0.0"  # noqa: S104 - other nodes come here
LOCALHOST = "127.0.0.1"


def is_local(settings: Settings) -> bool:
    """Whether all ranks are on this host."""
    return set(settings.nodes) == {"localhost"}


def url_of(http: HttpSettings) -> str:
    """Where clients of this host find the server, unix:/PATH for a UNIX socket."""
    if http.unix_socket:
        return f"unix:{http.unix_socket}"
    host = LOCALHOST if http.bind_host == EVERYWHERE else http.bind_host
    return f"{'https' if http.tls_cert else 'http'}://{host}:{http.port}"


def journal_host(settings: Settings) -> str:
    """The address at which rank 0's journal listens."""
    return LOCALHOST if is_local(settings) else EVERYWHERE


def sums_over_roce(settings: Settings) -> bool:
    """Whether ranks will meet at `ports.fabric`, as far as settings say."""
    engine = settings.engine
    if settings.world_size == 1 or engine.backend == "scripted":
        return False
    return engine.collective == "verbs" or (engine.collective != "shm" and not is_local(settings))


def metrics_port(settings: Settings, rank: int) -> int:
    """Where `rank` answers: `ports.metrics`, and one up for each rank of its host that answers
    before it. 0: nowhere."""
    first = settings.ports.metrics
    if not (first and rank):
        return 0
    return first + settings.nodes[1:rank].count(settings.nodes[rank])


def listens(settings: Settings, rank: int) -> tuple[Listen, ...]:
    """What must be free for `rank`; where all ranks are on one host, rank 0 starts them all."""
    http = settings.http
    metrics = [metrics_port(settings, rank)]
    found = []
    if not rank:
        if not http.unix_socket:
            found.append(Listen("http.port", http.bind_host, http.port))
        if settings.world_size > 1:
            found.append(Listen("ports.journal", journal_host(settings), settings.ports.journal))
        if sums_over_roce(settings):
            found.append(Listen("ports.fabric", journal_host(settings), settings.ports.fabric))
        if is_local(settings):
            metrics = [metrics_port(settings, other) for other in range(settings.world_size)]
    return (*found, *(Listen("ports.metrics", http.bind_host, port) for port in metrics if port))
