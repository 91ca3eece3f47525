"""What stands in for a model that is not on this machine: config.json facts beside deployments."""

from __future__ import annotations

from pathlib import Path

from dgpp.checkpoint.json_file import read_object
from dgpp.errors import CheckpointError

FOLDER = "facts"
INDEX = "index.json"


def stand_in(model: str, deployments: Path) -> Path | None:
    """The file that `facts/index.json` under `deployments` names for `model`, None where it names
    none. Raises CheckpointError for an index that cannot be read, or a name that is no file there.
    """
    folder = deployments / FOLDER
    name = (read_object(folder / INDEX) or {}).get(model)
    if name is None:
        return None
    if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
        raise CheckpointError(f"{folder / INDEX}: {model}: {name!r} is no file beside it")
    return folder / name
