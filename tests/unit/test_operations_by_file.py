"""What the CUDA sources and docs/structure.md say of files that belong together is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "kernels_numba" / "gpu"
SOURCES = sorted(GPU.glob("*.cu"))
HEADERS = sorted(GPU.glob("*.cuh"))
FILE = re.compile(r"[\w/]+\.(?:py|cuh|cu)\b")
BOUNDS = r"(?:__\w+__\((?:[^()]|\([^()]*\))*\)\s*)*"
KERNEL = re.compile(rf'extern "C" __global__ void\s+{BOUNDS}(\w+)(?:##\w+)?\(')
FOLDERS = (GPU, ROOT / "kernels_numba", ROOT)


def head_of(source: Path) -> str:
    """The comment that a source begins with, as one line."""
    return re.match(r"(?://[^\n]*\n)*", source.read_text())[0].replace("\n// ", " ")


def name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("source", [*SOURCES, *HEADERS], ids=name)
def test_files_that_a_source_names_exist(source) -> None:
    for named in FILE.findall(head_of(source)):
        assert any((folder / named).exists() for folder in FOLDERS), named


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_a_source_says_who_launches_it(source) -> None:
    found = KERNEL.findall(source.read_text().replace("\\\n", " "))
    said = head_of(source).partition("Launched by ")[2].partition(". ")[0]
    launchers = "".join((GPU / file).read_text() for file in FILE.findall(said))
    # Names that end in sizes are put together where they are launched; a macro's are its users'.
    missing = [kernel for kernel in found if kernel.rstrip("_0123456789") not in launchers]
    assert launchers
    assert [kernel for kernel in missing if not kernel.isupper()] == []


@pytest.mark.parametrize("header", HEADERS, ids=name)
def test_a_header_says_who_includes_it(header) -> None:
    head = head_of(header)
    for source in SOURCES:
        if f'#include "{header.name}"' in source.read_text():
            assert source.name in head or "every .cu" in head, source.name


def test_the_page_lists_every_cuda_source_beside_its_partners() -> None:
    page = (ROOT / "docs" / "structure.md").read_text()
    section = page.partition("## One operation, three files")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    places = (ROOT / "kernels_numba" / "cpu", GPU, ROOT / "tests" / "unit" / "kernels")
    seen = set()
    for row in rows:
        columns = [set(FILE.findall(column)) for column in row[1:]]
        folders = places if len(columns) == len(places) else (places[0], places[-1])
        for folder, named in zip(folders, columns, strict=True):
            for file in named:
                assert (folder / file).exists() or (ROOT / file).exists(), file
            seen |= named if folder == GPU else set()
    # What every source includes stands beside none.
    assert {file.name for file in [*SOURCES, *HEADERS]} - seen <= {"common.cuh"}
