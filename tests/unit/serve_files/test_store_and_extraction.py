"""Files on disk, and the programs that read PDFs, within their bounds."""

from __future__ import annotations

import asyncio
import stat
import sys
from pathlib import Path

import pytest

from actors.http.files.extract import Extractor
from actors.http.files.store import FileStore
from dgpp.config.engine_settings import FileInputs
from dgpp.errors import ConfigError
from dgpp.serve.errors import ApiError
from dgpp.serve.files.upload import Upload

UPLOAD = Upload("a.txt", "user_data", b"hello")


def test_files_outlive_a_server_with_a_directory(tmp_path):
    folder = str(tmp_path / "files")
    store = FileStore(folder, 1000)
    kept, gone = store.add(UPLOAD), store.add(UPLOAD)
    store.delete(gone.id)
    store.close()
    again = FileStore(folder, 1000)
    assert again.all() == [kept]
    assert again.content(kept.id) == b"hello"
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    assert sorted(p.name for p in Path(folder).iterdir()) == [kept.id, f"{kept.id}.json"]
    for name in (gone.id, "../x", "file-1"):
        with pytest.raises(ApiError) as caught:
            again.content(name, "p")
        assert (caught.value.status, caught.value.code) == (404, "file_not_found")


def test_files_without_a_directory_go_with_the_server():
    store = FileStore("", 1000)
    assert store._own is None
    store.add(UPLOAD)
    own = store._own
    assert own is not None
    store.close()
    assert not own.exists()


def test_all_files_together_are_bounded():
    store = FileStore("", 9)
    first = store.add(UPLOAD)
    with pytest.raises(ApiError) as caught:
        store.add(UPLOAD)
    assert (caught.value.status, caught.value.code) == (413, "file_storage_full")
    store.delete(first.id)
    store.add(UPLOAD)
    store.close()


@pytest.mark.parametrize("fault", ["size", "name", "json", "missing"])
def test_a_directory_that_does_not_fit_is_refused_at_start(tmp_path, fault):
    made = FileStore(str(tmp_path), 1000).add(UPLOAD)
    data, described = tmp_path / made.id, tmp_path / f"{made.id}.json"
    match fault:
        case "size":
            data.write_bytes(b"hell")
        case "name":
            described.rename(tmp_path / f"file-{'0' * 32}.json")
        case "json":
            described.write_text("{")
        case "missing":
            data.unlink()
    with pytest.raises(ConfigError, match=r"engine\.file_inputs\.directory"):
        FileStore(str(tmp_path), 1000)


def pdf(text: str) -> bytes:
    """One page that shows `text`, or nothing."""
    content = f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode() if text else b""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R /Resources %s >>"
        % b"<< /Font << /F1 5 0 R >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    found, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(found))
        found += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(found)
    found += b"xref\n0 6\n0000000000 65535 f \n" + table
    return found + b"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % start


def extract(data: bytes, **settings: object) -> str:
    async def run() -> str:
        inputs = FileInputs(**{"pdf_command": "no-such-program", **settings})  # type: ignore[arg-type]
        return await Extractor(inputs).text(data, "p")

    return asyncio.run(run())


def test_pypdf_reads_where_the_program_is_missing():
    assert extract(pdf("Quokka zebra")).strip() == "Quokka zebra"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [(pdf(""), 400, "pdf_text_unavailable"), (b"%PDF-1.4 rubbish", 400, "invalid_file")],
)
def test_a_document_without_text_is_named(data, status, code):
    with pytest.raises(ApiError) as caught:
        extract(data)
    assert (caught.value.status, caught.value.code, caught.value.param) == (status, code, "p")


def program(folder: Path, body: str) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("body", "settings", "status", "code"),
    [
        ("exec sleep 60", {"pdf_timeout_ms": 50}, 408, "file_processing_timeout"),
        ("exec yes", {"max_text_bytes": 5000}, 413, "file_too_large"),
        ("exit 3", {}, 400, "invalid_file"),
        ("exit 7", {}, 500, "file_processing_failed"),
    ],
)
def test_a_program_is_held_to_its_bounds(tmp_path, body, settings, status, code):
    with pytest.raises(ApiError) as caught:
        extract(b"%PDF-", pdf_command=program(tmp_path, body), **settings)
    assert (caught.value.status, caught.value.code) == (status, code)
    for key in settings:
        assert f"engine.file_inputs.{key} = " in caught.value.message


def test_a_program_gets_the_documents_path(tmp_path):
    body = 'printf "%s %s %s " "$1" "$2" "$3"; cat "$4"'
    text = extract(b"%PDF-x", pdf_command=program(tmp_path, body))
    assert text == "-enc UTF-8 -layout %PDF-x"


def test_no_program_at_all_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(ApiError) as caught:
        extract(pdf("x"))
    assert (caught.value.status, caught.value.code) == (503, "pdf_extractor_unavailable")


def test_more_documents_than_may_wait_are_refused(tmp_path):
    slow = program(tmp_path, "sleep 0.2; echo text")

    async def run() -> list[object]:
        extractor = Extractor(FileInputs(pdf_command=slow, workers=1))
        asked = (extractor.text(b"%PDF-", "p") for _ in range(3))
        return list(await asyncio.gather(*asked, return_exceptions=True))

    first, second, third = asyncio.run(run())
    assert (first, second) == ("text\n", "text\n")
    assert isinstance(third, ApiError)
    assert (third.status, third.code) == (503, "file_processing_busy")
