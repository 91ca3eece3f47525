"""The machine's devices as pyverbs sees them."""

from __future__ import annotations

PORT = 1
ACTIVE = 4
"""ibv_port_state: IBV_PORT_ACTIVE."""
MAPPED_V4 = "0000:0000:0000:0000:0000:ffff:0a09:"
"""10.9.x.y as an IPv6 address."""


def test_both_devices_are_active_and_have_an_address_that_is_not_link_local(devices, gid_index):
    from pyverbs.device import Context

    seen = []
    for name in devices:
        with Context(name=name) as context:
            assert context.query_port(PORT).state == ACTIVE
            seen.append(context.query_gid(PORT, gid_index).gid)
    assert len(set(seen)) == len(devices) == 2
    assert all(gid.startswith(MAPPED_V4) for gid in seen), seen
