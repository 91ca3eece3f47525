"""The disk tier's files: what they hold after any writing, cut anywhere, damaged anywhere."""

from __future__ import annotations

import os
import threading

import crc32c
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.cold_disk import ColdDisk, ColdFiles, ColdMover
from actors.cold_folder import OsFile, OsFolder
from actors.cold_log import ColdLog
from actors.cold_slab import Slab
from dgpp.cache.cold_contents import ColdContents, pages_of
from dgpp.cache.cold_ops import (
    INVENTORY,
    ColdDone,
    ColdEntry,
    ColdRecord,
    ColdUnit,
    Inventory,
    Restore,
    Spill,
    point_after,
)
from dgpp.cache.cold_room import cold_room
from dgpp.cache.cold_votes import ColdVotes
from dgpp.errors import ConfigError
from kernels_numba.cpu.memory import page_aligned

PAGES = 9
PAGE = 4096
KEY = b"deployment one"


def unit(page: int, parent: int) -> ColdUnit:
    return ColdUnit((page,), parent, f"{page} after {parent}".encode())


class Told:
    """What was written, kept the long way: a unit counts while its page and its parent's are those
    of the time when it was written, and some entry needs it."""

    def __init__(self) -> None:
        self.wrote: dict[int, int] = {}
        self.units: list[tuple[int, ColdUnit, int]] = []
        self.entries: list[tuple[int, ColdEntry, int]] = []

    def take(self, number: int, record: ColdRecord) -> None:
        self.wrote.update((page, number) for page in pages_of(record))
        for one in record.units:
            self.units.append((number, one, self.wrote.get(one.parent, -1)))
        last = record.entry.last
        self.entries = [kept for kept in self.entries if kept[1].last != last]
        self.entries.append((number, record.entry, self.wrote.get(last, -1)))

    def inventory(self) -> Inventory:
        units: dict[int, tuple[int, ColdUnit]] = {}
        whole = {-1: (-1, 0)}
        for number, one, parent in self.units:
            mine = all(self.wrote[page] == number for page in one.pages)
            if mine and whole.get(one.parent, (None, 0))[0] == parent:
                depth = whole[one.parent][1] + 1
                whole[one.pages[0]] = number, depth
                units[one.pages[0]] = depth, one
        entries = [
            entry
            for number, entry, last in self.entries
            if entry.last in whole
            and whole[entry.last][0] == last
            and all(self.wrote[p] == number for p in entry.blob)
        ]
        needed = set()
        for entry in entries:
            at = entry.last
            while at >= 0:
                needed.add(at)
                at = units[at][1].parent
        order = sorted(needed, key=lambda first: (units[first][0], first))
        return Inventory(tuple(units[first][1] for first in order), tuple(entries))


@st.composite
def writings(draw: st.DrawFn) -> list[ColdRecord]:
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
        found.append(ColdRecord(tuple(units), entry))
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
    assert again.inventory() == contents.inventory()


@given(writings(), st.integers(0, 8), st.integers(0, 8))
def test_an_inventory_tells_what_was_there_at_each_of_its_points(records, early, at):
    """However much of it is told record by record."""
    early, at = min(early, len(records)), min(at, len(records))
    contents, point = ColdContents(), 0
    for record in records[:early]:
        contents.take(record)
        point = point_after(point, record)
    told = contents.inventory(point)
    told = msgspec.structs.replace(told, later=tuple(records[early:]))
    points = told.points()
    assert len(points) == len(records) - early + 1
    if at < early:
        return
    wanted = ColdContents()
    for record in records[:at]:
        wanted.take(record)
    assert ColdContents.at(told, points[at - early]).inventory() == wanted.inventory()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank0.index"


def spill(page: int, parent: int = -1, op: int = 1) -> Spill:
    return Spill(op, (unit(page, parent),), (0,), ColdEntry(page, 64, "tail", 0))


def open_log(path, key=KEY) -> ColdLog:
    return ColdLog(OsFolder(path.parent), path.name, key)


def filled(path, count: int) -> ColdLog:
    """A list of one chain of `count` units, each written with an entry of its own."""
    log = open_log(path)
    for page in range(count):
        log.add(spill(page, page - 1), (page,))
    return log


def listed(log: ColdLog) -> tuple[ColdUnit, ...]:
    """The units that it found, at its latest point."""
    return ColdContents.at(log.found, log.found.points()[-1]).inventory().units


