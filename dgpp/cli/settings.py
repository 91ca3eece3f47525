"""Loads the settings of a command: deployment file, site and flags of this process."""

import os
from collections.abc import Sequence
from pathlib import Path

from dgpp.config.document import Override
from dgpp.config.resolve import load, site_alone
from dgpp.config.settings import Settings
from dgpp.config.site import SiteSettings, load_site
from dgpp.config.version import checkout_root


def site_directories() -> tuple[Path, ...]:
    """Where the site's `.env` is looked for, in this order."""
    root = checkout_root()
    return (Path.cwd(), root) if root else (Path.cwd(),)


def load_settings(config: Path, overrides: Sequence[Override]) -> Settings:
    """Settings of `config`. Raises ConfigError naming the key, the value and the range."""
    return load(config, overrides=overrides, environ=os.environ, directories=site_directories())


def load_site_settings() -> SiteSettings:
    """The site's `.env` file and exported variables."""
    return load_site(os.environ, site_directories())


def load_site_alone() -> Settings:
    """What the site says by itself, to tell it from what a deployment says."""
    return site_alone(load_site_settings())
