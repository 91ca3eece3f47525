"""docs/configuration.md, made from the table of keys: `python -m dgpp.config.reference`."""

import sys
from itertools import groupby

import msgspec

from dgpp.config.check import expected
from dgpp.config.flags import flag_names, off_flag, panel
from dgpp.config.key import Field, Kind, fields, leaves
from dgpp.config.settings import Settings
from dgpp.config.site import SiteSettings

_HEAD = """\
# Configuration

This page is made from the table of keys: `python -m dgpp.config.reference > docs/configuration.md`.

A deployment is one JSON file (`deploy/*.json`); what belongs to the site stands in `.env` or in
exported variables. Highest first: flags of `dgpp run`, `--set path=value`, the file, exported
variables, `.env`, defaults. `dgpp resolve CONFIG` prints the outcome.

An unknown, mistyped or out-of-range key ends the command with status 1 and names key, value and
range. Keys marked *later* are known and checked, but `dgpp run` refuses any value of theirs that
this version does not serve: `not supported yet: KEY`. What the site says of them is no request,
see below.

A deployment file gives `world_size`; a resolved file gives `nodes` instead, and may hold the
`ports.*` and `paths.*` keys that a deployment leaves to the site.
"""

_SITE = """
## Site settings

`KEY=value` lines, with optional `export` and quotes; nothing is expanded; ` #` starts a comment
after an unquoted value; a key given twice is an error; unknown keys are ignored. The file is the
one that `DGPP_ENV_FILE` names, else `.env` in the working directory or at the repository's root.
Exported variables win over the file, and an empty value counts as none.

One site file serves every machine and command of a site. So keys marked *later* are checked and may
stay, though nothing reads them yet: they belong to other nodes, to a launcher, or to features that
are not built (no log directory is written, nothing is pinned in memory). The same values written in
a deployment file or as flags are refused, unless they repeat the site's. Two exceptions:
`dgpp run` serves the host it is called on, so it refuses a `DGPP_NODES` whose first node is not
`localhost`; and of a node's own settings `HF_HUB_CACHE` and `DGPP_LOG_LEVEL` are served.

| key | value | meaning |
|---|---|---|
"""


def _default(field: Field) -> str:
    if field.required:
        return "required"
    if field.default in (None, "", ()):
        return "–"
    return f"`{default_text(field)}`"


def default_text(field: Field) -> str:
    """The default as it would be written in JSON."""
    value = field.default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _later(field: Field) -> str:
    """What is served of a key, where that is not everything."""
    if field.key.now:
        return f" *today: {', '.join(map(str, (default_text(field), *field.key.now)))}*"
    return "" if field.supported else " *later*"


def _row(field: Field) -> str:
    flags = ", ".join(f"`{name}`" for name in flag_names(field))
    if field.kind is Kind.BOOLEAN and flags:
        flags += f", `{off_flag(field)}`"
    unit = f" ({field.key.unit})" if field.key.unit else ""
    value = expected(field).replace("|", "\\|")
    return (
        f"| `{field.path}` | {value} | {_default(field)} | {flags or '–'} "
        f"| {field.key.doc}{unit}{_later(field)} |"
    )


def configuration_page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD]
    for title, rows in groupby(leaves(Settings).values(), panel):
        parts.append(f"\n## {title}\n\n")
        parts.append("| key | value | default | flag | meaning |\n|---|---|---|---|---|\n")
        parts.extend(_row(field) + "\n" for field in rows)
    parts.append(_SITE)
    parts.extend(
        f"| `{field.name}` | {expected(field)} | {field.key.doc}{_later(field)} |\n"
        for field in fields(SiteSettings).values()
    )
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
