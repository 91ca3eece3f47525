"""What does not fit together is refused by name, before any process starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import toy_world

from actors import world
from actors.errors import TopologyError
from actors.titles import title
from actors.topology import (
    ChannelSpec,
    RoleSpec,
    Topology,
    message_names,
    message_types,
    resolve,
    resolve_messages,
)

ROLES = (RoleSpec(role="a", actor="m:A"), RoleSpec(role="b", actor="m:B"))


class One(msgspec.Struct, frozen=True, tag=True):
    x: int


class Two(msgspec.Struct, frozen=True, tag=True):
    x: int


class Untagged(msgspec.Struct, frozen=True):
    x: int


def build(**channel: object) -> Topology:
    spec = {"source": "a", "target": "b", "messages": One, "ring_bytes": 1024, **channel}
    return Topology(roles=ROLES, channels=(ChannelSpec(**spec),), depth=1)


def test_a_good_one_passes() -> None:
    build(slots=2, slot_bytes=64, spin_us=15, frame_bytes=400).validate()
    toy_world.topology().validate()


@pytest.mark.parametrize(
    ("channel", "complaint"),
    [
        ({"target": "c"}, "no role c"),
        ({"target": "a"}, "no channel to itself"),
        ({"ring_bytes": 1001}, "ring_bytes 1001 is not a multiple of 8"),
        ({"ring_bytes": 64}, "ring_bytes 64"),
        ({"frame_bytes": 600}, "2 frames of 600 bytes need 1230, ring_bytes is 1024"),
        ({"slots": 2}, "slots and slot_bytes go together"),
        ({"slots": 1, "slot_bytes": 64}, "1 slots are fewer than depth \\+ 1 = 2"),
        ({"spin_us": 20}, "spin_us 20"),
        ({"messages": int}, "int"),
        ({"messages": One | Untagged}, "a>b"),
    ],
)
def test_what_does_not_fit(channel: dict[str, object], complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        build(**channel).validate()


def test_local_message_type_is_refused() -> None:
    class Local(msgspec.Struct):
        x: int

    with pytest.raises(TopologyError, match="Local"):
        build(messages=Local).validate()


def test_doubles_are_refused() -> None:
    good = build()
    with pytest.raises(TopologyError, match="role a stands twice"):
        Topology(roles=(*ROLES, ROLES[0]), channels=()).validate()
    with pytest.raises(TopologyError, match="channel a>b stands twice"):
        Topology(roles=ROLES, channels=good.channels * 2).validate()
    with pytest.raises(TopologyError, match="no role x"):
        good.role("x")


def test_types_travel_by_name() -> None:
    names = message_names(One | Two)
    assert names == (f"{__name__}:One", f"{__name__}:Two")
    assert set(message_types(resolve_messages(names))) == {One, Two}
    with pytest.raises(TopologyError, match="has no Nobody"):
        resolve(f"{__name__}:Nobody")
    with pytest.raises(TopologyError, match="not of the form"):
        resolve("no_colon")


@pytest.mark.parametrize("rank", [0, 9])
def test_lists_of_processes_show_rank_and_role_of_every_process_in_full(rank: int) -> None:
    boot: Any = SimpleNamespace(threads=1, rank=rank, settings=SimpleNamespace(world_size=10))
    for role in ("rank", *(spec.role for spec in world._roles(boot))):
        assert len(title(role, rank).encode()) <= 15
        assert title(role, rank) == f"dgpp{rank}-{role}"
