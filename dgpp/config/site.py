"""Site settings: the `.env` file and exported variables, shared by every deployment of a site."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from dgpp.config.check import Reader, clean, shown
from dgpp.config.key import LATER, Field, Key, Kind, fields
from dgpp.config.settings import (
    REMOTE_DIRECTORY,
    is_host,
    is_ipv4,
    is_remote_directory,
    is_user,
)
from dgpp.errors import ConfigError

_PORT = (1, 65_535)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ENVIRONMENT = "environment"
"""The source of exported variables."""

NODE_KEYS = (
    "DGPP_ROCE_DEVICES",
    "DGPP_ROCE_GID_INDICES",
    "HF_HUB_CACHE",
    "DGPP_RESIDENT_CACHE_DIR",
    "DGPP_LOG_LEVEL",
    "DGPP_MLOCK",
    "DGPP_BUS_TIMELINE",
    "DGPP_DSV41_DENSE_GEMV",
    "DGPP_DENSE_GEMV_ROWS",
    "DGPP_DSV41_EAGER_FOLD",
)
"""What `node_env` may hold; the first four may also stand in DGPP_NODE_OVERRIDES."""

OVERRIDE_KEYS = NODE_KEYS[:4]

SERVED_NODE_KEYS = (*OVERRIDE_KEYS, "DGPP_LOG_LEVEL", "DGPP_MLOCK")
"""Those that change something today."""


def is_gid_index(text: str) -> bool:
    """Whether `text` is an index of a device's address table."""
    return text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 255


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The allow-list of site keys. Empty and 0 mean absent: the deployment's default holds."""

    DGPP_NODES: Annotated[
        tuple[str, ...],
        Key(
            "nodes in rank order, separated by spaces",
            valid=is_host,
            expected="host names separated by spaces",
        ),
    ] = ()
    DGPP_SSH_USER: Annotated[
        str, Key("login on the other nodes", valid=is_user, expected="a login name")
    ] = ""
    DGPP_CLUSTER_CONFIG: Annotated[str, Key("deployment that commands default to")] = ""
    DGPP_HTTP_PORT: Annotated[int, Key("default of http.port", *_PORT)] = 0
    DGPP_HTTP_BIND: Annotated[
        str, Key("default of http.bind_host", valid=is_ipv4, expected="an IPv4 address")
    ] = ""
    DGPP_FABRIC_PORT: Annotated[int, Key("rank 0's rendezvous", *_PORT)] = 0
    DGPP_JOURNAL_PORT: Annotated[int, Key("rank 0's journal", *_PORT)] = 0
    DGPP_LOG_DIR: Annotated[str, Key("operation streams of the ranks")] = ""
    DGPP_STAGE_DIR: Annotated[
        str,
        Key("staged files of each node", valid=is_remote_directory, expected=REMOTE_DIRECTORY),
    ] = ""
    DGPP_RELEASE_DIR: Annotated[
        str,
        Key("installed releases", valid=is_remote_directory, expected=REMOTE_DIRECTORY),
    ] = ""
    DGPP_BUILD_DIR: Annotated[str, Key("build directory", now=LATER)] = ""
    DGPP_DATA_DIR: Annotated[str, Key("evaluation data", now=LATER)] = "data"
    HF_HOME: Annotated[str, Key("Hugging Face's directory; its hub is HF_HOME/hub")] = ""
    HF_HUB_CACHE: Annotated[str, Key("downloaded checkpoints")] = ""
    DGPP_RESIDENT_CACHE_DIR: Annotated[
        str, Key("weight images of the ranks; wins over paths.resident_cache")
    ] = ""
    DGPP_ROCE_DEVICES: Annotated[
        tuple[str, ...],
        Key(
            "at most two RoCE devices, in lane order",
            valid=is_host,
            expected="device names separated by spaces or commas",
        ),
    ] = ()
    DGPP_ROCE_GID_INDICES: Annotated[
        tuple[str, ...],
        Key(
            "one GID index for each device",
            valid=is_gid_index,
            expected="integers in 0..255 separated by spaces or commas",
        ),
    ] = ()
    DGPP_NODE_OVERRIDES: Annotated[
        dict[str, Any], Key("node → {" + ", ".join(OVERRIDE_KEYS) + "}")
    ] = {}
    DGPP_LOG_LEVEL: Annotated[
        Literal["debug", "info", "warning", "error"], Key("least level that is logged")
    ] = "info"
    DGPP_MLOCK: Annotated[Literal["on", "off"], Key("lock the engine's process in memory")] = "on"


