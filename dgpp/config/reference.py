"""docs/configuration.md, made from the table of keys: `python -m dgpp.config.reference`."""

import sys
from itertools import groupby

import msgspec

from dgpp.config.check import expected
from dgpp.config.flags import flag_names, off_flag, panel
from dgpp.config.key import Field, Kind, fields, leaves
from dgpp.config.resolve import SITE_ONLY
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

A deployment file gives `world_size`; a resolved file gives `nodes` instead, and may hold what a
deployment file is refused and leaves to the site: *beside `nodes`, else* the site's key.
"""

_SITE = """
## Site settings

`KEY=value` lines, with optional `export` and quotes; nothing is expanded; ` #` starts a comment
after an unquoted value; a key given twice is an error; unknown keys are ignored. The file is the
one that `DGPP_ENV_FILE` names, else `.env` in the working directory or at the repository's root.
Exported variables win over the file, and an empty value counts as none.

One site file serves every machine and command of a site. So keys marked *later* are checked and may
stay, though nothing reads them yet. `dgpp run` serves the host it is called on, so it refuses a
deployment for which `DGPP_NODES` names others than `localhost`: that is for `dgpp up`.
`DGPP_NODE_OVERRIDES` holds what may differ from node to node; the folders of logs, staged files and
releases have one path on all of them.

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
        f"| {field.key.doc}{unit}{_later(field)}{_site_only(field)} |"
    )


def _site_only(field: Field) -> str:
    """Where else a key stands that a deployment file may not hold."""
    variable = SITE_ONLY.get(field.path)
    return f" *beside `nodes`, else `{variable}`*" if variable else ""


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
