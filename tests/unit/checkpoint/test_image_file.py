"""Weight images on disk: whole or named, whatever happens to the file."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.checkpoint import image_file
from dgpp.checkpoint.image_file import PAGE, ImageError, ImageReader, ImageWriter, opened
from kernels_numba.cpu.fold import fold
from kernels_numba.cpu.memory import allocate

FACTS = {"rank": "0", "checkpoint": "abc"}


def arrays() -> list[tuple[int, int, int, tuple[np.ndarray, ...]]]:
    """Small arrays, an empty one, and one that goes past the page cache and is no whole pages."""
    rng = np.random.default_rng(7)
    large = allocate((2_100, 1_031), np.uint8)
    large[...] = rng.integers(0, 256, large.shape)
    small = rng.standard_normal(37).astype(np.float32)
    return [
        (5, 2_100, 1_031, (large, np.zeros((0, 0), np.uint8), np.zeros(0, np.float32))),
        (-1, 1, 37, (small,)),
    ]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "kept" / "model.img"
    size = ImageWriter(path, fold).write(FACTS, arrays(), (30, 20, 10), {"a": b"12345678"})
    assert path.stat().st_size == size
    assert list(path.parent.iterdir()) == [path]
    return path


def read_back(path: Path) -> list[np.ndarray]:
    with opened(path, fold) as reader, ThreadPoolExecutor(2) as pool:
        out = []
        for told in (array for tensor in reader.table.tensors for array in tensor.arrays):
            held = allocate(told.shape, np.dtype(told.dtype))
            for future in reader.read(told, held, pool):
                future.result()
            out.append(held)
        return out


def test_what_was_written_comes_back(image: Path) -> None:
    wanted = [array for _, _, _, held in arrays() for array in held]
    for got, told in zip(read_back(image), wanted, strict=True):
        assert got.dtype == told.dtype
        np.testing.assert_array_equal(got, told)
    with opened(image, fold) as reader:
        assert reader.table.facts == FACTS
        assert reader.table.account == (30, 20, 10)
        assert reader.table.digests == {"a": b"12345678"}
        assert [(t.form, t.rows, t.columns) for t in reader.table.tensors] == [
            (5, 2_100, 1_031),
            (-1, 1, 37),
        ]


def test_any_flipped_bit_of_an_array_or_the_table_is_found(image: Path) -> None:
    content = image.read_bytes()
    with opened(image, fold) as reader:
        spans = [(a.at, a.bytes) for t in reader.table.tensors for a in t.arrays if a.bytes]
    end = max(at + size for at, size in spans)
    places = [at + size - 1 for at, size in spans] + [at for at, _ in spans]
    places += [0, 8, 13, 24, len(content) - 1, len(content) - 60, (end + len(content)) // 2 + 2000]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        image.write_bytes(damaged)
        with pytest.raises(ImageError):
            read_back(image)
    image.write_bytes(content)
    read_back(image)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.4, 0.99999])
def test_a_truncated_image_is_named(image: Path, share: float) -> None:
    os.truncate(image, int(image.stat().st_size * share))
    with pytest.raises(ImageError) as caught:
        ImageReader(image, fold)
    assert "truncated" in str(caught.value) or "never finished" in str(caught.value)


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"GGUF" + bytes(5000))
    with pytest.raises(ImageError, match="not a weight image"):
        ImageReader(tmp_path / "other", fold)
    with pytest.raises(FileNotFoundError):
        ImageReader(tmp_path / "absent", fold)


def test_another_version_of_the_format_is_named(image: Path) -> None:
    content = bytearray(image.read_bytes())
    content[8] += 1
    image.write_bytes(content)
    with pytest.raises(ImageError, match="version 2 of the format, this is 1"):
        ImageReader(image, fold)


class FullDisk:
    f_bavail, f_frsize = 1, PAGE


def test_a_disk_without_room_is_not_begun_to_fill(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(image_file.os, "statvfs", lambda _: FullDisk)
    with pytest.raises(OSError, match="MiB of reserve") as caught:
        ImageWriter(tmp_path / "model.img", fold).write(FACTS, arrays(), (0, 0, 0), {})
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_nothing_and_the_old_image(image: Path, monkeypatch) -> None:
    before, written = image.read_bytes(), []
    real = os.pwrite

    def full(file, data, at):
        written.append(len(data))
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, at)

    monkeypatch.setattr(image_file.os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        ImageWriter(image, fold).write({}, arrays(), (0, 0, 0), {})
    assert image.read_bytes() == before
    assert list(image.parent.iterdir()) == [image]


def test_what_dead_writers_left_is_swept(image: Path) -> None:
    dead = image.with_name(f".{image.name}.999999999.tmp")
    alive = image.with_name(f".{image.name}.1.tmp")
    dead.touch()
    alive.touch()
    ImageWriter(image, fold).write(FACTS, arrays(), (0, 0, 0), {})
    assert alive.exists()
    assert not dead.exists()


@settings(deadline=None, max_examples=40)
@given(data=st.binary(min_size=1, max_size=300), seed=st.integers(0, 2**31))
def test_no_single_change_keeps_the_fold(data: bytes, seed: int) -> None:
    held = np.frombuffer(data, np.uint8).copy()
    total = fold(held)
    assert total == fold(held.copy())
    changed = held.copy()
    changed[seed % len(held)] ^= 1 << seed % 8
    assert fold(changed) != total
    assert fold(held[:-1].copy()) != total
