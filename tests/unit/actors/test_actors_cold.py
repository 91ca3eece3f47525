"""The disk tier's files: what they hold after any writing, cut anywhere, damaged anywhere."""

from __future__ import annotations

import os
import threading

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.cold_disk import ColdDisk, ColdFiles
from actors.cold_log import ColdContents, ColdLog, Written
from actors.cold_slab import Slab, aligned
from dgpp.cache.cold_ops import INVENTORY, ColdEntry, ColdUnit, Inventory, Restore, Spill
from dgpp.cache.cold_room import cold_room
from dgpp.cache.cold_votes import ColdVotes
from dgpp.errors import ConfigError

PAGES = 9
PAGE = 4096
KEY = b"deployment one"


def unit(page: int, parent: int) -> ColdUnit:
    return ColdUnit((page,), parent, f"{page} after {parent}".encode())


class Told:
    """What was written, kept the long way: a unit counts while its page and its parent's are those
    of the time when it was written."""

    def __init__(self) -> None:
        self.wrote: dict[int, int] = {}
        self.units: list[tuple[int, ColdUnit, int]] = []
        self.entries: list[tuple[int, ColdEntry, int]] = []

    def take(self, number: int, record: Written) -> None:
        for one in record.units:
            self.wrote.update((page, number) for page in one.pages)
        self.wrote.update((page, number) for page in record.entry.blob)
        for one in record.units:
            self.units.append((number, one, self.wrote.get(one.parent, -1)))
        last = record.entry.last
        self.entries = [kept for kept in self.entries if kept[1].last != last]
        self.entries.append((number, record.entry, self.wrote.get(last, -1)))

    def inventory(self) -> Inventory:
        units: list[ColdUnit] = []
        whole = {-1: -1}
        for number, one, parent in self.units:
            mine = all(self.wrote[page] == number for page in one.pages)
            if mine and whole.get(one.parent) == parent:
                whole[one.pages[0]] = number
                units.append(one)
        entries = [
            entry
            for number, entry, last in self.entries
            if whole.get(entry.last) == last and all(self.wrote[p] == number for p in entry.blob)
        ]
        return Inventory(tuple(units), tuple(entries))


@st.composite
def writings(draw: st.DrawFn) -> list[Written]:
    """Entries one after the other, each on pages of others or on free ones."""
    found = []
    contents = ColdContents()
    for _ in range(draw(st.integers(1, 8))):
        inventory = contents.inventory()
        parents = [-1, *(one.pages[0] for one in inventory.units)]
        parent = draw(st.sampled_from(parents))
        way = {-1}
        above = {one.pages[0]: one.parent for one in inventory.units}
        at = parent
        while at >= 0:
            way.add(at)
            at = above[at]
        free = [page for page in range(PAGES) if page not in way]
        pages = draw(st.lists(st.sampled_from(free), unique=True, max_size=3))
        blob = pages[:1] if draw(st.booleans()) else []
        chain = pages[len(blob) :]
        if parent < 0 and not chain:
            continue
        units = [unit(page, before) for page, before in zip(chain, [parent, *chain], strict=False)]
        last = chain[-1] if chain else parent
        entry = ColdEntry(last, 64 * (len(found) + 1), "tail", 0, tuple(blob))
        sums = tuple(range(100 * len(found), 100 * len(found) + len(pages)))
        found.append(Written(tuple(units), entry, sums))
        contents.take(found[-1])
    return found


@given(writings())
def test_what_lies_on_the_pages_is_what_was_written_last(records):
    contents, told = ColdContents(), Told()
    for number, record in enumerate(records):
        contents.take(record)
        told.take(number, record)
        assert contents.inventory() == told.inventory()
    again = ColdContents()
    for record in contents.records():
        again.take(record)
    kept, found = contents.inventory(), again.inventory()
    assert found.entries == kept.entries
    assert set(found.units) <= set(kept.units)
    assert all(again.sums[page] == contents.sums[page] for page in again.sums)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank0.index"


def spill(page: int, parent: int = -1, op: int = 1) -> Spill:
    return Spill(op, (unit(page, parent),), (0,), ColdEntry(page, 64, "tail", 0))