def parse_env(text: str, source: str) -> dict[str, str]:
    """The assignments of a `.env` file: `KEY=value`, optional `export`, optional quotes.

    Nothing is expanded. ` #` starts a comment after an unquoted value. Raises ConfigError naming
    `source`, line and key, never a value.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        where = f"site settings {source} line {number}"
        name, equals, value = entry.partition("=")
        name = re.sub(r"^export\s+", "", name).rstrip()
        if not equals or not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: expected KEY=value")
        if name in values:
            raise ConfigError(f"{where}: {name}: given twice")
        values[name] = _unquoted(value, f"{where}: {name}")
    return values


def _unquoted(value: str, where: str) -> str:
    stripped = value.strip()
    quote = stripped[:1]
    if quote not in ("'", '"'):
        return re.split(r"\s#", value, maxsplit=1)[0].strip()
    body, closing, rest = stripped[1:].partition(quote)
    if not closing:
        raise ConfigError(f"{where}: the quote is not closed")
    if rest.strip() and not re.match(r"\s+#", rest):
        raise ConfigError(f"{where}: text after the closing quote")
    return body


def _typed(field: Field, text: str) -> Any:
    match field.kind:
        case Kind.INTEGER:
            return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
        case Kind.STRINGS:
            return re.split(r"[\s,]+", text.strip())
        case Kind.CHOICE:
            return text.lower()
        case Kind.OBJECT:
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                return text
        case _:
            return text


def parse_site(
    values: Mapping[str, str], source: str, exported: Iterable[str] = ()
) -> SiteSettings:
    """Site settings from raw values; keys outside the allow-list are ignored.

    Raises ConfigError "site settings `source`: KEY: ...", for a key that is `exported` of the
    environment.
    """
    reader = Reader(settings_of(source), dict.fromkeys(exported, settings_of(ENVIRONMENT)))
    table = fields(SiteSettings)
    raw = {
        name: _typed(field, values[name].strip())
        for name, field in table.items()
        if values.get(name, "").strip()
    }
    site = reader.section(SiteSettings, raw)
    if len(set(site.DGPP_NODES)) < len(site.DGPP_NODES):
        reader.fail("DGPP_NODES", "a node is listed twice")
    _check_lanes(reader, "", site.DGPP_ROCE_DEVICES, site.DGPP_ROCE_GID_INDICES)
    for node, entries in site.DGPP_NODE_OVERRIDES.items():
        path = f"DGPP_NODE_OVERRIDES.{node}"
        if node not in site.DGPP_NODES:
            reader.fail(path, "not an entry of DGPP_NODES")
        check_node_env(reader, path, entries, OVERRIDE_KEYS)
    return site


def _check_lanes(
    reader: Reader, prefix: str, devices: tuple[str, ...], gids: tuple[str, ...]
) -> None:
    """At most two devices, and one GID index for each or none at all."""
    if len(devices) > 2:
        reader.fail(f"{prefix}DGPP_ROCE_DEVICES", f"at most 2 devices, got {len(devices)}")
    if gids and len(gids) != len(devices):
        reader.fail(
            f"{prefix}DGPP_ROCE_GID_INDICES", f"{len(gids)} GID indices for {len(devices)} devices"
        )


def check_node_env(reader: Reader, path: str, entries: object, allowed: tuple[str, ...]) -> None:
    """One node's local settings: known names, string values, lanes that match."""
    if not isinstance(entries, dict):
        reader.fail(path, f"expected an object, got {shown(entries)}")
    for name, value in entries.items():
        if name not in allowed:
            reader.fail(f"{path}.{name}", "unknown key, expected one of " + ", ".join(allowed))
        if not clean(value):
            reader.fail(f"{path}.{name}", f"expected a string, got {shown(value)}")
    lanes = {
        name: tuple(re.split(r"[\s,]+", entries[name].strip())) if entries.get(name) else ()
        for name in ("DGPP_ROCE_DEVICES", "DGPP_ROCE_GID_INDICES")
    }
    for gid in lanes["DGPP_ROCE_GID_INDICES"]:
        if not is_gid_index(gid):
            reader.fail(f"{path}.DGPP_ROCE_GID_INDICES", "expected integers in 0..255")
    _check_lanes(reader, f"{path}.", lanes["DGPP_ROCE_DEVICES"], lanes["DGPP_ROCE_GID_INDICES"])


def find_env_file(environ: Mapping[str, str], directories: tuple[Path, ...]) -> Path | None:
    """DGPP_ENV_FILE where it is set (missing is an error), else the first `.env` that exists."""
    named = environ.get("DGPP_ENV_FILE", "")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"site settings: DGPP_ENV_FILE: no such file: {named}")
        return path
    return next((d / ".env" for d in directories if (d / ".env").is_file()), None)


def settings_of(source: str) -> str:
    """What errors in the site's settings begin with."""
    return f"site settings {source}"


def load_site(environ: Mapping[str, str], directories: tuple[Path, ...]) -> SiteSettings:
    """Site settings of this machine; exported variables win over the file."""
    return load_told(environ, directories)[0]


def load_told(
    environ: Mapping[str, str], directories: tuple[Path, ...]
) -> tuple[SiteSettings, dict[str, str]]:
    """The same, and which file says each key that is told, ENVIRONMENT where none does."""
    path = find_env_file(environ, directories)
    values: dict[str, str] = {}
    if path is not None:
        try:
            values = parse_env(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"site settings {path}: cannot be read: {error}") from None
    exported = {name: environ[name] for name in fields(SiteSettings) if name in environ}
    source = str(path) if path else ENVIRONMENT
    site = parse_site(values | exported, source, exported)
    told = dict.fromkeys(values, source) | dict.fromkeys(exported, ENVIRONMENT)
    return site, {key: told[key] for key, text in (values | exported).items() if text.strip()}
