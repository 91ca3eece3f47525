"""Which CUDA device a rank uses."""

import pytest

from dgpp.config.resolve import resolve
from dgpp.config.site import parse_site
from dgpp.errors import ConfigError

SITE = parse_site({"DGPP_NODES": "a b c"}, "environment")
NO_SITE = parse_site({}, "environment")


def settings(world, devices, site=NO_SITE):
    document = {"model": "m", "world_size": world, "engine": {"devices": devices}}
    return resolve(document, "f", site=site)


def test_ranks_of_one_host_take_its_devices_in_order():
    assert [settings(4, []).device(rank) for rank in range(4)] == [0, 1, 2, 3]


def test_ranks_of_their_own_hosts_take_the_first():
    assert [settings(3, [], SITE).device(rank) for rank in range(3)] == [0, 0, 0]


def test_told_devices_are_taken():
    assert [settings(2, [5, 3]).device(rank) for rank in range(2)] == [5, 3]
    assert [settings(3, [1, 1, 1], SITE).device(rank) for rank in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("world", "devices", "said"),
    [
        (1, [0, 1], "expected one for each rank, 2 for 1"),
        (3, [0, 1, 0], "ranks 0 and 2 share device 0"),
        (1, [-1], "expected a list of integers in 0..255, got"),
        (1, [True], "expected a list of integers"),
        (1, ["0"], "expected a list of integers"),
        (1, 0, "expected a list of integers"),
    ],
)
def test_what_cannot_be_is_named(world, devices, said):
    with pytest.raises(ConfigError, match=rf"engine\.devices: {said}"):
        settings(world, devices)
