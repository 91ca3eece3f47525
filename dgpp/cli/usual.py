"""What the site's own deployment is, and where it listens: what commands take by themselves."""

from pathlib import Path

from dgpp.cli.settings import load_settings, load_site_alone, load_site_settings
from dgpp.config.ports import url_of
from dgpp.errors import ConfigError

KEY = "DGPP_CLUSTER_CONFIG"


def known_config() -> Path | None:
    """The deployment file that the site names. Raises ConfigError where that is none."""
    usual = load_site_settings().DGPP_CLUSTER_CONFIG
    if not usual:
        return None
    file = Path(usual).expanduser()
    if not file.is_file():
        raise ConfigError(f"{KEY}: no such file: {usual}")
    return file


def usual_config() -> Path:
    """The same. Raises ConfigError also where the site names none."""
    usual = known_config()
    if usual is None:
        raise ConfigError(f"no CONFIG given, and {KEY} names none")
    return usual


def usual_url() -> str:
    """Where that deployment listens, else one that says nothing about it. Raises ConfigError."""
    usual = known_config()
    return url_of((load_settings(usual, ()) if usual else load_site_alone()).http)
