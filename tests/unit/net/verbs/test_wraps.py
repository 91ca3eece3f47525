"""Rings that go round often over a network with every fault: all arrives, once and in order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fake_verbs import Faults
from fake_world import World, world_of

from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.slab import State
from dgpp.net.verbs.slots import device_records
from kernels_numba.cpu import bus

MESSAGES, MOST_WORDS, MOST_STEPS = 100, 32, 400_000
GEOMETRY = Geometry(4, 64, 2, 256, device_slots=3, device_slot_bytes=8 * MOST_WORDS)
FAULTS = [
    Faults(lost=1),
    Faults(lost=2),
    Faults(doubled=1),
    Faults(early=1),
    Faults(delayed=3),
    Faults(lost=3, doubled=2, early=2, delayed=2),
]


class Side:
    """One rank's end of a channel, used as whoever counts its messages does."""

    def __init__(self, world, rank, lane, choose) -> None:
        record = device_records(world.pollers[rank].slab)[1 - rank, lane]
        self.held, self.at = record, int(record.ctypes.data)
        # Some are alike: what lies in a slot may have the hash of the message that is due.
        self.sent = [
            np.full(choose.randint(1, MOST_WORDS), choose.choice([1, number]), np.int64)
            for number in range(MESSAGES)
        ]
        self.given, self.came = 0, []

    def send(self) -> None:
        if self.given < MESSAGES and bus.room(self.at):
            payload = self.sent[self.given]
            source, self.given = int(payload.ctypes.data), self.given + 1
            bus.send(self.at, source, payload.nbytes, bus.fold(source, payload.size), self.given, 5)

    def receive(self) -> None:
        if len(self.came) < MESSAGES and (payload := bus.take(self.at, len(self.came) + 1, 5)):
            assert payload > 0
            words = np.empty(MOST_WORDS, np.int64)
            bus.copy_words(payload, int(words.ctypes.data), MOST_WORDS)
            self.came.append(words)
            bus.give_back(self.at)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("faults", FAULTS, ids=str)
def test_rings_go_round_whatever_the_network_does(faults, seed):
    choose = random.Random(seed)
    with world_of(2, 2, GEOMETRY, faults, seed, kind=World) as world:
        pairs = [[Side(world, rank, lane, choose) for rank in range(2)] for lane in range(2)]
        sides = [side for pair in pairs for side in pair]
        does = [step for side in sides for step in (side.send, side.receive)]
        does += 2 * [lambda: world.turn(0), lambda: world.turn(1)]
        steps = 0
        while steps < MOST_STEPS and any(len(side.came) < MESSAGES for side in sides):
            choose.choice(does)()
            steps += 1
        assert [poller.slab.state for poller in world.pollers] == [State.JOINED] * 2
        for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
            assert len(other.came) == MESSAGES
            for sent, came in zip(one.sent, other.came, strict=True):
                np.testing.assert_array_equal(came[: sent.size], sent)
