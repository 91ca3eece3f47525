"""Compile all that ranks of a bus call, over a fake network, with tests and its unit/net/verbs on
the path. The host of an emulated machine does it, which would take minutes.
"""

from __future__ import annotations

from fake_verbs import Fabric
from fake_world import PolledWorld, world_of
from ranks import SMALL
from verbs_end import End
from whole_bus import exercise

if __name__ == "__main__":
    # Two ranks swap the rows of a large sum, more share them.
    for size in (2, 3):
        with world_of(size, 1, kind=PolledWorld) as world:
            world.run(lambda rank: exercise(rank, SMALL.latency_slot_bytes // 4))
    fabric = Fabric()
    ends = [End(fabric.port(name)) for name in ("a", "b")]
    for end, other in (ends, ends[::-1]):
        end.connect(other.told())
        end.receive()
        end.write(8)
    for end in ends:
        end.wait()
