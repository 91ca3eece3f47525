"""The disk tier's list: what it says after any writing, cut anywhere, damaged anywhere."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.cold_folder import OsFile, OsFolder
from actors.cold_log import ColdLog
from dgpp.cache.cold_contents import ColdContents, pages_of
from dgpp.cache.cold_ops import (
    ColdEntry,
    ColdRecord,
    ColdUnit,
    Inventory,
    Spill,
    point_after,
)

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


def test_a_beginning_with_any_flipped_bit_is_told(path):
    filled(path, 0).close()
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        log = open_log(path)
        assert log.found == Inventory()
        assert log.remark == "its list does not begin as it should, nothing of it is used"
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
