"""What the site's own deployment is, and where it listens: what commands take by themselves."""

from contextlib import suppress
from pathlib import Path

from dgpp.cli.settings import load_settings, load_site_alone, load_site_settings
from dgpp.cluster.errors import RecordError
from dgpp.cluster.place import Place, deployment_id
from dgpp.cluster.record import State, read_record, state_of
from dgpp.config.ports import url_of
from dgpp.config.resolve import load
from dgpp.config.settings import Settings
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
    """Where that deployment listens, as it was started if it runs; else one that says nothing about
    it. Raises ConfigError."""
    usual = known_config()
    if usual is None:
        return url_of(load_site_alone().http)
    settings = load_settings(usual, ())
    return url_of((_as_started(usual, settings) or settings).http)


def _as_started(config: Path, settings: Settings) -> Settings | None:
    """The settings that `dgpp up` gave rank 0, flags included, while it runs. None also where that
    cannot be read: another user may have started it."""
    place = Place(settings.paths.log_dir, settings.paths.stage_dir, deployment_id(config))
    with suppress(RecordError, ConfigError):
        record = read_record(place.record(0))
        if record and record.settings and state_of(record) is State.RUNNING:
            return load(record.settings, environ={})
    return None
