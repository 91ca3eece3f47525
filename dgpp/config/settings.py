"""The settings of one deployment, resolved: every key that there is, typed, with its default."""

import re
from functools import partial
from ipaddress import AddressValueError, IPv4Address
from typing import Annotated, Literal

import msgspec

from dgpp.config.engine_settings import EngineSettings
from dgpp.config.key import Key

_Local = partial(Key, shared=False, flag="")
_Sampling = partial(Key, shared=False)

HIGHEST_PORT = 65_535
_PORT = (1, HIGHEST_PORT)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_REMOTE_DIRECTORY = re.compile(r"(/|~/)[A-Za-z0-9_./+@=-]+")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def is_ipv4(text: str) -> bool:
    """Whether `text` is an IPv4 address in dotted form."""
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


def is_host(text: str) -> bool:
    """Whether `text` may name a node."""
    return _HOST.fullmatch(text) is not None


def is_user(text: str) -> bool:
    """Whether `text` may name a login."""
    return _USER.fullmatch(text) is not None


def is_remote_directory(text: str) -> bool:
    """Whether `text` is a directory that can be named in a remote command as it stands."""
    return _REMOTE_DIRECTORY.fullmatch(text) is not None and ".." not in text.split("/")


def _is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


REMOTE_DIRECTORY = "an absolute or ~/ directory without spaces, shell characters or '..'"


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where rank 0 listens and what it accepts."""

    bind_host: Annotated[
        str,
        Key("address to listen on; 0.0.0.0: all", valid=is_ipv4, expected="an IPv4 address"),
    ] = "127.0.0.1"
    port: Annotated[int, Key("API port", *_PORT, shared=False)] = 18080
    max_body_bytes: Annotated[
        int, Key("largest request body; above it 413", 1, 2**63 - 1, unit="bytes")
    ] = 268_435_456
    sse_ping_interval: Annotated[
        int,
        Key("silence before a stream's keep-alive; -1: none", 1, 2**31 - 1, also=(-1,), unit="s"),
    ] = 30
    drain_grace_s: Annotated[
        float,
        Key(
            "at a stop, how long /health says so before requests are refused; of drain_timeout_s",
            0,
            300,
            unit="s",
            shared=False,
        ),
    ] = 0.0
    metrics_compat: Annotated[
        Literal["none", "vllm"],
        Key("say the metrics under these names too", flag="--metrics-compat", shared=False),
    ] = "none"
    api_key_file: Annotated[
        str,
        Key("file of API keys, one a line, mode 0600; reread when it changes", shared=False),
    ] = ""
    insecure_no_auth: Annotated[
        bool, Key("let bind_host be an address beyond this host without API keys", shared=False)
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        Key(
            "names besides this host's own that a Host or Origin header may say, where no key does",
            valid=is_host,
            expected="a list of host names without ports",
            shared=False,
        ),
    ] = ()
    tls_cert: Annotated[
        str, Key("certificate chain (PEM); reread when it changes", shared=False)
    ] = ""
    tls_key: Annotated[str, Key("private key (PEM), not readable by all", shared=False)] = ""
    unix_socket: Annotated[
        str, Key("path of a UNIX socket to listen on in place of a port", shared=False)
    ] = ""


class PortSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TCP ports of a world; `http` equals `http.port`."""

    http: Annotated[int, _Local("API port, as the site gives it", *_PORT)] = 18080
    fabric: Annotated[
        int, Key("rank 0's rendezvous", *_PORT, flag="--fabric-port", shared=False)
    ] = 29970
    journal: Annotated[
        int, Key("rank 0's journal", *_PORT, flag="--journal-port", shared=False)
    ] = 29971
    metrics: Annotated[
        int,
        Key(
            "metrics of the other ranks, one port up for each rank of a host; 0: none",
            0,
            HIGHEST_PORT,
            flag="--metrics-port",
            shared=False,
        ),
    ] = 0


class NvmeCacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache's second tier, on a local disk."""

    enabled: Annotated[bool, Key("spill prefixes to disk", flag="")] = False
    path: Annotated[str, _Local("directory of the tier")] = "~/dgpp/nvme-cache"
    capacity_gib: Annotated[
        float,
        Key("disk space per rank", above=0, high=1_048_576, unit="GiB", flag=""),
    ] = 64.0
    min_tokens: Annotated[
        int,
        Key(
            "shortest prefix worth a spill; 0: one chunk",
            0,
            2**40,
            unit="tokens",
            flag="",
        ),
    ] = 0
    keep: Annotated[
        bool, Key("keep what is on disk for the next run of the same deployment", flag="")
    ] = True


class PathSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Directories of this site."""

    log_dir: Annotated[str, _Local("operation streams of the ranks")] = "~/dgpp/log"
    stage_dir: Annotated[
        str,
        _Local("staged files of each node", valid=is_remote_directory, expected=REMOTE_DIRECTORY),
    ] = "~/dgpp/stage"
    release_dir: Annotated[
        str,
        _Local("installed releases", valid=is_remote_directory, expected=REMOTE_DIRECTORY),
    ] = "~/dgpp/releases"
    resident_cache: Annotated[str, _Local("weight images of the ranks; empty: none are kept")] = ""


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of requests that set none; null leaves them to generation_config.json."""

    temperature: Annotated[float | None, _Sampling("0 is greedy", 0, 2)] = None
    top_p: Annotated[float | None, _Sampling("probability mass kept; 1: all", 0, 1)] = None
    top_k: Annotated[int | None, _Sampling("tokens kept; 0: all", 0, 2**31 - 1)] = None
    min_p: Annotated[float | None, _Sampling("least share of the best token's", 0, 1)] = None
    repetition_penalty: Annotated[
        float | None, _Sampling("divides the score of seen tokens", above=0, high=100)
    ] = None
    presence_penalty: Annotated[
        float | None, _Sampling("taken from tokens already answered", -2, 2)
    ] = None
    frequency_penalty: Annotated[float | None, _Sampling("the same, times their count", -2, 2)] = (
        None
    )
    seed: Annotated[
        int | None, _Sampling("seed of requests that name none", -(2**63), 2**63 - 1)
    ] = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a deployment is told. `nodes` has one entry per rank ("localhost" unless the
    site names nodes) and `node_env` none or one per node.
    """

    model: Annotated[
        str,
        Key(
            "Hugging Face id or directory of the checkpoint",
            valid=bool,
            expected="a model id or directory",
        ),
    ]
    world_size: Annotated[int, Key("number of ranks", 1, 64)] = 1
    nodes: Annotated[
        tuple[str, ...],
        _Local(
            "hosts in rank order; `dgpp up` starts them all, `dgpp run` serves `localhost` alone",
            valid=is_host,
            expected="a list of host names",
        ),
    ] = ("localhost",)
    ssh_user: Annotated[
        str, _Local("login on the other nodes", valid=is_user, expected="a login name")
    ] = ""
    release: Annotated[
        str, Key("installed version that `dgpp up` runs", valid=_is_version, expected="a version")
    ] = ""
    node_env: Annotated[
        tuple[dict[str, str], ...], _Local("local settings of each node, in rank order")
    ] = ()
    http: Annotated[HttpSettings, Key("HTTP server")] = HttpSettings()
    ports: Annotated[PortSettings, Key("ports")] = PortSettings()
    engine: Annotated[EngineSettings, Key("engine")] = EngineSettings()
    nvme_cache: Annotated[NvmeCacheSettings, Key("disk tier")] = NvmeCacheSettings()
    paths: Annotated[PathSettings, Key("directories")] = PathSettings()
    sampling: Annotated[SamplingSettings, Key("sampling defaults")] = SamplingSettings()

    def device(self, rank: int) -> int:
        """The CUDA device of a rank: as told, else how many ranks of its host stand before it."""
        if self.engine.devices:
            return self.engine.devices[rank]
        return self.nodes[:rank].count(self.nodes[rank])