def test_a_list_cut_anywhere_is_right_up_to_there(path):
    log = ColdLog(path, KEY)
    for page in range(4):
        log.add(spill(page, page - 1), (page,))
    log.close()
    data = path.read_bytes()
    seen = set()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        cut = ColdLog(path, KEY)
        units = cut.contents.inventory().units
        assert units == tuple(unit(page, page - 1) for page in range(len(units)))
        seen.add(len(units))
        cut.add(spill(7), (7,))
        cut.close()
        assert unit(7, -1) in ColdLog(path, KEY).contents.inventory().units
    assert seen == {0, 1, 2, 3, 4}


def test_a_flipped_bit_of_the_list_loses_what_follows_and_no_more(path):
    log = ColdLog(path, KEY)
    log.add(spill(0), (0,))
    whole = path.stat().st_size
    log.add(spill(1), (1,))
    log.close()
    data = bytearray(path.read_bytes())
    data[whole + 11] ^= 4
    path.write_bytes(data)
    assert ColdLog(path, KEY).contents.inventory().units == (unit(0, -1),)


def test_what_ranks_do_not_share_is_forgotten_with_the_first_writing(path):
    log = ColdLog(path, KEY)
    log.add(spill(0), (0,))
    log.add(Spill(2, (unit(3, -1),), (0,), ColdEntry(3, 64, "tail", 0), fresh=True), (1,))
    log.close()
    assert ColdLog(path, KEY).contents.inventory().units == (unit(3, -1),)


def test_another_deployments_list_is_not_read(path):
    ColdLog(path, KEY).add(spill(0), (0,))
    other = ColdLog(path, b"deployment two")
    assert other.contents.inventory() == Inventory()
    assert "another deployment" in other.remark


