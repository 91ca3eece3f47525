"""The disk tier's pages and its work: what comes back is what was written, or is said."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import crc32c
import pytest
from test_actors_cold_list import KEY, PAGE, PAGES, unit

from actors.cold_disk import ColdDisk, ColdFiles, ColdMover
from actors.cold_folder import OsFile, OsFolder
from actors.cold_slab import Slab
from dgpp.cache.cold_ops import (
    INVENTORY,
    ColdDone,
    ColdEntry,
    ColdRecord,
    Restore,
    Spill,
    point_after,
)
from dgpp.cache.cold_room import cold_room
from dgpp.cache.cold_votes import ColdVotes
from dgpp.errors import ConfigError
from kernels_numba.cpu.memory import page_aligned


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
    said = f"{tmp_path}/rank0.slab: page {page}: not what was written (CRC-32C)"
    assert ended.error == said
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
    said = f"{tmp_path}/rank0.slab: page 2: not what was written (CRC-32C)"
    assert again.run(BACK).error == said
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


@pytest.mark.parametrize("name", ["rank0.slab", "rank0.index", "rank0.index.new"])
def test_a_file_that_cannot_be_had_is_named_with_its_folder(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError) as found:
        Bench(tmp_path)
    assert str(found.value) == f"nvme_cache.path: {tmp_path / name}: Is a directory"


def test_a_folder_that_cannot_be_had_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"nvme_cache.path: {tmp_path}/file: "):
        Bench(tmp_path / "file")


@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("preadv", lambda file: file.read(memoryview(bytearray(8)), 0)),
        ("pwrite", lambda file: file.write(memoryview(bytes(8)), 0)),
        ("ftruncate", lambda file: file.resize(8)),
        ("posix_fallocate", lambda file: file.set_aside(8)),
        ("fstat", lambda file: file.size()),
        ("fstatvfs", lambda file: file.room()),
    ],
)
def test_what_fails_on_an_open_file_says_which_it_is(tmp_path, monkeypatch, call, work):
    def fail(*given):
        raise OSError(5, "Input/output error")

    file = OsFolder(tmp_path).claim("rank0.slab")
    said = f"Input/output error: '{tmp_path}/rank0.slab'"

    def failing():
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            work(file)

    with pytest.raises(OSError, match=said):
        failing()
    file.close()


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_slab_whose_list_is_gone_is_told(tmp_path, caplog, lose):
    bench = Bench(tmp_path)
    assert bench.run(OUT).ok
    bench.disk.close()
    assert not caplog.records
    lose(tmp_path / "rank0.index")
    again = Bench(tmp_path)
    assert again.answers[0].inventory.later == ()
    again.disk.close()
    said = f"{tmp_path}/rank0.index is gone or empty, nothing of {tmp_path}/rank0.slab is used"
    assert [record.message for record in caplog.records] == [f"disk tier: {said}"]


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
