"""The command-line flag of every key that has one."""

from dgpp.config.key import Field, Kind, leaves
from dgpp.config.settings import Settings

_ALIASES = {"http.port": "--http-port", "http.max_body_bytes": "--http-max-body-bytes"}


def flag_names(field: Field) -> tuple[str, ...]:
    """Long flags of a key: `engine.a_b` is `--a-b`. Empty for keys that only `--set` reaches."""
    if field.key.flag is not None:
        return (field.key.flag,) if field.key.flag else ()
    name = "--" + field.name.replace("_", "-")
    return (name, _ALIASES[field.path]) if field.path in _ALIASES else (name,)


def flag_metavar(field: Field) -> str:
    """What stands for the value in help."""
    words = {Kind.INTEGER: "N", Kind.NUMBER: "X", Kind.STRING: "TEXT", Kind.CHOICE: "NAME"}
    return words.get(field.kind, "JSON")


def flagged() -> list[Field]:
    """Every key with a flag, in the order of the table."""
    return [field for field in leaves(Settings).values() if flag_names(field)]


_TITLES = {
    "http": "HTTP",
    "ports": "Ports",
    "nvme_cache": "NVMe cache",
    "paths": "Paths",
    "sampling": "Sampling",
}


def panel(field: Field) -> str:
    """The heading under which help and the reference page list a key."""
    section, *rest = field.path.split(".")
    if section == "engine":
        return f"Engine: {rest[0] if len(rest) > 1 else field.key.group}"
    return _TITLES.get(section, "Deployment")


def off_flag(field: Field) -> str:
    """The flag that turns a boolean key off."""
    name = flag_names(field)[0].removeprefix("--")
    return f"--{name[3:]}" if name.startswith("no-") else f"--no-{name}"