def test_a_slab_is_one_servers_and_leaves_room_for_others(tmp_path):
    file = tmp_path / "deep" / "rank0.slab"
    slab = Slab(file, PAGE, 3)
    assert file.stat().st_mode & 0o777 == 0o600
    page = aligned(PAGE)
    page[:] = bytes(range(256)) * 16
    slab.write(2, page)
    out = aligned(PAGE)
    slab.read(2, out)
    assert bytes(out) == bytes(page)
    with pytest.raises(ConfigError, match="in use by another server"):
        Slab(file, PAGE, 3)
    slab.close()
    with pytest.raises(ConfigError, match=r"nvme_cache.capacity_gib: .* are free"):
        Slab(file, PAGE, 2**60 // PAGE)
    with pytest.raises(ConfigError, match=r"nvme_cache.path: .*"):
        Slab(file / "below", PAGE, 3)


def test_the_longest_request_must_fit():
    """By hand: blocks of 5,000 bytes take pages of 8,192; a snapshot of 20,000 takes three."""
    room = cold_room(1.0, 5_000, 20_000, 100)
    assert room == (2**30 // 8192, 3)
    assert cold_room(0.0, 5_000, 20_000, 100) == (0, 0)
    with pytest.raises(ConfigError, match=r"nvme_cache.capacity_gib: 0.0005, .* takes 0.000786"):
        cold_room(0.0005, 5_000, 20_000, 100)


class PaperPools:
    """Blocks and snapshots as bytes."""

    block_bytes = 3000
    snapshot_bytes = 9000

    def __init__(self) -> None:
        self.blocks = [bytes([number]) * self.block_bytes for number in range(1, 5)]
        self.kept = [bytes([16 * number]) * self.snapshot_bytes for number in range(1, 3)]

    def read_block(self, block, out):
        out[: self.block_bytes] = self.blocks[block]

    def write_block(self, block, data):
        self.blocks[block] = bytes(data[: self.block_bytes])

    def read_snapshot(self, snapshot, out):
        out[: self.snapshot_bytes] = self.kept[snapshot]

    def write_snapshot(self, snapshot, data):
        self.kept[snapshot] = bytes(data[: self.snapshot_bytes])


class Bench:
    """A disk over paper pools, driven step by step."""

    def __init__(self, folder, *, keeps: bool = True) -> None:
        self.pools = PaperPools()
        self.files = ColdFiles(folder, 0, PAGE, PAGES, KEY, keeps=keeps)
        self.answers = []
        self.came = threading.Event()
        self.disk = ColdDisk(self.files, self.pools, self.answer)
        self.disk.start()

    def answer(self, ended):
        self.answers.append(ended)
        self.came.set()

    def run(self, job):
        self.came.clear()
        self.disk.put(job)
        assert self.came.wait(10)
        return self.answers[-1]


OUT = Spill(1, (unit(4, -1), unit(2, 4)), (0, 1), ColdEntry(2, 128, "body", 0, (7, 5, 0)), 1)
BACK = Restore(2, (4, 2), (2, 3), (7, 5, 0), 0)


def test_blocks_and_snapshots_come_back_in_this_run_and_the_next(tmp_path):
    bench = Bench(tmp_path)
    assert bench.run(OUT).ok
    assert bench.run(BACK).ok
    assert bench.pools.blocks[2:] == bench.pools.blocks[:2]
    assert bench.pools.kept[0] == bench.pools.kept[1]
    assert bench.disk.figures.bytes_written == bench.disk.figures.bytes_read == 5 * PAGE
    bench.disk.close()
    again = Bench(tmp_path)
    assert again.answers[0].op == INVENTORY
    assert again.answers[0].inventory == Inventory(OUT.units, (OUT.entry,))
    assert again.run(BACK).ok
    assert again.pools.kept[0] == again.pools.kept[1]
    again.disk.close()


@pytest.mark.parametrize("page", [2, 5])
def test_a_flipped_bit_in_any_page_is_found(tmp_path, page):
    bench = Bench(tmp_path)
    bench.run(OUT)
    with (tmp_path / "rank0.slab").open("r+b") as file:
        file.seek(page * PAGE + 77)
        byte = file.read(1)[0]
        file.seek(page * PAGE + 77)
        file.write(bytes([byte ^ 16]))
        file.flush()
        os.fsync(file.fileno())
    ended = bench.run(BACK)
    assert not ended.ok
    assert ended.error == f"page {page}: not what was written (CRC-32C)"
    assert bench.disk.figures.failures == 1
    bench.disk.close()


def test_a_short_slab_and_a_full_disk_fail_the_operation_alone(tmp_path, monkeypatch):
    bench = Bench(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert "No space left" in bench.run(OUT).error
    assert not bench.files.list.contents.inventory().entries
    assert bench.run(OUT).ok
    os.truncate(tmp_path / "rank0.slab", 2 * PAGE)
    assert not bench.run(BACK).ok
    bench.disk.close()


def test_an_operation_that_makes_no_sense_fails_alone(tmp_path):
    bench = Bench(tmp_path)
    bench.run(OUT)
    assert not bench.run(Restore(3, (4, 2), (2,), (), -1)).ok
    assert bench.run(BACK).ok
    bench.disk.close()


def test_without_keep_nothing_stays(tmp_path):
    bench = Bench(tmp_path, keeps=False)
    bench.run(OUT)
    bench.disk.close()
    assert list(tmp_path.iterdir()) == []


def test_the_checksum_is_crc_32c():
    """The check value of the algorithm's definition (RFC 3720, B.4)."""
    assert crc32c.crc32c(b"123456789") == 0xE3069283
    assert crc32c.crc32c(bytes(32)) == 0x8A9136AA


def test_an_operation_is_settled_by_the_last_rank_and_good_where_all_agree():
    votes = ColdVotes(3)
    votes.tell(0, 1, 0, ok=True)
    votes.tell(2, 1, 0, ok=True)
    votes.tell(2, INVENTORY, 5, ok=True)
    assert not votes.settled
    votes.tell(1, 1, 0, ok=True)
    votes.tell(0, INVENTORY, 5, ok=True)
    votes.tell(1, INVENTORY, 6, ok=True)
    first, second = votes.take()
    assert (first.op, first.ok) == (1, True)
    assert (second.op, second.ok) == (INVENTORY, False)
    assert votes.take() == ()
    votes.tell(0, 2, 0, ok=False)
    with pytest.raises(ValueError, match="rank 0 ended operation 2 of the disk tier twice"):
        votes.tell(0, 2, 0, ok=True)