def test_a_list_cut_anywhere_is_right_up_to_there(path):
    filled(path, 4).close()
    data = path.read_bytes()
    seen = set()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        cut = open_log(path)
        units = listed(cut)
        assert units == tuple(unit(page, page - 1) for page in range(len(units)))
        seen.add(len(units))
        cut.add(spill(7), (7,))
        cut.close()
        again = open_log(path)
        assert unit(7, -1) in listed(again)
        again.close()
    assert seen == {0, 1, 2, 3, 4}


def test_a_flipped_bit_of_the_list_loses_what_follows_and_no_more(path):
    log = filled(path, 1)
    whole = path.stat().st_size
    log.add(spill(1), (1,))
    log.close()
    data = bytearray(path.read_bytes())
    data[whole + 11] ^= 4
    path.write_bytes(data)
    log = open_log(path)
    assert listed(log) == (unit(0, -1),)
    assert log.remark == "its list ends in what is not whole, that is not used"
    log.close()


def test_a_list_goes_back_to_what_all_disks_hold(path):
    log = filled(path, 3)
    shared = log.found.point
    for record in range(2):
        shared = point_after(shared, ColdRecord((unit(record, record - 1),), spill(record).entry))
    log.go_back(shared)
    log.add(spill(5), (1,))
    log.close()
    again = open_log(path)
    assert listed(again) == (unit(0, -1), unit(5, -1), unit(1, 0))
    assert len(again.found.points()) == 4
    again.close()


def test_a_list_that_never_passed_that_point_begins_anew(path):
    log = filled(path, 2)
    log.go_back(0x1234)
    log.add(spill(3), (1,))
    log.close()
    again = open_log(path)
    assert listed(again) == (unit(3, -1),)
    assert again.found.points()[0] == 0x1234
    again.close()


def test_a_list_written_anew_stands_where_it_stood(path, monkeypatch):
    other = path.with_name("other")
    for file, least in ((path, 0), (other, 1 << 20)):
        monkeypatch.setattr("actors.cold_log.LEAST_TO_COMPACT", least)
        log = filled(file, 3)
        for number in range(20):
            log.add(spill(7 + number % 2), (number,))
        log.close()
    assert path.stat().st_size < other.stat().st_size
    often, never = open_log(path), open_log(other)
    assert often.point == never.point
    assert often.sums == never.sums
    assert listed(often) == listed(never)
    assert len(often.found.later) < len(never.found.later) == 23


def test_a_list_that_cannot_grow_stays_as_it_was(path, monkeypatch):
    log = filled(path, 2)
    data = path.read_bytes()

    def half(file, out, at):
        if len(out) < 20:
            raise OSError(28, "No space left on device")
        return len(out) // 2

    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "write", half)
        with pytest.raises(OSError, match="No space left"):
            log.add(spill(5), (5,))
    assert path.read_bytes() == data
    log.add(spill(5), (5,))
    log.close()
    assert unit(5, -1) in listed(open_log(path))


def test_another_deployments_list_is_not_read(path):
    filled(path, 1).close()
    other = open_log(path, b"deployment two")
    assert other.found == Inventory()
    assert "another deployment" in other.remark


def open_slab(folder, pages=3, page=PAGE) -> Slab:
    return Slab(OsFolder(folder).claim("rank0.slab"), page, pages)


def test_a_slab_is_one_servers_and_leaves_room_for_others(tmp_path):
    file = tmp_path / "deep" / "rank0.slab"
    slab = open_slab(file.parent)
    assert file.stat().st_mode & 0o777 == 0o600
    page = page_aligned(PAGE)
    page[:] = bytes(range(256)) * 16
    slab.write(2, page)
    out = page_aligned(PAGE)
    slab.read(2, out)
    assert bytes(out) == bytes(page)
    with pytest.raises(ConfigError, match="in use by another server"):
        open_slab(file.parent)
    slab.close()
    with pytest.raises(ConfigError, match=r"nvme_cache.capacity_gib: .* are free"):
        open_slab(file.parent, 2**60 // PAGE)
    with pytest.raises(ConfigError, match=r"nvme_cache.path: .*"):
        open_slab(file)


def test_a_page_written_in_pieces_is_whole_or_an_error(tmp_path, monkeypatch):
    slab = open_slab(tmp_path)
    page, out = page_aligned(PAGE), page_aligned(PAGE)
    page[:] = bytes(range(256)) * 16
    whole = OsFile.write
    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "write", lambda file, data, at: whole(file, data[:512], at))
        slab.write(1, page)
    slab.read(1, out)
    assert bytes(out) == bytes(page)
    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "write", lambda file, data, at: 0)
        with pytest.raises(OSError, match="page 1: 0 of 4096 bytes written"):
            slab.write(1, page)
    slab.close()


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

    def staging(self, size):
        return page_aligned(size)

    def fence(self):
        """What was called is done."""

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
        self.files = ColdFiles(OsFolder(folder), 0, PAGE, PAGES, KEY, keeps=keeps)
        self.answers = []
        self.came = threading.Event()
        self.disk = ColdDisk(ColdMover(self.files, self.pools), self.answer, self.broke)
        self.disk.start()

    def answer(self, ended):
        self.answers.append(ended)
        self.came.set()

    def broke(self, error):
        self.answer(error)

    def run(self, job):
        self.came.clear()
        self.disk.put(job)
        assert self.came.wait(10)
        return self.answers[-1]


