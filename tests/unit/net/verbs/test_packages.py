"""The verbs library over each package that binds it: what it makes, and what it says it lacks."""

from __future__ import annotations

import select
import sys

import fake_packages
import msgspec
import numpy as np
import pytest
from fake_packages import Verbs
from verbs_end import Done, End

from dgpp.net.roce import Gid, RoceDevice
from dgpp.net.verbs.errors import DeviceError, LibraryError
from dgpp.net.verbs.library import HOPS, MIN_RNR_TIMER, RETRIES, RNR_RETRIES, TIMEOUT
from dgpp.net.verbs.packages import PACKAGES, load

MODULES = {
    "pyverbs 44": lambda verbs: fake_packages.pyverbs(verbs, flat=True),
    "pyverbs 59": lambda verbs: fake_packages.pyverbs(verbs, flat=False),
    "ibverbs": fake_packages.ibverbs,
}


def device(name="a"):
    gids = tuple(
        Gid(index, address, "RoCE v2", "e0") for index, address in enumerate(("::", "fd00::1"))
    )
    return RoceDevice(name, "4: ACTIVE", "200 Gb/sec (4X HDR)", "Ethernet", gids)


@pytest.fixture
def install(monkeypatch):
    """Makes exactly these modules of the packages be found."""

    def put(modules):
        for name in [*sys.modules, "pyverbs", "ibverbs"]:
            if name.split(".")[0] in PACKAGES:
                monkeypatch.setitem(sys.modules, name, None)
        # One that is not there must not be looked for on the disk.
        for name in ("pyverbs.enums", "pyverbs.libibverbs_enums"):
            monkeypatch.setitem(sys.modules, name, None)
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return put


@pytest.fixture(params=MODULES)
def over(request, install):
    """A made-up libibverbs with devices a and b, and the library over it through one package."""
    verbs = Verbs("a", "b")
    install(MODULES[request.param](verbs))
    library = load()
    assert library.name == request.param.split()[0]
    yield verbs, library
    assert verbs.alive == []


def opened(library):
    return [library.open(device(name), 1) for name in ("a", "b")]


def test_ends_connect_and_carry_what_is_written(over):
    verbs, library = over
    ports = opened(library)
    assert [(port.name, port.mtu, port.gbps) for port in ports] == [
        ("a", 4096, 200),
        ("b", 4096, 200),
    ]
    assert [port.gid for port in ports] == [verbs.ports[name].gid for name in ("a", "b")]
    ends = [End(port, 4096) for port in ports]
    for end, other in (ends, ends[::-1]):
        end.connect(msgspec.structs.replace(other.told(), mtu=1024))
    first, second = ends
    first.mine[:] = np.arange(4096) % 251
    assert second.receive(7) == 0
    assert first.write(4096, number=3, told=True) == 0
    while not (done := first.poll()):
        pass
    assert done == [Done(3)]
    assert second.poll() == [Done(7, received=True)]
    assert np.array_equal(first.mine, second.theirs)
    for told, end, other in zip(verbs.connected, ends, ends[::-1], strict=True):
        assert told == {
            "mtu": 3, "hops": HOPS, "index": 1, "rnr_timer": MIN_RNR_TIMER, "timeout": TIMEOUT,
            "retries": RETRIES, "rnr": RNR_RETRIES, "reads": 1, "dest_reads": 1,
            "sq_psn": end.pair.address.psn, "rq_psn": other.pair.address.psn,
        }  # fmt: skip
    for end in ends:
        end.close()
        end.port.close()


def test_a_completion_queue_tells_and_is_quieted(over):
    _verbs, library = over
    port, other = opened(library)
    queue = port.completion_queue(64)
    assert select.select([queue.fd], [], [], 0)[0] == []
    queue.arm()
    assert select.select([queue.fd], [], [], 0)[0] == [queue.fd]
    queue.quiet()
    assert select.select([queue.fd], [], [], 0)[0] == []
    queue.close()
    port.close()
    other.close()


def make_all(library, name="a"):
    port = library.open(device(name), 1)
    made = [port]
    try:
        made.append(port.register(1 << 20, 4096))
        made.append(port.completion_queue(64))
        made.append(port.queue_pair(made[-1], 8))
        made[-1].connect(msgspec.structs.replace(made[-1].address, gid=bytes(15) + b"\1"), 4096)
    finally:
        for one in reversed(made):
            one.close()


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("open", "cannot open a: .*it needs /dev/infiniband and the right to use it"),
        ("query", "cannot ask a for port 1, GID 1: .*lists its addresses"),
        ("domain", "no protection domain on a: "),
        ("region", "a cannot register 4096 bytes: "),
        ("channel", "no completion queue of 64 on a: "),
        ("queue", "no completion queue of 64 on a: .*ibv_devinfo"),
        ("pair", "no queue pair of 8 on a: .*ibv_devinfo"),
        ("", "a finds no way to 0000:.*0001: .*ping it"),
    ],
)
def test_what_cannot_be_had_is_named_and_nothing_is_left(over, verb, said):
    verbs, library = over
    verbs.refuse = verb
    with pytest.raises(DeviceError, match=f"^roce bus: {said}"):
        make_all(library)


def test_a_device_that_is_not_there_or_down_is_named(over):
    _verbs, library = over
    with pytest.raises(DeviceError, match="cannot open c: "):
        make_all(library, "c")
    down = msgspec.structs.replace(device(), state="1: DOWN")
    with pytest.raises(DeviceError, match="a is 1: DOWN: check its cable"):
        library.open(down, 1)


def test_a_pair_that_does_not_come_up_is_given_back(install):
    verbs = Verbs("a")
    install(fake_packages.ibverbs(verbs))
    verbs.refuse = "init"
    with pytest.raises(DeviceError, match=r"no queue pair of 8 on a: .*init failed"):
        make_all(load())
    assert verbs.alive == []


def test_a_release_that_keeps_its_pairs_elsewhere_is_named(over):
    verbs, library = over
    verbs.hidden = True
    known = {"pyverbs": "pyverbs 44 to 59", "ibverbs": "ibverbs 2026.10"}[library.name]
    with pytest.raises(LibraryError, match=f"this release is not known; {known} is"):
        make_all(library)


def test_the_system_s_own_package_goes_first_and_one_that_is_broken_is_passed_over(install):
    verbs = Verbs("a")
    both = fake_packages.pyverbs(verbs) | fake_packages.ibverbs(verbs)
    install(both)
    assert load().name == "pyverbs"
    # As where pyverbs is of another release than rdma-core.
    install(both | {"pyverbs.qp": None})
    assert load().name == "ibverbs"


def test_without_any_package_all_remedies_are_named(install):
    install({})
    with pytest.raises(LibraryError) as error:
        load()
    assert "install the system's python3-pyverbs" in str(error.value)
    assert "pip install 'dgpp[rdma-ibverbs]'" in str(error.value)
    assert error.value.exit_status == 1
