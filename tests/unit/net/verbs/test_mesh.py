"""Worlds over an unreliable network: every message once, in order, whole; who is gone is named."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from fake_verbs import Faults
from fake_world import world_of
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import SMALL

from dgpp.net.verbs.errors import PeerUnreachableError
from dgpp.net.verbs.layout import Pool

ROUNDS = 120
FIRST = 2**63
"""Generations beyond what a signed word holds."""


def traffic(world, peers, lanes):
    """Random sends, takes and releases; what went and what came, by (from, to, lane, pool)."""
    choose = world.random
    lines = [
        (a, b, lane, pool)
        for a in range(peers) for b in range(peers) if a != b
        for lane in range(lanes) for pool in Pool
    ]  # fmt: skip
    sent, came, held = ({line: [] for line in lines} for _ in range(3))
    for generation in range(ROUNDS):
        a, b, lane, pool = line = choose.choice(lines)
        out = world.ranks[a].channel(b, lane, pool)
        if out.outbox.room():
            most = (SMALL.latency_slot_bytes, SMALL.bulk_slot_bytes)[pool]
            payload = np.frombuffer(choose.randbytes(choose.randint(0, most)), np.uint8)
            out.send(payload, FIRST + generation)
            sent[line].append((FIRST + generation, payload.tobytes()))
        for _ in range(choose.randrange(4)):
            world.fabric.step()
        receive(world, choose.choice(lines), came, held, choose.random() < 0.7)
    for _ in range(2 * ROUNDS):
        world.fabric.settle()
        if all(len(came[line]) == len(sent[line]) and not held[line] for line in lines):
            break
        for line in lines:
            receive(world, line, came, held, True)
    world.fabric.settle()
    return sent, came


def receive(world, line, came, held, release):
    """Take the next message of a line; give back the oldest that is held."""
    a, b, lane, pool = line
    inbound = world.ranks[b].channel(a, lane, pool)
    if (message := inbound.take()) is not None:
        came[line].append((message.cell.generation, message.payload.tobytes()))
        held[line].append((message, message.payload.tobytes()))
    if release and held[line]:
        oldest, as_it_came = held[line].pop(0)
        assert oldest.payload.tobytes() == as_it_came, "filled again without a credit"
        inbound.release(oldest.cell)
    world.ranks[b].poll()


faults = st.builds(
    Faults, st.sampled_from([0, 9]), st.sampled_from([0, 3]), st.sampled_from([0, 2])
)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), faults, st.sampled_from([(2, 1), (2, 2), (3, 2)]))
def test_every_message_arrives_once_in_order_and_whole(seed, wrong, shape):
    peers, lanes = shape
    with world_of(peers, lanes, faults=wrong, seed=seed) as world:
        sent, came = traffic(world, peers, lanes)
        assert came == sent
        for a, b, lane, pool in sent:
            channel = world.ranks[a].channel(b, lane, pool)
            assert channel.outbox.room() == channel.outbox.place.slots
        for mesh in world.ranks:
            mesh.poll()


def test_payloads_carry_on_through_many_turns_of_a_ring():
    with world_of(2, 1) as world:
        out, inbound = (world.ranks[r].channel(1 - r, 0, Pool.LATENCY) for r in range(2))
        for number in range(1, 40):
            assert out.outbox.room()
            out.send(np.frombuffer(struct.pack("<q", -number), np.uint8), number)
            world.fabric.settle()
            message = inbound.take()
            assert struct.unpack("<q", message.payload.tobytes()) == (-number,)
            assert message.cell.sequence == number
            inbound.release(message.cell)
            world.fabric.settle()
            world.ranks[1].poll()
            # Work without a completion leaves the queue with what is signaled behind it.
            world.ranks[0].poll()


def test_a_dead_rank_is_named_with_its_lane():
    with world_of(3) as world:
        world.kill(2)
        world.ranks[0].channel(1, 1, Pool.BULK).send(np.ones(9, np.uint8), 1)
        world.ranks[0].channel(2, 1, Pool.BULK).send(np.ones(9, np.uint8), 1)
        world.fabric.settle()
        with pytest.raises(PeerUnreachableError, match=r"rank 2, lane 1 \(r0l1\): no answer"):
            world.ranks[0].poll()
        assert world.ranks[1].channel(0, 1, Pool.BULK).take() is not None