OUT = Spill(1, (unit(4, -1), unit(2, 4)), (0, 1), ColdEntry(2, 128, "body", 0, (7, 5, 0)), 1)
AT = point_after(0, ColdRecord(OUT.units, OUT.entry))
BACK = Restore(2, (4, 2), (2, 3), (7, 5, 0), 0, AT)


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
    assert again.answers[0].inventory.later == (ColdRecord(OUT.units, OUT.entry),)
    assert again.answers[0].points == again.answers[0].inventory.points()
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
    assert bench.files.list.point == 0
    assert bench.run(OUT).ok
    os.truncate(tmp_path / "rank0.slab", 2 * PAGE)
    assert not bench.run(BACK).ok
    bench.disk.close()


def test_pages_of_what_was_taken_back_are_not_what_was_written(tmp_path):
    """Another entry took a page, but not on all ranks: after a restart neither is there."""
    bench = Bench(tmp_path)
    bench.run(OUT)
    over = Spill(3, (unit(2, -1),), (2,), ColdEntry(2, 64, "tail", 0), onto=AT)
    assert bench.run(over).ok
    bench.disk.close()
    again = Bench(tmp_path)
    assert len(again.answers[0].points) == 3
    assert again.run(BACK).error == "page 2: not what was written (CRC-32C)"
    again.disk.close()
    last = Bench(tmp_path)
    assert last.answers[0].points == (0, AT)
    last.disk.close()


def test_a_prefix_is_read_back_while_a_spill_behind_it_is_not_settled(tmp_path):
    bench = Bench(tmp_path)
    bench.run(OUT)
    more = Spill(3, (unit(1, 2),), (2,), ColdEntry(1, 192, "tail", 0), onto=AT)
    assert bench.run(more).ok
    assert bench.run(BACK).ok
    bench.disk.close()
    again = Bench(tmp_path)
    assert len(again.answers[0].points) == 3
    again.disk.close()


def test_an_operation_that_makes_no_sense_fails_alone(tmp_path):
    bench = Bench(tmp_path)
    bench.run(OUT)
    assert not bench.run(Restore(3, (4, 2), (2,), (), -1, AT)).ok
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
    votes.tell(0, 1, ok=True)
    votes.tell(2, 1, ok=True)
    votes.tell(2, 3, ok=True)
    assert not votes.settled
    votes.tell(1, 1, ok=True)
    votes.tell(0, 3, ok=True)
    votes.tell(1, 3, ok=False)
    assert votes.take() == (ColdDone(1, ok=True), ColdDone(3, ok=False))
    assert votes.take() == ()
    votes.tell(0, 2, ok=False)
    with pytest.raises(ValueError, match="rank 0 ended operation 2 of the disk tier twice"):
        votes.tell(0, 2, ok=True)


@pytest.mark.parametrize(
    ("lists", "settled"),
    [
        (((0, 5, 6), (0, 5, 6)), ColdDone(INVENTORY, True, 6)),
        (((0, 5, 6), (0, 5)), ColdDone(INVENTORY, True, 5)),
        (((5, 6), (0, 5, 7)), ColdDone(INVENTORY, True, 5)),
        (((0,), (0, 5, 7)), ColdDone(INVENTORY, True, 0)),
        (((4, 6), (0, 5, 7)), ColdDone(INVENTORY, False, 0)),
    ],
)
def test_ranks_take_over_what_all_their_disks_hold(lists, settled):
    votes = ColdVotes(2)
    for rank, points in enumerate(lists):
        votes.tell(rank, INVENTORY, points, ok=True)
    assert votes.take() == (settled,)


def test_an_error_that_is_no_disks_is_not_kept_quiet(tmp_path):
    bench = Bench(tmp_path)
    bench.pools.read_block = None
    assert isinstance(bench.run(OUT), TypeError)
    bench.disk.close()
