"""Two ranks' meshes over real devices: messages of both pools through many turns of their rings."""

from __future__ import annotations

import time

import numpy as np

from dgpp.net.roce import chosen
from dgpp.net.verbs.by_pyverbs import load
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.layout import Layout, Pool
from dgpp.net.verbs.mesh import Mesh

GEOMETRY = Geometry(4, 8192, 2, 65536)
MESSAGES = 11
PATIENCE_S = 60.0


def waited(look, *meshes):
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < deadline, "nothing came"
        for mesh in meshes:
            mesh.poll()
        time.sleep(0)
    return seen


def test_messages_of_both_pools_go_round_both_ways(devices, gid_index):
    library = load()
    ports = [library.open(lane, gid_index) for lane in chosen(devices, [gid_index] * 2)]
    size = Layout(GEOMETRY, 1, 2).bytes
    slabs = [np.zeros(size, np.uint8) for _ in ports]
    meshes = [Mesh([port], rank, 2, GEOMETRY, slabs[rank]) for rank, port in enumerate(ports)]
    table = [mesh.frame() for mesh in meshes]
    for mesh in meshes:
        mesh.connect(table)
    noise = np.random.default_rng(2).integers(0, 256, GEOMETRY.bulk_slot_bytes, np.uint8)
    for pool, most in zip(Pool, (8192, 65536), strict=True):
        ends = [mesh.channel(1 - rank, 0, pool) for rank, mesh in enumerate(meshes)]
        for number in range(1, MESSAGES + 1):
            for end, other in (ends, ends[::-1]):
                waited(end.outbox.room, *meshes)
                payload = noise[: most - 5 * number]
                end.send(payload, number)
                message = waited(other.take, *meshes)
                assert (message.cell.sequence, message.cell.generation) == (number, number)
                assert np.array_equal(message.payload, payload)
                other.release(message.cell)
        for end in ends:
            waited(lambda end=end: end.outbox.room() == end.outbox.place.slots, *meshes)
    for mesh in meshes:
        mesh.close()
    for port in ports:
        port.close()
