"""What ranks compare before they load anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from actors import launch
from actors.facts import facts
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"


def boot(directory, rank=0, **engine):
    document = {
        "model": str(directory),
        "world_size": 2,
        "engine": {"backend": "scripted", **engine},
    }
    settings = resolve(document, "f", site=SiteSettings())
    return launch.deploy(settings, log_json=False, rank=rank).boot


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def differing(one, other):
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


def test_ranks_of_one_deployment_are_alike():
    assert facts(boot(TINY)) == facts(boot(TINY, rank=1))


def test_a_copy_of_the_model_elsewhere_differs_in_its_name_alone(folder):
    assert differing(facts(boot(TINY)), facts(boot(folder))) == {"settings"}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_other_files_of_the_model_are_seen(folder, name):
    before = facts(boot(folder))
    file = folder / name
    file.write_bytes(file.read_bytes() + b"\n")
    assert differing(before, facts(boot(folder))) == {name}


def test_other_limits_and_settings_are_seen():
    found = differing(facts(boot(TINY)), facts(boot(TINY, max_concurrency=3, kv_capacity=640)))
    assert found == {"settings", "limits.slots", "limits.blocks", "limits.position_ceiling"}


def test_another_version_is_seen():
    one = boot(TINY)
    other = msgspec.structs.replace(one, version="0.0.0")
    assert differing(facts(one), facts(other)) == {"version"}
